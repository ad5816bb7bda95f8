"""The walk: rows, reasons, interruption, the files it leaves; in this process and in real ones."""

import signal
import subprocess
import sys

import pytest
import toy_jobs
from fake_workers import FAST, REFUSED
from processes import wait_until, workers_in

from tfopt import Execution, Pipeline, Place, Quantize, UserError, chain
from tfopt.files import alone_in
from tfopt.job.job import Chain
from tfopt.measure.walk import Interrupted, Plan, walk
from tfopt.report.schema import Report

EARLIER = b"of an earlier walk"


class Recorder:
    def __init__(self):
        self.started_names, self.events, self.rows, self.published = [], [], [], []

    def started(self, name, number, total):
        assert 1 <= number <= total
        self.started_names.append(name)

    def progress(self, epoch, epochs, step):
        self.events.append((epoch, epochs, step))

    def finished(self, row):
        self.rows.append(row)


@pytest.fixture
def walked(tmp_path):
    """Walk a chain into the test's folder."""

    def carry_out(*transforms, recorder=None, job="nowhere:job", **arguments):
        recorder = recorder or Recorder()
        plan = Plan("toy", "the command", job, chain(*transforms), tmp_path, arguments)
        report = walk(plan, recorder, recorder.published.append)
        assert Report.from_json(report.to_json()) == report
        return report

    return carry_out


def by_name(report):
    return {row.name: row for row in report.rows}


def test_a_walk_on_real_trainings(walked, workers_in_process, in_toy_folder):
    recorder = Recorder()
    transforms = (Place(), Execution(steps_per_execution=4))
    report = walked(*transforms, recorder=recorder, job="toy_jobs:job")
    names = [row.name for row in report.rows]
    assert names[:3] == ["baseline", "+ Place", "+ Execution"]
    # A chain that looked worth keeping and then was not is a row all the same.
    assert names[3:] in ([["kept chain"], []] if report.nothing_kept else [["kept chain"]])
    assert [row.status for row in report.rows[:3]] == ["measured", "no_effect", "measured"]
    assert "CPU" in report.rows[1].reason
    assert "4 steps per execution" in " ".join(report.rows[2].changed)
    for row in (report.rows[0], *report.rows[2:]):
        figures = row.figures
        assert 0 < figures.step_ms_median <= figures.step_ms_p90 * 1.0001
        assert figures.batch_size == 32
        assert len(figures.epochs) == 2
        assert figures.peak_host_mib > 50
        assert figures.peak_gpu_mib is None
        assert figures.unavailable["peak_gpu_mib"]
    assert {path.name for path in in_toy_folder.iterdir()} == {"model.keras", ".tfopt-files"}


def test_rows_are_prefixes_and_end_with_the_kept_chain(walked, workers, tmp_path):
    recorder = Recorder()
    transforms = (Place(), Pipeline(batch_size=32), FAST)
    report = walked(*transforms, recorder=recorder)
    names = ["baseline", "+ Place", "+ Pipeline", "+ Execution"]
    assert [row.name for row in report.rows] == [*names, "kept chain"]
    assert [row.chain for row in report.rows[:4]] == [repr(Chain(transforms[:n])) for n in range(4)]
    assert report.rows[1].status == "no_effect"
    assert report.rows[3].changed == ("Execution is on",)
    assert report.kept.chain == report.advice.keep == repr(chain(*transforms[1:]))
    assert report.complete
    assert report.noise.ratio < 0.02
    assert [reason.split(":")[0] for reason in report.advice.dropped] == ["Place"]
    assert recorder.started_names == [*names, "baseline again"]
    # The last prefix is that very program: it is not run again, and its files are left.
    assert (tmp_path / "model.keras").read_text() == repr(chain(*transforms))
    assert {path.name for path in tmp_path.iterdir()} == {"model.keras", ".tfopt-files"}
    rows = [len(each.rows) for each in recorder.published]
    assert rows == sorted(rows)
    assert not recorder.published[0].complete
    assert len(recorder.events) == 5


def test_what_is_not_worth_keeping_is_left_out_of_the_kept_chain(walked, workers, tmp_path):
    workers.shares[Pipeline] = 1.2
    report = walked(FAST, Pipeline(batch_size=32), Quantize())
    assert report.kept.chain == report.advice.keep == repr(chain(FAST, Quantize()))
    assert [reason.split(":")[0] for reason in report.advice.dropped] == ["Pipeline"]
    left = {path.name: path.read_text() for path in tmp_path.glob("model*")}
    assert left == dict.fromkeys(("model.keras", "model_int8.tflite"), report.kept.chain)


def test_where_nothing_is_worth_keeping_the_plain_model_is_left(walked, workers, tmp_path):
    report = walked(Place())
    assert report.nothing_kept
    assert report.advice.brought == "nothing: none brought enough on this machine"
    assert [row.name for row in report.rows] == ["baseline", "+ Place"]
    assert (tmp_path / "model.keras").read_text() == "chain()"


