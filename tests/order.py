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
        edges = Edges(graph)
        for names in edges.uses_of_each_variable():
            ahead = {name: edges.ahead_of(name) for name in names}
            for write in (name for name in names if edges.kind[name] in _WRITES):
                for other in set(names) - {write}:
                    self.looked_at += 1
                    if write not in ahead[other] and other not in ahead[write]:
                        self.append((other, write))


class Edges:
    """A graph's operations by their names: their kinds, and what each waits for."""

    def __init__(self, graph):
        self.kind = {node.name: node.op for node in graph.node}
        self.inputs = {
            node.name: [each.lstrip("^").split(":")[0] for each in node.input]
            for node in graph.node
        }

    def uses_of_each_variable(self):
        uses = defaultdict(list)
        for name, kind in self.kind.items():
            if kind == "ReadVariableOp" or kind in _WRITES:
                uses[self._variable(name)].append(name)
        return uses.values()

    def _variable(self, name):
        name = self.inputs[name][0]
        while self.kind.get(name) in _PASS_ON:
            name = self.inputs[name][0]
        return name

    def ahead_of(self, name):
        known, waiting = set(), list(self.inputs[name])
        while waiting:
            each = waiting.pop()
            if each not in known:
                known.add(each)
                # The next step of several comes after it; a loop inside a step ends in it.
                if self.kind.get(each) != "NextIteration" or "/body/" in each:
                    waiting += self.inputs.get(each, [])
        return known
