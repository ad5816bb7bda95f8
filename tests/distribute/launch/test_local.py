"""A job on this machine: places, marked lines, one end for all, restarts, nothing left behind."""

import io
import json
import os
import re
import signal
import sys

import pytest
from on_workers import LIMIT_S
from processes import wait_until

from tfopt.distribute.launch import attempt
from tfopt.distribute.launch.communication import cuda_names, gpus_per_task
from tfopt.distribute.launch.local import LocalJob, launch_here, tasks_here
from tfopt.errors import UserError

from .conftest import tfopt_launch


def test_each_task_finds_its_place_and_its_gpus_and_its_lines_are_marked(launcher):
    code, out, err = launcher.run(
        "--workers 2",
        environment={"CUDA_VISIBLE_DEVICES": "3,GPU-aa,1,0", "NCCL_DEBUG": "TRACE"},
        code="""
            import os, sys
            print(os.environ["TF_CONFIG"], os.environ["TFOPT_RESTART"])
            print("gpus", os.environ["CUDA_VISIBLE_DEVICES"], os.environ["NCCL_DEBUG"])
            sys.stderr.write("warning\\nno end of line")
            os.write(1, b"\\xff bytes as they are\\r\\n10%\\r20%\\r\\n")
            os.write(1, b"last line")
        """,
    )
    assert code == 0, err
    marked = [line.partition("] ") for line in out.splitlines()]
    assert {mark for mark, _, _ in marked} == {"[worker 0", "[worker 1"}
    places = {}
    for mark, _, text in marked:
        if text.startswith("{"):
            config, _, restart = text.rpartition(" ")
            places[mark] = json.loads(config)
            assert restart == "0"
    first, second = places["[worker 0"], places["[worker 1"]
    assert first["cluster"] == second["cluster"]
    assert len(set(first["cluster"]["worker"])) == 2
    assert (first["task"]["index"], second["task"]["index"]) == (0, 1)
    lines = err.splitlines()
    assert {"[worker 1] warning", "[worker 1] no end of line"} <= set(lines)
    ends = [text for mark, _, text in marked if mark == "[worker 0"][1:]
    assert ends[0] == "gpus 3,GPU-aa TRACE"
    assert ends[1:] == [r"\xff bytes as they are", "10%", "20%", "last line"]
    assert "[worker 1] gpus 1,0 TRACE" in out
    assert "TF_GPU_THREAD_MODE=gpu_private" in err
    assert "NCCL_DEBUG" not in err


def test_the_first_failure_ends_all_and_is_named_with_its_last_lines(launcher):
    code, _, err = launcher.run(
        "--workers 3 --grace 60",
        code="""
    if me == "worker1":
        print("before the end")
        while len(list(pathlib.Path().glob("there*"))) < 2:
            time.sleep(0.05)
        sys.exit("out of luck")
    signal.signal(signal.SIGTERM, lambda *_: (there("saved"), sys.exit(0)))
    forever()
""",
    )
    assert code == 1
    assert "[tfopt] worker 1 failed first: exit code 1" in err
    # Of two streams: which is read first is not said.
    assert {"[tfopt]     before the end", "[tfopt]     out of luck"} <= {*err.splitlines()}
    assert len(list(launcher.folder.glob("saved*"))) == 2
    assert launcher.living() == []


def launched(*command, workers=2, **settings):
    """Run a job in this process; return what the launcher and its tasks say."""
    out, err = io.BytesIO(), io.BytesIO()
    code = launch_here(LocalJob(command, workers, **settings), out, err, dict(os.environ))
    return code, out.getvalue().decode(), err.getvalue().decode()


def test_tasks_that_never_met_are_warned_of():
    """Each may have trained a model of its own; what tfopt.distribute() leaves is the mark."""
    code, _, err = launched("true")
    assert code == 0
    assert "no task has called tfopt.distribute()" in err
    assert "no task has called tfopt.train_asynchronously()" in launched("true", workers=1, ps=1)[2]
    assert "no task has called" not in launched("true", workers=1)[2]
    met = "from tfopt.distribute.launch.task import mark_joined; mark_joined()"
    assert "no task has called" not in launched(sys.executable, "-c", met)[2]
    _, _, err = launched("false")
    assert "no task has called" not in err
    assert "failed first: exit code 1. It printed nothing." in err
    assert "last lines" not in err


def test_what_a_killed_worker_has_not_removed_is_gone_with_the_launcher():
    killed = """
import os, signal
from tfopt.distribute.worker_files import _folder
print(_folder().name, os.path.isdir(_folder().name), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    code, out, _ = launched(sys.executable, "-c", killed, workers=1)
    assert code == 128 + signal.SIGKILL
    (name,) = re.fullmatch(r"\[worker 0\] (\S+) True\n", out).groups()
    assert not os.path.exists(name)


def test_what_ignores_sigterm_is_killed_with_its_children(launcher):
    code, _, err = launcher.run(
        "--workers 2 --grace 0.5",
        code="""
    import subprocess
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if me == "worker0":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        forever()
    while not pathlib.Path("thereworker0").exists():
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)
""",
    )
    assert code == 128 + signal.SIGKILL
    assert "worker 1 failed first: SIGKILL, often by the kernel" in err
    assert "not ended within --grace 0.5: worker 0" in err
    assert launcher.living() == []


@pytest.mark.parametrize(
    ("number", "end", "code"),
    [
        (signal.SIGINT, 1, 128 + signal.SIGINT),
        (signal.SIGTERM, 75, 75),  # the tasks ask to go on, and the launcher says so
    ],
)
def test_signals_are_passed_on(launcher, number, end, code):
    started = launcher.start(
        "--workers 2 --restarts 3",
        code=f"""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, lambda number, _: (print("heard", number), sys.exit({end})))
    forever()