@pytest.mark.parametrize(
    ("transform", "status", "reason"),
    [(REFUSED, "refused", "no layer to prune"), (Pipeline(batch_size=64), "failed", "SIGKILL")],
)
def test_what_did_not_run_is_a_row_and_is_left_out_afterwards(
    walked, workers, transform, status, reason
):
    workers.answer = lambda asked: "SIGKILL" if isinstance(asked.last, Pipeline) else None
    report = walked(transform, FAST)
    first, fast = report.rows[1:3]
    assert (first.status, first.reason) == (status, reason)
    assert (fast.status, fast.chain) == ("measured", repr(chain(FAST)))


def test_a_row_on_other_data_is_not_compared(walked, workers):
    def answer(asked):
        workers.data = "first" if not asked.chain.parts else "second"

    workers.answer = answer
    report = walked(FAST)
    assert report.data == "first"
    assert {row.status for row in report.rows[1:]} == {"failed"}
    assert "other data" in report.rows[1].reason


def test_a_baseline_that_cannot_train_is_one_error(walked, workers):
    workers.answer = lambda asked: "the disk of the data is gone"
    with pytest.raises(UserError, match="the disk of the data is gone"):
        walked(Place())


def test_a_file_made_after_the_training_has_the_training_of_the_job(walked, workers):
    """Whatever others do on the machine meanwhile."""
    report = walked(Place(), Quantize())
    same = {row.name: row.same_training for row in report.rows}
    assert same == {"baseline": False, "+ Place": False, "+ Quantize": True, "kept chain": True}
    assert "baseline's time" not in report.advice.brought
    # Who asks for a small model is shown what it is to serve.
    assert [row.name for row in report.serving.rows] == ["baseline", "+ Quantize"]
    assert workers.kinds()[-1] == "serving"


def test_what_cannot_be_served_is_a_note(walked, workers):
    workers.answer = lambda asked: "no LiteRT" if asked.kind == "serving" else None
    report = walked(Quantize())
    assert report.serving is None
    assert "Nothing to serve: no LiteRT" in report.notes


def test_the_files_of_an_earlier_walk_do_not_stay_beside_the_new_ones(walked, workers, tmp_path):
    for name in ("model.keras", "model_int8.tflite", "mine.tflite"):
        (tmp_path / name).touch()
    (tmp_path / ".tfopt-files").write_text("model.keras\nmodel_int8.tflite\n../x")
    walked(Place())
    assert not (tmp_path / "model_int8.tflite").exists()
    assert (tmp_path / "mine.tflite").exists()
    assert (tmp_path / "model.keras").stat().st_size


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_an_interrupt_keeps_the_rows_and_the_files_of_the_baseline(walked, workers, tmp_path, rows):
    def answer(asked):
        if len(workers.asked) > rows:
            raise KeyboardInterrupt

    workers.answer = answer
    if rows:
        (tmp_path / "model_int8.tflite").touch()
        (tmp_path / ".tfopt-files").write_text("model_int8.tflite")
    with pytest.raises(Interrupted) as stopped:
        walked(FAST, Quantize())
    report = stopped.value.report
    assert not report.complete
    if not rows:
        assert report.rows == ()
        assert list(tmp_path.iterdir()) == []
        return
    assert [row.status for row in report.rows] == ["measured"] * rows + ["interrupted"]
    assert report.rows[-1].chain == repr(chain(FAST, Quantize()) if rows == 2 else chain(FAST))
    left = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert left == {"model.keras": "chain()", ".tfopt-files": "model.keras"}


@pytest.fixture
def walker(in_toy_folder):
    """A real process that measures; its first row is there and the worker of the next runs."""
    out = in_toy_folder / "out"
    out.mkdir()
    for earlier in ("model.keras", "model_int8.tflite"):
        (out / earlier).write_bytes(EARLIER)
    (out / ".tfopt-files").write_text("model.keras\nmodel_int8.tflite")
    with subprocess.Popen(
        [sys.executable, toy_jobs.__file__],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            wait_until((out / "report.json").exists)
            wait_until(lambda: workers_in(in_toy_folder))
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    "sent", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_an_interrupt_ends_the_workers(walker, tmp_path, sent):
    """A real Ctrl-C or ``kill``, while a worker is under way."""
    with pytest.raises(UserError, match="Another measurement"), alone_in(tmp_path / "out"):
        pass
    walker.send_signal(sent)
    printed, _ = walker.communicate(timeout=60)
    assert walker.returncode == 130, printed
    assert "Interrupted" in printed
    assert "Traceback" not in printed
    assert not workers_in(tmp_path)
    report = Report.from_json((tmp_path / "out" / "report.json").read_text())
    assert [row.status for row in report.rows] == ["measured", "interrupted"]
    assert not report.complete
    left = {path.name for path in (tmp_path / "out").iterdir()}
    reports = {"report.json", "report.md", "report.html"}
    assert left == {*reports, "model.keras", ".tfopt-files", ".tfopt.lock"}
    assert (tmp_path / "out" / "model.keras").read_bytes() != EARLIER
    with alone_in(tmp_path / "out"):
        pass


@pytest.mark.slow
def test_a_walk_that_is_killed_leaves_no_worker_and_no_lock(walker, tmp_path):
    walker.kill()
    walker.communicate(timeout=60)
    wait_until(lambda: not workers_in(tmp_path), patience_s=20)
    with alone_in(tmp_path / "out"):
        pass
