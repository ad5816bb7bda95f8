"""Whether the graphs that TensorFlow runs, after its optimizers, keep reads and writes in order.

A reading of a variable and an assignment to it that no edges put in order give one result today and
another one on a loaded machine. The edges are looked at here, not the results.
"""

from collections import defaultdict
from contextlib import contextmanager

from tensorflow.python.eager import context

_WRITES = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")
_PASS_ON = ("Switch", "_SwitchN", "Enter", "Identity", "Merge")


@contextmanager
def unordered():
    """A list that holds, after the block, the pairs of each graph that ran in it."""
    found = Pairs()
    context.enable_run_metadata()
    try:
        yield found
        metadata = context.export_run_metadata()
    finally:
        context.disable_run_metadata()
    for graphs in metadata.function_graphs:
        found.look_at(graphs.post_optimization_graph)


class Pairs(list):
    """Readings and assignments without an order, by their names; ``looked_at`` counts the good."""

    looked_at = 0

    def look_at(self, graph):
        kinds = {node.name: node.op for node in graph.node}
        inputs = {
            node.name: [each.lstrip("^").split(":")[0] for each in node.input]
            for node in graph.node
        }
        uses = defaultdict(list)
        for name, kind in kinds.items():
            if kind == "ReadVariableOp" or kind in _WRITES:
                variable = inputs[name][0]
                while kinds.get(variable) in _PASS_ON:
                    variable = inputs[variable][0]
                uses[variable].append(name)
        for names in uses.values():
            ahead = {name: _ahead_of(name, kinds, inputs) for name in names}
            for write in (name for name in names if kinds[name] in _WRITES):
                for other in set(names) - {write}:
                    self.looked_at += 1
                    if write not in ahead[other] and other not in ahead[write]:
                        self.append((other, write))


def _ahead_of(name, kinds, inputs):
    known, waiting = set(), list(inputs[name])
    while waiting:
        each = waiting.pop()
        if each not in known:
            known.add(each)
            # The next step of several comes after it; a loop inside a step ends in it.
            if kinds.get(each) != "NextIteration" or "/body/" in each:
                waiting += inputs.get(each, [])
    return known
