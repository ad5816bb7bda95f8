"""The walk with real worker processes on a small job: rows, reasons, interruption, publishing."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tfopt import Execution, MixedPrecision, Pipeline, Place, Quantize, UserError, chain
from tfopt.files import alone_in
from tfopt.job.job import Chain
from tfopt.measure.process import run_worker
from tfopt.measure.tasks import Training, task_to_dict
from tfopt.measure.walk import Plan, walk
from tfopt.report.schema import Report

JOB = """
    import os, sys, time
    import numpy as np
    from tfopt import Data, Job

    def job(samples=256, epochs=2, trouble=None) -> Job:
        return Job(build=build, data=lambda: data(samples, trouble), compile=compile_, epochs=epochs)

    def build():
        import keras
        print("this must not reach the event stream")
        return keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(2, "softmax")])

    def compile_():
        return {"optimizer": "adam", "loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}

    def data(samples, trouble):
        if trouble == "dies":
            print("last words", file=sys.stderr, flush=True)
            os._exit(7)
        if trouble == "killed":
            os.kill(os.getpid(), 9)
        if trouble == "exits":
            import threading
            threading.Thread(target=time.sleep, args=(200,)).start()
            sys.exit("no licence")
        if trouble == "raises":
            raise RuntimeError("the disk of the data is gone")
        if trouble == "leaves a child" and os.fork() == 0:
            time.sleep(600)
            os._exit(0)
        x = np.random.default_rng(0).normal(size=(samples, 6)).astype("float32")
        y = (x.sum(axis=1) > 0).astype("int64")
        name = "toy"
        if trouble == "changes":
            from pathlib import Path
            name = "first" if not Path("seen").exists() else "second"
            Path("seen").touch()
        return Data(train=(x, y), test=(x, y), name=name)
"""


EARLIER = b"of an earlier walk"


@pytest.fixture
def job_here(tmp_path, monkeypatch):
    (tmp_path / "toy_job.py").write_text(textwrap.dedent(JOB))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "toy_job:job"


class Recorder:
    def __init__(self):
        self.started_names, self.events, self.rows = [], [], []

    def started(self, name, number, total):
        self.started_names.append(name)

    def progress(self, epoch, epochs, step):
        self.events.append((epoch, epochs, step))

    def finished(self, row):
        self.rows.append(row)


def worker(job, *transforms, **arguments):
    return run_worker(
        Training(),
        job=job,
        arguments=arguments,
        chain=chain(*transforms),
        skip_if_idle=True,
    )


def test_rows_are_prefixes_and_end_with_the_kept_chain(job_here, tmp_path):
    transforms = chain(Place(), Pipeline(batch_size=32), Execution(steps_per_execution=4))
    recorder, published = Recorder(), []
    (tmp_path / "out").mkdir()
    plan = Plan("toy", "the command", job_here, transforms, tmp_path / "out")
    report = walk(plan, recorder, published.append)

    names = [row.name for row in report.rows]
    assert names[:4] == ["baseline", "+ Place", "+ Pipeline", "+ Execution"]
    # A chain that looked worth keeping and then was not is a row all the same.
    assert names[4:] in ([["kept chain"], []] if report.nothing_kept else [["kept chain"]])
    assert [row.status for row in report.rows[:4]] == [
        "measured",
        "no_effect",
        "measured",
        "measured",
    ]
    assert [row.chain for row in report.rows[:4]] == [
        repr(Chain(transforms.parts[:n])) for n in range(4)
    ]
    assert report.complete
    assert report.noise is not None
    assert report.advice is not None
    assert any("Place" in reason for reason in report.advice.dropped)
    assert "CPU" in report.rows[1].reason
    assert "4 steps per execution" in " ".join(report.rows[3].changed)
    for row in (report.rows[0], *report.rows[2:]):
        figures = row.figures
        assert 0 < figures.step_ms_median <= figures.step_ms_p90 * 1.0001
        assert figures.batch_size == 32
        assert len(figures.epochs) == 2
        assert figures.peak_host_mib > 50
        assert figures.peak_gpu_mib is None
        assert figures.unavailable["peak_gpu_mib"]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"model.keras", ".tfopt-files"}
    assert [len(r.rows) for r in published] == sorted(len(r.rows) for r in published)
    assert not published[0].complete
    assert Report.from_json(report.to_json()) == report
    assert recorder.events


@pytest.mark.parametrize(
    ("trouble", "status", "words"),
    [
        ("dies", "failed", "last words"),
        ("killed", "failed", "SIGKILL"),
        ("raises", "failed", "the disk of the data is gone"),
    ],
)
def test_a_worker_that_dies_is_told_with_its_last_words(job_here, trouble, status, words):
    result = worker(job_here, trouble=trouble)
    assert result.status == status
    assert words in result.reason
    assert result.value is None


def worker_alone(job, folder, result, patience_s):
    """The worker without its parent, which would wait for it: one that never ends is seen."""
    spec = {"job": job, "arguments": {"trouble": "exits"}, "chain": [], "skip_if_idle": False}
    spec |= {"seed": None, "task": task_to_dict(Training())}
    (folder / "spec.json").write_text(json.dumps(spec))
    command = [sys.executable, "-m", "tfopt.measure.worker", "spec.json", result]
    return subprocess.run(command, timeout=patience_s, check=False, capture_output=True, text=True)


def test_sys_exit_is_told_and_ends_the_worker_though_a_thread_goes_on(job_here, tmp_path):
    assert worker_alone(job_here, tmp_path, "result.json", 60).returncode == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert result == {"error": "the job called sys.exit('no licence')", "user_error": False}


def test_a_result_that_cannot_be_written_ends_the_worker_too(job_here, tmp_path):
    done = worker_alone(job_here, tmp_path, "nowhere/result.json", 60)
    assert done.returncode == 1
    assert "could not be written" in done.stderr


def test_a_process_that_the_job_leaves_behind_holds_nothing_up(job_here, tmp_path):
    assert worker(job_here, trouble="leaves a child").status == "measured"
    wait_until(lambda: not _workers_of(tmp_path), patience_s=20)


def test_a_baseline_that_cannot_train_is_one_error(job_here, tmp_path):
    plan = Plan("toy", "", job_here, chain(Place()), tmp_path, {"trouble": "raises"})
    with pytest.raises(UserError, match="the disk of the data is gone"):
        walk(plan, Recorder(), lambda report: None)


@pytest.mark.slow
def test_a_row_on_other_data_is_not_compared(job_here, tmp_path):
    plan = Plan(
        "toy",
        "",
        job_here,
        chain(Execution(steps_per_execution=2)),
        tmp_path,
        {"trouble": "changes"},
    )
    report = walk(plan, Recorder(), lambda report: None)
    assert report.data == "first"
    assert {row.status for row in report.rows[1:]} == {"failed"}
    assert "other data" in report.rows[1].reason


@pytest.mark.slow
def test_a_refused_transform_is_a_row_and_is_left_out_afterwards(job_here, tmp_path):
    transforms = chain(Pipeline(cache="file:/proc/nowhere/cache"), Execution(steps_per_execution=2))
    report = walk(Plan("toy", "", job_here, transforms, tmp_path), Recorder(), lambda report: None)
    assert report.rows[1].status == "refused"
    assert "cache" in report.rows[1].reason
    assert report.rows[2].chain == repr(chain(Execution(steps_per_execution=2)))
    assert report.rows[2].status == "measured"


def test_one_execution_only_has_no_step_time_but_a_reason(job_here):
    figures = worker(job_here, samples=32, epochs=1).value
    assert figures.step_ms_median is None
    assert "one execution" in figures.unavailable["step_ms_median"]
    assert figures.train_s > 0


def test_an_idle_precision_is_not_measured_again(job_here):
    result = worker(job_here, MixedPrecision("float32"))
    assert result.status == "no_effect"
    assert "float32 already" in result.reason


@pytest.fixture
def walker(job_here, tmp_path):
    """A real process that measures; its first row is there and the worker of the next runs."""
    script = tmp_path / "walker.py"
    script.write_text(
        textwrap.dedent(f"""
        import sys
        from pathlib import Path
        from tfopt import Execution, chain
        from tfopt.recipes.recipe_main import measure_and_show
        sys.exit(measure_and_show(title="toy", command="walker", job={job_here!r}, output=Path("out"),
                 chain=chain(Execution(steps_per_execution=2)), arguments={{}}))
    """)
    )
    (tmp_path / "out").mkdir()
    for earlier in ("model.keras", "model_int8.tflite"):
        (tmp_path / "out" / earlier).write_bytes(EARLIER)
    (tmp_path / "out" / ".tfopt-files").write_text("model.keras\nmodel_int8.tflite")
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            wait_until((tmp_path / "out" / "report.json").exists)
            wait_until(lambda: _workers_of(tmp_path))
            yield process
        finally:
            process.kill()


def wait_until(condition, patience_s=90):
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_workers_and_keeps_the_rows(walker, tmp_path, sent):
    """A real Ctrl-C or ``kill``, while a worker is under way."""
    walker.send_signal(sent)
    printed, _ = walker.communicate(timeout=60)
    assert walker.returncode == 130, printed
    assert "Interrupted" in printed
    assert "Traceback" not in printed
    assert not _workers_of(tmp_path)
    report = Report.from_json((tmp_path / "out" / "report.json").read_text())
    assert report.rows[0].status == "measured"
    assert not report.complete
    assert report.rows[-1].status == "interrupted"
    left = {path.name for path in (tmp_path / "out").iterdir()}
    reports = {"report.json", "report.md", "report.html"}
    assert left == {*reports, "model.keras", ".tfopt-files", ".tfopt.lock"}
    assert (tmp_path / "out" / "model.keras").read_bytes() != EARLIER


@pytest.mark.slow
def test_a_walk_that_is_killed_leaves_no_worker(walker, tmp_path):
    walker.kill()
    walker.communicate(timeout=60)
    wait_until(lambda: not _workers_of(tmp_path), patience_s=20)


def test_a_second_walk_in_the_same_folder_is_refused(walker, tmp_path):
    with pytest.raises(UserError, match="Another measurement"), alone_in(tmp_path / "out"):
        pass
    walker.kill()
    walker.communicate(timeout=60)
    with alone_in(tmp_path / "out"):
        pass


@pytest.mark.slow
def test_the_files_of_an_earlier_walk_do_not_stay_beside_the_new_ones(job_here, tmp_path):
    for name in ("model.keras", "model_int8.tflite", "mine.tflite"):
        (tmp_path / name).touch()
    (tmp_path / ".tfopt-files").write_text("model.keras\nmodel_int8.tflite\n../x")
    walk(Plan("toy", "", job_here, chain(Place()), tmp_path), Recorder(), lambda _: None)
    assert not (tmp_path / "model_int8.tflite").exists()
    assert (tmp_path / "mine.tflite").exists()
    assert (tmp_path / "model.keras").stat().st_size


@pytest.mark.slow
def test_a_file_made_after_the_training_has_the_training_of_the_job(job_here, tmp_path):
    """Whatever others do on the machine meanwhile."""
    transforms = chain(Place(), Quantize("float16"))
    report = walk(Plan("toy", "", job_here, transforms, tmp_path), Recorder(), lambda _: None)
    told = {row.name: row.same_training for row in report.rows[:3]}
    assert told == {"baseline": False, "+ Place": False, "+ Quantize": True}
    assert report.kept is None or report.kept.same_training
    assert "baseline's time" not in report.advice.brought


@pytest.mark.slow
def test_where_nothing_is_worth_keeping_the_plain_model_is_left(job_here, tmp_path):
    report = walk(Plan("toy", "", job_here, chain(Place()), tmp_path), Recorder(), lambda _: None)
    assert report.nothing_kept
    assert report.advice.brought == "nothing: none brought enough on this machine"
    assert [row.name for row in report.rows] == ["baseline", "+ Place"]
    assert (tmp_path / "model.keras").exists()


def _workers_of(folder):
    """Processes still working in this folder."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and os.readlink(process / "cwd") == str(folder):
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return [line for line in found if "tfopt.measure.worker" in line]


def test_the_event_stream_is_json_whatever_the_job_prints(job_here, tmp_path):
    spec = {"job": job_here, "arguments": {}, "chain": [], "skip_if_idle": False}
    spec |= {"seed": None, "task": task_to_dict(Training())}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    done = subprocess.run(
        [sys.executable, "-m", "tfopt.measure.worker", "spec.json", "result.json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events[0] == {"epoch": 0, "epochs": 2, "step": 0}
    assert "this must not reach" in done.stderr
