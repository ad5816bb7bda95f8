"""Peers by turns: the protocol without TensorFlow, stand-ins for frameworks, and tfopt's own side."""

import importlib
import math
import multiprocessing
import time
from pathlib import Path

import pytest

import tfopt
from tfopt.job.recipe_file import chain_to_toml
from tfopt.measure.turn_taking import Ready, Turn

ROOT = Path(__file__).parents[2]

STAND_IN = """
import os, time
from benchmarks.peer_process import turns

def train(pipe, net, sizes, batch_size, on, chain):
    kind = os.environ["KIND"]
    if kind == "crashes":
        print("a kernel went wrong", flush=True)
        os.abort()
    if kind == "fails":
        raise ValueError("no such kernel\\nand more")
    facts = {"what": kind, "parameters": 7 if kind == "another" else 5}
    clock = turns(pipe, facts, 0.5, time.sleep, lambda: 100.0)
    next(clock)
    while True:
        clock.send(0.03 if kind == "slow" else 0.001)
"""


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return lambda name: importlib.import_module(f"benchmarks.{name}")


def test_a_turn_plans_its_steps_and_waits_for_the_device_only_between_them(load, monkeypatch):
    now, waits = [0.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    ours, theirs = multiprocessing.Pipe()
    clock = load("peer_process").turns(theirs, {"parameters": 5}, 0.5, waits.append, lambda: None)
    next(clock)
    ours.send(6.0)
    ours.send(0.0)
    for step in range(8):
        now[0] += 1.0
        clock.send(step)
    (_, ready), (_, turn) = ours.recv(), ours.recv()
    assert Ready(**ready).first_step_s == 1.0
    assert Ready(**ready).notes == {"parameters": 5}
    assert Turn(**turn) == Turn(6, 6.0, 7.0, {"gpu_peak_mib": None})
    assert waits == [0, 1, 2, 7]


def test_sides_take_turns_and_one_that_cannot_is_a_row(load, tmp_path, monkeypatch):
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    (folder / "stand_in.py").write_text(STAND_IN, encoding="utf-8")
    (folder / "needs_more.py").write_text("import no_such_framework", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    peers = load("peers")
    kinds = {"Keras": "slow", "PyTorch": "quick"}
    kinds |= {each: each for each in ("another", "fails", "crashes")}
    sides = [peers.Side(n, "stand_in", variables={"KIND": kind}) for n, kind in kinds.items()]
    sides.append(peers.Side("Keras on JAX", "needs_more"))
    kept = []
    rows = peers.compare_peers(
        peers.net_of("bert", "rehearsal"),
        sides,
        lambda rows: kept.append(rows),
        ends_s=time.monotonic() + 120,
    )
    slow, quick, another, fails, crashes, missing = rows
    assert kept[-1] == rows
    assert kept[0][0]["first_step_s"] >= 0.03
    assert (slow["build_s"], slow["gpu_peak_mib"], slow["reason"]) == (0.5, 100.0, None)
    (gained,), (lost,) = quick["speed_against"].values(), slow["speed_against"].values()
    assert quick["speed_against"].keys() == {"Keras"}
    assert gained["low"] <= gained["ratio"] <= gained["high"]
    assert gained["ratio"] == pytest.approx(1 / lost["ratio"])
    assert another["reason"] == "another net: 7 parameters, not 5"
    assert fails["reason"] == "ValueError: no such kernel"
    assert crashes["reason"].endswith("its last output: a kernel went wrong")
    assert missing["reason"] == "no_such_framework is not installed"
    told = peers.table(rows).splitlines()
    assert told[-1] == "| Keras on JAX |  | no_such_framework is not installed |  |  |  |"
    assert told[3].startswith("| PyTorch | 0.0 s | ")
    assert told[3].endswith(" |  | 100 MiB |")


@pytest.mark.parametrize("net", [pytest.param("resnet50", marks=pytest.mark.slow), "bert", "vit"])
def test_tfopts_side_speaks_the_same_protocol(load, net):
    peers, nets = load("peers"), load("nets")

    class Pipe:
        def __init__(self):
            self.sent, self.windows = [], [0.0]

        def send(self, message):
            self.sent.append(message)

        def recv(self):
            if not self.windows:
                raise EOFError
            return self.windows.pop()

    pipe, small = Pipe(), peers.net_of(net, "rehearsal")
    way = tfopt.chain(tfopt.Pipeline(), tfopt.Execution(jit_compile=False))
    with pytest.raises(EOFError):
        load("tfopt_peer").train(
            pipe, net, dict(small.sizes), 1, on="rehearsal", chain=chain_to_toml(way)
        )
    (_, facts), (_, ready), (_, turn) = pipe.sent
    model = nets.build(net, small.sizes)
    assert facts["parameters"] == sum(math.prod(each.shape) for each in model.trainable_weights)
    assert isinstance(ready, Ready)
    assert turn.steps > 0
    assert "gpu_peak_mib" in turn.peaks


def test_on_a_cpu_nets_are_smaller_and_sides_that_need_a_gpu_are_left_out(load):
    peers = load("peers")
    assert [side.name for side in peers.sides(["torch"], "cpu")] == [
        "the chain",
        "PyTorch",
        "Keras",
    ]
    with pytest.raises(tfopt.UserError, match="on a GPU"):
        peers.sides([], "cpu", flags=["--xla_gpu_autotune_level=0"])
    small = peers.net_of("bert", "cpu", blocks=2)
    assert (small.sizes["blocks"], small.sizes["width"], small.batch_size) == (2, 256, 32)
    with pytest.raises(tfopt.UserError, match="no number of blocks"):
        peers.net_of("resnet50", "cpu", blocks=2)


def test_without_a_gpu_it_refuses(load, monkeypatch, tmp_path, capsys):
    peers = load("peers")
    monkeypatch.setattr(peers, "gpu_memories", list)
    assert peers.main(["--output", str(tmp_path / "peers")]) == 2
    assert "fix: --on cpu" in capsys.readouterr().err
    assert not (tmp_path / "peers").exists()
