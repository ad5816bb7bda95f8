"""Rounds of blocks: random order from a seed, resumed where they stopped, reasons kept."""

import json
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tfopt import Execution, Pipeline, UserError, chain
from tfopt.measure.blocks import Span
from tfopt.measure.rounds import Budget, RoundsPlan, measure_rounds
from tfopt.measure.variant import Variant

JOB = """
    from pathlib import Path
    import keras
    import numpy as np
    from tfopt import Data, Job

    def job(broken=False, broken_after="") -> Job:
        if broken or broken_after and Path(broken_after).exists():
            raise RuntimeError("the disk of the data is gone")
        if broken_after:
            Path(broken_after).touch()
        return Job(build=build, data=data, compile=compile_)

    def build():
        return keras.Sequential([keras.Input((6,)), keras.layers.Dense(2, "softmax")])

    def compile_():
        return {"optimizer": "adam", "loss": "sparse_categorical_crossentropy"}

    def data():
        x = np.random.default_rng(0).normal(size=(12800, 6)).astype("float32")
        return Data(train=(x, (x.sum(axis=1) > 0).astype("int64")), name="toy")
"""
SPAN = Span(windows=5, window_ms=20.0, warm_up_s=0.05)
JOB_NAME = "rounds_pkg:job"
BASELINE = Variant("baseline", JOB_NAME)
FAST = Variant("+ Execution", JOB_NAME, chain(Execution(steps_per_execution=20)))


class Recorder:
    def __init__(self):
        self.blocks, self.ended, self.reasons = [], [], {}

    def block_starts(self, variant, round_):
        self.blocks.append((round_, variant.name))

    def block_ended(self, variant, block):
        self.ended.append((variant.name, block))

    def left_out(self, variant, reason):
        self.reasons[variant.name] = reason


@pytest.fixture
def plan(tmp_path, monkeypatch):
    (tmp_path / "rounds_pkg.py").write_text(textwrap.dedent(JOB))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def make(*variants, rounds=2, **settings):
        budget = Budget(at_least=rounds, at_most=rounds)
        return RoundsPlan(variants, span=SPAN, budget=budget, **settings)

    return make


@pytest.mark.slow
def test_two_variants_are_measured_and_compared(plan, tmp_path):
    recorder = Recorder()
    found = measure_rounds(plan(BASELINE, FAST), tmp_path / "blocks", recorder)
    assert [len(found.blocks(name)) for name in found.names] == [2, 2]
    # Twenty steps for each call of Python's: several times as fast, whatever the machine does.
    comparison = found.compared("baseline", "+ Execution")
    assert comparison.ratio < 0.8
    assert comparison.rounds == 2
    assert sorted(recorder.blocks) == sorted((n, v) for n in range(2) for v in found.names)
    assert len(recorder.ended) == 4


@pytest.mark.slow
def test_a_variant_that_fails_keeps_its_earlier_blocks(plan, tmp_path):
    fails = Variant("+ fails", JOB_NAME, arguments={"broken_after": str(tmp_path / "once")})
    recorder = Recorder()
    found = measure_rounds(plan(BASELINE, fails), tmp_path / "blocks", recorder)
    assert "the disk of the data is gone" in found.left_out["+ fails"]
    assert recorder.reasons == found.left_out
    assert [len(found.blocks(name)) for name in ("baseline", "+ fails")] == [2, 1]
    assert found.names == ["baseline"]


@pytest.mark.slow
def test_a_block_that_the_machine_spoiled_is_measured_again_and_not_counted(plan, tmp_path):
    """The store's own format stands in for a GPU that throttles: none is there to heat."""
    folder = tmp_path / "blocks"
    measure_rounds(plan(BASELINE, FAST), folder, Recorder())
    for number, times in ((1, 1), (0, 3)):
        (path,) = folder.glob(f"*-00{number}-01.json")
        content = json.loads(path.read_text())
        content[0]["invalid"] = "the GPU was too hot"
        path.write_text(json.dumps(content * times))
    recorder = Recorder()
    found = measure_rounds(plan(BASELINE, FAST), folder, recorder, resume=True)
    # One more try in the second round, none in the first, which had its three.
    assert recorder.blocks == [(1, "+ Execution")]
    assert [len(tried) for tried in found.tries["+ Execution"]] == [3, 2]
    assert found.compared("baseline", "+ Execution") is None