""",
    )
    launcher.wait_for("there", 2)
    started.send_signal(number)
    out, err = started.communicate(timeout=LIMIT_S)
    assert started.returncode == code, err
    assert sorted(out.splitlines()) == [f"[worker {each}] heard {number:d}" for each in (0, 1)]
    assert "starting again" not in err
    assert launcher.living() == []


def test_a_job_is_started_again_after_failure_and_preemption(launcher):
    code, out, err = launcher.run(
        "--workers 2 --restarts 2",
        code="""
    attempt = int(os.environ["TFOPT_RESTART"])
    print(attempt, json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])
    if me == "worker0" and attempt < 2:
        sys.exit((3, 75)[attempt])
    if attempt < 2:
        forever()
""",
    )
    assert code == 0, err
    assert "worker 0 failed first: exit code 3" in err
    assert "worker 0 requests a restart (exit code 75)" in err
    assert "starting again (2 of 2 restarts)" in err
    ports = {line.partition("] ")[2] for line in out.splitlines() if line.startswith("[worker 0")}
    assert len(ports) == 3


def test_a_parameter_server_job_is_over_when_its_chief_is(launcher):
    code, out, err = launcher.run(
        "--workers 2 --ps 1",
        code="""
    if me != "chief0":
        forever()
    while len(list(pathlib.Path().glob("there*"))) < 3:
        time.sleep(0.05)
    cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
    print({kind: len(addresses) for kind, addresses in cluster.items()})
    print(os.environ["GRPC_FAIL_FAST"])
""",
    )
    assert code == 0, err
    assert "[chief 0] {'chief': 1, 'worker': 2, 'ps': 1}" in out
    assert "[chief 0] use_caller" in out
    assert "the chief is done" in err
    assert launcher.living() == []


def test_a_worker_that_fails_with_no_restart_left_ends_the_job(launcher, monkeypatch):
    monkeypatch.setattr(attempt, "_RESTART_S", 0.1)
    monkeypatch.chdir(launcher.folder)
    script = launcher.script("""
        if task["type"] == "worker":
            raise SystemExit(7)
        forever()
    """)
    code, _, err = launched(sys.executable, script, workers=1, ps=1, restarts=1, grace=5.0)
    assert code == 7
    assert "worker 0 ended by exit code 7: starting it again in 0.1 s (restart 1)" in err
    assert "worker 0 failed first: exit code 7" in err
    assert "starting again" not in err


def test_no_task_outlives_a_launcher_that_is_killed(launcher):
    started = launcher.start("--workers 2", code="forever()")
    launcher.wait_for("there", 2)
    assert len(launcher.living()) == 3
    started.kill()
    started.communicate(timeout=LIMIT_S)
    wait_until(lambda: launcher.living() == [])


def test_the_rules_of_sharing_gpus(tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev").mkdir(exist_ok=True)
        (tmp_path / "dev" / name).touch()
    assert cuda_names({}, tmp_path) == ("0", "1", "2")
    assert cuda_names({"CUDA_VISIBLE_DEVICES": "2, 0,-1,1"}, tmp_path) == ("2", "0")
    assert cuda_names({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == ()
    assert gpus_per_task(("0", "1", "2"), 1, 2) == [("0", "1")]
    assert gpus_per_task(("0", "1", "2"), 3, None) == [("0",), ("1",), ("2",)]
    assert gpus_per_task(("0",), 2, 0) == [(), ()]
    assert gpus_per_task((), 2, None) is None
    tasks = [each.environment for each in tasks_here(1, 1, [("0",)])]  # chief, worker, ps
    assert [each["CUDA_VISIBLE_DEVICES"] for each in tasks] == ["-1", "0", "-1"]
    for visible, workers, each in (((), 2, 1), (("0",), 2, None), (("0", "1", "2"), 2, 2)):
        with pytest.raises(UserError, match="too few GPUs"):
            gpus_per_task(visible, workers, each)


def test_command_lines_that_say_too_little_and_what_the_launcher_loads():
    unsaid = tfopt_launch("--", "python", "train.py")
    assert (unsaid.returncode, "number of workers" in unsaid.stderr) == (2, True)
    misplaced = tfopt_launch("--workers", "2", "true")
    assert misplaced.returncode == 2
    assert "no -- before the command" in misplaced.stderr
    assert "-- python train.py" in misplaced.stderr
    # What stands behind the dashes is the command's, whatever it is.
    command = ("--workers", "1", "--", "echo", "--debug", "--", "--workers")
    traced = tfopt_launch(*command, python=("-X", "importtime"))
    assert (traced.returncode, traced.stdout) == (0, "[worker 0] --debug -- --workers\n")
    assert "tfopt.distribute.launch.attempt" in traced.stderr
    assert "tensorflow" not in traced.stderr
    assert "keras" not in traced.stderr
