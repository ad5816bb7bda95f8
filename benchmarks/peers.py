"""Train one net in Keras, under a chain of tfopt's, in PyTorch and in Keras on JAX, by turns.

    python -m benchmarks.peers --net bert --with torch,jax
    python -m benchmarks.peers --net bert --blocks 3 --xla-flags=--xla_gpu_enable_triton_gemm=false
    python -m benchmarks.peers --net vit --on cpu
    python -m benchmarks.peers --net vit --on rehearsal

All sides train the same net (``nets.py``, ``torch_peer.py``) on batches from the host's memory:
Keras as it is and in mixed_bfloat16, the chain in two processes (the second one finds compiled
programs), the chain under each set of XLA's flags, PyTorch by ``torch.compile`` with autocast and
``channels_last``, and Keras on JAX in mixed_bfloat16. Each is a process. First steps are taken one
after the other, alone on the GPU; then all take turns. A side that is not installed or fails is a
row that says so. On a CPU the nets are smaller, and Keras, the chain, PyTorch and JAX train them
in float32; a rehearsal does all of it on a CPU with tiny nets, whose figures say nothing.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.figures import ROOT, save_figures
from tfopt import Execution, FusedAttention, MixedPrecision, Pipeline, Place, chain
from tfopt.errors import UserError
from tfopt.files import prepare_folder
from tfopt.job.recipe_file import chain_to_toml, read_recipe
from tfopt.job.transform import Chain
from tfopt.measure.children import JobProcess, Lost
from tfopt.measure.engine import LATE, Candidate, Engine, shared_rounds
from tfopt.measure.targets import Target
from tfopt.measure.turn_taking import Ready, Turn
from tfopt.monitor.nvml import gpu_memories, why_no_gpu
from tfopt.recipes.flags import Parser, add_flags, add_output, count, exit_code_of, names
from tfopt.report.statistics import LEAST, compare_pairs
from tfopt.subprocesses import SHARING, how_it_ended

KERAS, CHAIN, PYTORCH = "Keras", "the chain", "PyTorch"
TUNED = chain(
    Place(compile_cache=True),
    MixedPrecision("mixed_bfloat16"),
    FusedAttention(),
    Pipeline(),
    Execution(steps_per_execution=4),
)
TUNED_ON_CPU = chain(Pipeline(), Execution(steps_per_execution=4))
# BERT-base (arXiv:1810.04805) and ViT-B/16 (arXiv:2010.11929); on a CPU BERT-Mini
# (arXiv:1908.08962) and ViT-Ti/16 (arXiv:2012.12877).
_BASE = {"blocks": 12, "width": 768, "heads": 12}
SIZES: dict[str, dict[str, int]] = {
    "resnet50": {"pixels": 224, "batch": 256},
    "bert": {**_BASE, "tokens": 512, "vocabulary": 30522, "batch": 32},
    "vit": {**_BASE, "pixels": 224, "batch": 128},
}
_SMALLER: dict[str, dict[str, int]] = {
    "resnet50": {"batch": 8},
    "bert": {"blocks": 4, "width": 256, "heads": 4, "tokens": 128},
    "vit": {"width": 192, "heads": 3, "batch": 8},
}
_TINY = {"blocks": 1, "width": 32, "heads": 2, "tokens": 16, "vocabulary": 100}
_TINY |= {"pixels": 32, "batch": 4}
_ROUNDS, _ROUNDS_AT_ONCE, _TURN_S, _FOR_TURNS_S = 20, 5, 0.25, 30.0
_CACHES = ("XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR")  # empty ones: first steps are first steps
_FOR_JAX = {"KERAS_BACKEND": "jax", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


@dataclass(frozen=True)
class Net:
    """A net of ``nets.py`` by its name: its sizes, its batch, and what it is trained ``on``."""

    net: str
    sizes: Mapping[str, int]
    batch_size: int
    on: str = "gpu"


def net_of(name: str, on: str = "gpu", **chosen: int | None) -> Net:
    """Return a net for a GPU, a CPU or a rehearsal; its blocks and its batch may be chosen."""
    sizes = dict(SIZES[name])
    if on == "cpu":
        sizes |= _SMALLER[name]
    elif on == "rehearsal":
        sizes = {size: _TINY[size] for size in sizes}
    if chosen.get("blocks") and "blocks" not in sizes:
        raise UserError(f"{name} has no number of blocks to choose.", fix="leave --blocks out")
    sizes |= {size: number for size, number in chosen.items() if number}
    return Net(name, sizes, sizes.pop("batch"), on)


@dataclass(frozen=True)
class Side(Target):
    """What trains the net: ``job`` is a module of this folder, whose process has ``variables``."""

    variables: Mapping[str, str] = field(default_factory=dict)


PEERS = {
    "torch": Side(PYTORCH, "torch_peer"),
    "jax": Side("Keras on JAX", "jax_peer", variables=_FOR_JAX),
}


def sides(
    peers: Sequence[str], on: str = "gpu", tuned: Chain | None = None, flags: Sequence[str] = ()
) -> list[Side]:
    """Return what is compared, in the order in which it starts."""
    unknown = [each for each in peers if each not in PEERS]
    if unknown:
        raise UserError("Unknown peer.", expected="torch, jax", received=", ".join(unknown))
    if flags and on == "cpu":
        raise UserError("--xla-flags are compared on a GPU.", fix="leave them out of --on cpu")
    own = Side(CHAIN, "tfopt_peer", tuned or (TUNED_ON_CPU if on == "cpu" else TUNED))
    others = [PEERS[each] for each in peers]
    plain = Side(KERAS, "tfopt_peer")
    if on == "cpu":
        return [own, *others, plain]
    return [
        Side("Keras, mixed_bfloat16", "tfopt_peer", chain(MixedPrecision("mixed_bfloat16"))),
        own,
        *others,
        replace(own, name=f"{CHAIN}, second process"),
        *(replace(own, name=f"{CHAIN}, {each}", variables={"XLA_FLAGS": each}) for each in flags),
        plain,
    ]


class Peer(JobProcess):
    """The process of a side; the engine gives it turns as it does its own."""

    def __init__(self, side: Side, net: Net, python: str, log: Path) -> None:
        self._log, self._facts = log, dict[str, Any]()
        caches = {name: str(log.parent) for name in _CACHES}
        hidden = {} if net.on == "gpu" else {"CUDA_VISIBLE_DEVICES": "-1"}
        ours, theirs = socket.socketpair()
        with theirs, log.open("wb") as words:
            command = [python, "-m", "benchmarks.peer_process", str(theirs.fileno()), side.job]
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                cwd=ROOT,
                env={**SHARING, **os.environ, **caches, **side.variables, **hidden},
                start_new_session=True,
            )
        self.pid, self._pipe = self._process.pid, Connection(ours.detach())

    def receive(self, timeout_s: float) -> Any:
        """Return a ``Ready`` or a ``Turn``.

        Raises:
            Lost: It failed, died, or was silent for ``timeout_s``.
        """
        try:
            if not self._pipe.poll(max(timeout_s, 0)):
                raise Lost(f"it did not answer within {timeout_s:.0f} s")
            kind, value = self._pipe.recv()
        except (EOFError, ConnectionError):
            words = self._log.read_text(encoding="utf-8", errors="replace")
            raise Lost(how_it_ended(None, words)) from None
        if kind in ("refused", "failed"):
            raise Lost(value, kind)
        if kind == "facts":
            self._facts.update(value)
            return self.receive(timeout_s)
        if isinstance(value, dict):
            value = (Ready if kind == "ready" else Turn)(**value)
        if kind == "ready":  # facts that come later are among its notes too
            self._facts.update(value.notes)
            return replace(value, notes=self._facts)
        return value

    def end(self) -> None:
        """End it."""
        super().end()
        self._process.wait()


def compare_peers(
    net: Net,
    compared: Sequence[Side],
    keep: Callable[..., object],
    *,
    ends_s: float,
    python: str = sys.executable,
) -> list[dict[str, Any]]:
    """Return a row for each side; ``keep`` gets all rows whenever there is more to tell.

    It ends at ``ends_s``, on the monotonic clock. ``python`` runs PyTorch and JAX.
    """
    rounds, turn_s = (2, _TURN_S / 10) if net.on == "rehearsal" else (_ROUNDS, _TURN_S)
    with tempfile.TemporaryDirectory(prefix="peers-") as folder, Engine(turn_s=turn_s) as engine:
        candidates: list[Candidate] = []
        try:
            for side in compared:  # all load their frameworks meanwhile
                own = sys.executable if side.job == "tfopt_peer" else python
                log = Path(folder, f"{len(candidates)}.log")
                candidates.append(Candidate(side, Peer(side, net, own, log)))
            for candidate in candidates:
                _make_ready(candidate, net, ends_s - _FOR_TURNS_S)
                keep(rows=_rows(candidates, net))
            _leave_out_other_nets(candidates)
            while rounds > 0 and time.monotonic() < ends_s:
                engine.take_rounds(candidates, min(rounds, _ROUNDS_AT_ONCE), until=ends_s)
                rounds -= _ROUNDS_AT_ONCE
                keep(rows=_rows(candidates, net))
        finally:
            engine.dismiss(candidates)
        return _rows(candidates, net)


def _make_ready(candidate: Candidate, net: Net, ready_by: float) -> None:
    """Let a side take its first step, and stop it."""
    child = candidate.child
    assert child is not None
    child.send({**asdict(net), "chain": chain_to_toml(candidate.variant.chain)})
    try:
        candidate.ready = child.receive(ready_by - time.monotonic())
        child.stop()
    except Lost as lost:
        candidate.out = LATE if time.monotonic() >= ready_by else str(lost)
        candidate.status = lost.status
        child.end()


def _leave_out_other_nets(candidates: Sequence[Candidate]) -> None:
    """Leave out sides whose net has another number of parameters than the first one's."""
    found = [(each, each.ready.notes["parameters"]) for each in candidates if each.ready]
    for candidate, parameters in found:
        if parameters != found[0][1]:
            candidate.out = f"another net: {parameters:,} parameters, not {found[0][1]:,}"
            candidate.status = "failed"