@pytest.mark.slow
def test_a_larger_batch_is_compared_by_the_example(plan, tmp_path):
    large = Variant("+ Pipeline", JOB_NAME, chain(Pipeline(batch_size=320)))
    found = measure_rounds(plan(BASELINE, large), tmp_path / "blocks", Recorder())
    steps = [found.blocks(name)[0].step_ms for name in ("baseline", "+ Pipeline")]
    ratio = found.compared("baseline", "+ Pipeline").ratio
    assert ratio == pytest.approx(steps[1] / steps[0] / 10, rel=0.5)


def test_the_order_is_random_and_comes_from_the_seed(plan):
    variants = [Variant(str(number), JOB_NAME) for number in range(5)]

    def orders(seed):
        made = plan(*variants, seed=seed)
        return [tuple(made.order(number)) for number in range(6)]

    assert orders(0) == orders(0) != orders(1)
    assert len(set(orders(0))) > 3
    assert all(sorted(order) == list(range(5)) for order in orders(0))


@pytest.mark.slow
def test_a_killed_measurement_goes_on_where_it_stopped(plan, tmp_path):
    """Killed for real, after its first block is on disk."""
    script = tmp_path / "measure.py"
    script.write_text(
        textwrap.dedent(f"""
        from pathlib import Path
        from tests_rounds import *
        measure_rounds(RoundsPlan((BASELINE, FAST), span=SPAN, budget=Budget(2, 2)), Path({str(tmp_path / "blocks")!r}), Recorder())
    """)
    )
    (tmp_path / "tests_rounds.py").write_text(Path(__file__).read_text())
    killed = subprocess.Popen([sys.executable, str(script)])
    deadline = time.monotonic() + 120
    while not list((tmp_path / "blocks").glob("*-000-*.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    before = {path.name: path.read_text() for path in (tmp_path / "blocks").glob("*-00*.json")}
    assert 1 <= len(before) < 4

    recorder = Recorder()
    found = measure_rounds(plan(BASELINE, FAST), tmp_path / "blocks", recorder, resume=True)
    assert [len(found.blocks(name)) for name in found.names] == [2, 2]
    assert len(recorder.blocks) == 4 - len(before)
    for name, content in before.items():
        assert (tmp_path / "blocks" / name).read_text() == content


def test_only_the_same_measurement_is_resumed(plan, tmp_path):
    with pytest.raises(UserError, match="nothing to resume"):
        measure_rounds(plan(BASELINE, FAST), tmp_path, Recorder(), resume=True)
    (tmp_path / "plan.json").write_text(json.dumps(plan(BASELINE, FAST, seed=3).told()))
    with pytest.raises(UserError, match="another one") as caught:
        measure_rounds(plan(BASELINE, FAST), tmp_path, Recorder(), resume=True)
    assert "seed" in caught.value.expected


def test_a_reference_that_cannot_run_ends_it_with_the_reason(plan, tmp_path):
    broken = Variant("baseline", JOB_NAME, arguments={"broken": True})
    with pytest.raises(UserError, match="disk of the data is gone"):
        measure_rounds(plan(broken, FAST), tmp_path / "blocks", Recorder())


def test_a_damaged_block_is_told_by_its_file(plan, tmp_path):
    folder = tmp_path / "blocks"
    measure_rounds(plan(BASELINE), folder, Recorder())
    (path,) = folder.glob("*-000-00.json")
    path.write_text("[{")
    with pytest.raises(UserError, match=r"000-00.json is damaged"):
        measure_rounds(plan(BASELINE), folder, Recorder(), resume=True)
