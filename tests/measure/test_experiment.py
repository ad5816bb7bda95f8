"""A whole experiment on real processes: walk, ablation, pair; refused links, seeds, resumption."""

import textwrap

import pytest

from tfopt import Execution, Pipeline, Place, Prune, UserError, chain
from tfopt.measure.advice import Choice
from tfopt.measure.blocks import Span
from tfopt.measure.experiment import Experiment, Interrupted, carry_out
from tfopt.measure.rounds import Budget
from tfopt.measure.targets import Target
from tfopt.report.bench.bench_report import BenchReport

JOB = """
    import keras
    import numpy as np
    from tfopt import Data, Job

    def job(size=12800, note="", seed=0) -> Job:
        def data():
            x = np.random.default_rng(0).normal(size=(size, 6)).astype("float32")
            y = (x.sum(axis=1) > 0).astype("int64")
            return Data(train=(x, y), test=(x[:500], y[:500]), name="toy", note=note)

        return Job(build=build, data=data, compile=compile_, epochs=2, seed=seed)

    def build():
        return keras.Sequential(
            [keras.Input((6,)), keras.layers.Dense(16), keras.layers.Dense(2, "softmax")]
        )

    def compile_():
        return {
            "optimizer": "adam",
            "loss": "sparse_categorical_crossentropy",
            "metrics": ["accuracy"],
        }
"""
SPAN = Span(windows=4, window_ms=20.0, warm_up_s=0.05)
FAST = Execution(steps_per_execution=20)
# A chain that cannot run: pruning needs a kernel to prune, and this one names none.
REFUSED = Prune(0.5, layers="no_such_layer")


class Recorder:
    def __init__(self):
        self.did, self.stop_after = [], None

    def doing(self, what, variant, left_s):
        self.did.append((what, variant, left_s))
        if self.stop_after is not None and len(self.blocks()) > self.stop_after:
            raise KeyboardInterrupt

    def blocks(self):
        return [(what, variant) for what, variant, _ in self.did if what.startswith("round")]

    def rehearsed(self, found):
        pass

    def block_ended(self, variant, block):
        pass

    def left_out(self, variant, reason):
        pass

    def round_ended(self, report):
        assert BenchReport.from_json(report.to_json()) == report
        assert not report.complete


@pytest.fixture
def carried_out(tmp_path, monkeypatch):
    (tmp_path / "toy_pkg.py").write_text(textwrap.dedent(JOB))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def carry(kind, *targets, recorder=None, resume=False, **settings):
        settings = {"studies": 0, "seeds": 0, **settings}
        experiment = Experiment("toy", "tfopt bench", kind, targets, SPAN, Budget(2, 2), **settings)
        return carry_out(experiment, tmp_path, recorder or Recorder(), resume=resume)

    return carry


def target(*transforms, name="toy", **arguments):
    return Target(name, "toy_pkg:job", chain(*transforms), arguments)


@pytest.mark.slow
def test_a_walk_tells_refusals_seeds_and_what_to_keep(carried_out):
    recorder = Recorder()
    links = (Place(), REFUSED, FAST, Pipeline(batch_size=64))
    report = carried_out("prefixes", target(*links), recorder=recorder, seeds=2)
    assert report.complete
    rows = {row.name: row for row in report.variants}
    assert list(rows) == ["baseline", "+ Place", "+ Prune", "+ Execution", "+ Pipeline"]
    assert rows["+ Place"].status == "no_effect"
    assert "CPU" in rows["+ Place"].reason
    assert rows["+ Prune"].status == "refused"
    assert "no layer to prune" in rows["+ Prune"].reason
    # What is refused or does nothing here is in no later row.
    assert rows["+ Pipeline"].chain == repr(chain(FAST, Pipeline(batch_size=64)))

    fast = rows["+ Execution"]
    assert len(fast.blocks) == 2
    assert fast.against_reference == fast.against_previous
    assert fast.against_reference.ratio < 0.8
    assert rows["+ Pipeline"].scaling == "global batch 64 instead of 32, compared by example"
    assert rows["baseline"].against_reference is None

    # Only the pipeline trains other weights: it alone is trained, and the job as it is.
    trained = [variant for what, variant, _ in recorder.did if what.startswith("training")]
    assert trained == ["baseline"] * 2 + ["+ Pipeline"] * 2
    quality = rows["+ Pipeline"].quality
    assert quality.metric == "test accuracy"
    assert quality.seeds == (0, 1)
    assert len(set(quality.reference)) == 2, "another seed trains another model"
    assert "exact" in fast.unavailable["quality"]
    assert [reason.split(":")[0] for reason in report.recommendation.dropped][:2] == [
        "Place",
        "Prune",
    ]
    assert "left out with --studies 0" in fast.unavailable["split"]
    # The least time left cannot be more than the most, and shrinks.
    lefts = [left for _, _, left in recorder.did if left is not None]
    assert all(0 < least <= most for least, most in lefts)
    assert lefts[-1] < lefts[0]