def _rows(candidates: Sequence[Candidate], net: Net) -> list[dict[str, Any]]:
    return [_row(each, candidates, net) for each in candidates]


def _row(candidate: Candidate, candidates: Sequence[Candidate], net: Net) -> dict[str, Any]:
    side, ready, turns = candidate.variant, candidate.ready, candidate.turns.values()
    assert isinstance(side, Side)
    row: dict[str, Any] = {"name": side.name, "chain": repr(side.chain)}
    row |= {"variables": dict(side.variables), "reason": candidate.out or None}
    if ready is not None:
        row |= {"build_s": ready.build_s, "first_step_s": ready.first_step_s, "notes": ready.notes}
    if turns:
        row["turns_ms"] = [1000 * turn.seconds / turn.steps for turn in turns]
        row["step_ms"] = statistics.median(row["turns_ms"])
        row["examples_per_s"] = 1000 * net.batch_size / row["step_ms"]
        row["gpu_peak_mib"] = max(each.peaks["gpu_peak_mib"] or 0 for each in turns) or None
        others = [each for each in candidates if each.turns and each is not candidate]
        row["speed_against"] = {each.variant.name: _speed(each, candidate) for each in others}
    return row


def _speed(reference: Candidate, candidate: Candidate) -> dict[str, float] | None:
    """Return how many times as fast, with an interval over the rounds of one process each."""
    rounds, both = shared_rounds([reference, candidate]), (reference, candidate)
    if len(rounds) < LEAST:
        return None
    found = compare_pairs(
        *([each.turns[n].seconds / each.turns[n].steps for n in rounds] for each in both)
    )
    return {"ratio": 1 / found.ratio, "low": 1 / found.high, "high": 1 / found.low}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as a table in Markdown."""
    lines = [
        f"| | first step | a step | speed against {KERAS} | against {PYTORCH} | GPU memory |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [row["name"], f"{row['first_step_s']:.1f} s" if "first_step_s" in row else ""]
        if "step_ms" in row:
            cells.append(f"{row['step_ms']:.2f} ms")
            for name in (KERAS, PYTORCH):
                speed = row["speed_against"].get(name)
                told = "{ratio:.2f} ({low:.2f} to {high:.2f})"
                cells.append(told.format(**speed) if speed else "")
            peak = row["gpu_peak_mib"]
            cells.append("n/a" if peak is None else f"{peak:,.0f} MiB")
        else:
            cells += [row["reason"] or "no turn", "", "", ""]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(description="Train one net in Keras, tfopt, PyTorch and JAX, by turns.")
    parser.add_argument("--net", choices=list(SIZES), default="bert")
    parser.add_argument("--with", dest="peers", type=names, default=list(PEERS))
    parser.add_argument("--on", choices=["gpu", "cpu", "rehearsal"], default="gpu")
    number = partial(count, minimum=1)
    parser.add_argument("--blocks", type=number, help="of a Transformer (default: the net's)")
    parser.add_argument("--batch", type=number, help="examples in a batch (default: the net's)")
    add_flags(parser, "--chain")
    parser.add_argument("--xla-flags", action="append", default=[], help="may be repeated")
    parser.add_argument("--python", default=sys.executable, help="which has PyTorch and JAX")
    parser.add_argument("--minutes", type=float, default=9.0, help="at most (default: 9)")
    add_output(parser, "peers")
    add_flags(parser, "--debug")
    options = parser.parse_args(arguments)

    def work() -> int:
        net = net_of(options.net, options.on, blocks=options.blocks, batch=options.batch)
        tuned = read_recipe(options.chain).chain if options.chain else None
        compared = sides(options.peers, options.on, tuned, options.xla_flags)
        if options.on == "gpu" and not gpu_memories():
            fix = "--on cpu trains smaller nets in float32"
            raise UserError(
                "This machine has no GPU to compare on.", received=why_no_gpu(), fix=fix
            )
        folder = prepare_folder(options.output or "peers")
        keep = partial(save_figures, f"peers-{net.net}", folder, net=asdict(net))
        ends_s = time.monotonic() + 60 * options.minutes
        print(table(compare_peers(net, compared, keep, ends_s=ends_s, python=options.python)))
        return 0

    return exit_code_of(work, debug=options.debug, parser=parser)


if __name__ == "__main__":
    sys.exit(main())