@pytest.mark.slow
def test_an_ablation_compares_the_whole_with_each_link_left_out(carried_out):
    links = (Place(), FAST, Pipeline(shuffle=False))
    recorder = Recorder()
    report = carried_out("ablation", target(*links), recorder=recorder, seeds=1)
    rows = {row.name: row for row in report.variants}
    # What is kept depends on the machine's noise, and may be a row of its own at the end.
    assert list(rows)[:4] == ["whole chain", "- Execution", "- Pipeline", "+ Place"]
    assert rows["whole chain"].chain == repr(chain(FAST, Pipeline(shuffle=False)))
    assert rows["- Execution"].chain == repr(chain(Pipeline(shuffle=False)))
    assert rows["- Execution"].against_reference.ratio > 1.2
    assert "only a walk" in rows["- Execution"].unavailable["against_previous"]
    assert rows["+ Place"].status == "no_effect"
    assert report.recommendation is not None
    # What is lost is lost from the job under no chain, which is trained for that.
    trained = [variant for what, variant, _ in recorder.did if what.startswith("training")]
    assert trained[:3] == ["plain job", "whole chain", "- Execution"]
    assert rows["whole chain"].quality.seeds == (0,)
    assert "exact" in rows["- Pipeline"].unavailable["quality"]
    assert any("the job under no chain" in note for note in report.notes)


@pytest.mark.slow
def test_the_chain_to_keep_is_measured_as_a_whole(carried_out, monkeypatch):
    # Fixed, since two rounds leave it to the machine's noise: the second link, which never ran
    # without the first.
    choice = Choice(chain(FAST), ("Pipeline: it is slower",), None, chain())
    monkeypatch.setattr("tfopt.measure.assemble.choose", lambda kind, rows: choice)
    links = (Pipeline(batch_size=64), FAST)
    report = carried_out("prefixes", target(*links))
    *_, last, whole = report.variants
    assert (last.name, whole.name) == ("+ Execution", "kept chain")
    assert whole.chain == repr(chain(FAST)) == report.recommendation.keep
    assert whole.against_reference.rounds == 2
    assert whole.against_reference.ratio < 0.8
    assert f"{whole.against_reference.ratio:.3f} of the time" in report.recommendation.brought
    assert report.recommendation.dropped == choice.dropped
    # In rounds of its own beside the reference, which had no say in the choice.
    assert [block.round for block in last.blocks] == [0, 1]
    assert [block.round for block in whole.blocks] == [2, 3]
    assert [block.round for block in report.reference.blocks] == [0, 1, 2, 3]
    assert last.against_reference.rounds == 2

    again = Recorder()
    resumed = carried_out("prefixes", target(*links), recorder=again, resume=True)
    assert again.blocks() == []
    assert resumed.variants == report.variants


@pytest.mark.slow
def test_two_jobs_are_compared_only_on_the_same_data(carried_out):
    slow, fast = target(name="old"), target(FAST, name="new", note="of another day")
    report = carried_out("pair", slow, fast, any_data=True)
    assert [row.name for row in report.variants] == ["old", "new"]
    assert report.variants[1].against_reference.ratio < 0.8
    assert "forced: other data" in report.variants[1].scaling
    assert report.recommendation is None
    with pytest.raises(UserError, match="not on the data of what it is compared with"):
        carried_out("pair", slow, fast, resume=True)


def test_a_stopped_experiment_is_a_report_and_goes_on(carried_out):
    stopped = Recorder()
    stopped.stop_after = 2  # in the second round, which has one block by then
    with pytest.raises(Interrupted) as caught:
        carried_out("prefixes", target(FAST), recorder=stopped)
    report = caught.value.report
    assert not report.complete
    assert report.recommendation is None
    assert BenchReport.from_json(report.to_json()) == report
    assert "fewer than two rounds" in report.variants[1].unavailable["against_reference"]

    resumed = Recorder()
    report = carried_out("prefixes", target(FAST), recorder=resumed, resume=True)
    assert report.complete
    assert not any(what == "rehearsing" for what, _, _ in resumed.did)
    assert len(resumed.blocks()) == 2
    with pytest.raises(UserError, match="another one"):
        carried_out("prefixes", target(Pipeline()), resume=True)


@pytest.mark.parametrize("change", ["job", "variable"])
def test_blocks_of_other_code_or_surroundings_are_not_mixed_in(
    carried_out, tmp_path, monkeypatch, change
):
    """Outside git, or in a folder with edits anyway, only the files themselves tell."""
    monkeypatch.chdir(tmp_path)
    code = tmp_path / "toy_pkg.py"
    stopped = Recorder()
    stopped.stop_after = 0
    with pytest.raises(Interrupted):
        carried_out("single", target(), recorder=stopped)
    assert (tmp_path / "blocks/plan.json").exists()
    if change == "job":
        code.write_text(code.read_text().replace("Dense(16)", "Dense(1600)"))
    else:
        monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    with pytest.raises(UserError, match="another one") as caught:
        carried_out("single", target(), resume=True)
    assert (
        caught.value.received
        == {
            "job": "other job's code",
            "variable": "other environment variables (TF_ENABLE_ONEDNN_OPTS)",
        }[change]
    )


@pytest.mark.slow
def test_what_failed_is_tried_again_when_it_goes_on(carried_out, tmp_path, monkeypatch):
    """A process that the system killed, as where memory ran out."""
    code = tmp_path / "toy_pkg.py"
    dies = "        if Path('no_memory').exists():\n            os.kill(os.getpid(), 9)\n"
    text = code.read_text().replace("    def data():\n", f"    def data():\n{dies}")
    code.write_text(f"import os\nfrom pathlib import Path\n{text}")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "no_memory").touch()
    with pytest.raises(UserError, match="SIGKILL"):
        carried_out("single", target())
    (tmp_path / "no_memory").unlink()
    assert carried_out("single", target(), resume=True).complete


def test_a_job_that_cannot_be_trained_is_told_before_anything_is_measured(carried_out):
    with pytest.raises(
        UserError,
        match=r"cannot be trained as it is(.|\n)*integer.*\(toy_pkg.py, line \d+, in data\)",
    ):
        carried_out("single", target(size="many"))
