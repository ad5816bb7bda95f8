"""A process that dies, hangs or leaves others behind: what it had said is kept, and it is gone."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

from tfopt.doctor.check import Check, Inspection, Subject
from tfopt.doctor.examine import examined
from tfopt.doctor.gpu_checks import judge, on_cpu
from tfopt.doctor.isolated import Answered, ask
from tfopt.doctor.job_checks import job

JOBS = """
    import os, signal, subprocess, sys, time
    from pathlib import Path
    from tfopt import Job

    def killed() -> Job:
        os.kill(os.getpid(), signal.SIGKILL)

    def aborts() -> Job:
        print("the last words", file=sys.stderr)
        os.abort()

    def hangs() -> Job:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path("pids.txt").write_text(f"{os.getpid()} {child.pid}")
        time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "bad_jobs.py").write_text(textwrap.dedent(JOBS))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def hanging(folder):
    """The process that looks at the job, once it is there, and the one that the job started."""
    pids = folder / "pids.txt"
    for _ in range(600):
        if pids.exists() and len(pids.read_text().split()) == 2:
            break
        time.sleep(0.1)
    return map(int, pids.read_text().split())


def gone(process_id):
    for _ in range(300):
        if not psutil.pid_exists(process_id):
            return True
        if psutil.Process(process_id).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.1)
    return False


def test_a_process_that_is_killed_is_told_with_what_it_was_at(folder):
    (check,) = job(Subject(job="bad_jobs:killed"))
    assert check.verdict == "failure"
    assert check.told == "the job's process ended while at: making the job"
    assert check.evidence == ("killed by SIGKILL (out of memory?)",)


def test_a_crash_is_told_with_its_last_words(folder):
    (check,) = job(Subject(job="bad_jobs:aborts"))
    assert check.evidence[0].startswith("killed by SIGABRT; its last words: ")
    assert "the last words" in check.evidence[0]


def test_what_does_not_end_is_ended_with_all_it_started(folder):
    (check,) = job(Subject(job="bad_jobs:hangs", job_limit_s=12.0))
    assert check.evidence[0].startswith("it did not end within 12 s")
    own, child = map(int, (folder / "pids.txt").read_text().split())
    assert gone(own)
    assert gone(child)


def test_it_is_gone_when_who_asked_is_killed(folder):
    code = "from tfopt.doctor.job_checks import job; from tfopt.doctor.check import Subject\n"
    code += "list(job(Subject(job='bad_jobs:hangs')))"
    asking = subprocess.Popen([sys.executable, "-c", code])
    try:
        own, child = hanging(folder)
    finally:
        asking.kill()
        asking.wait()
    assert gone(own)
    assert gone(child)


def test_ctrl_c_ends_the_command_and_what_it_asked(folder):
    command = [sys.executable, "-m", "tfopt", "doctor", "--only", "job", "--job", "bad_jobs:hangs"]
    asking = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        own, child = hanging(folder)
        asking.send_signal(signal.SIGINT)
        _, said = asking.communicate(timeout=60)
    finally:
        asking.kill()
        asking.wait()
    assert asking.returncode == 130
    assert "Interrupted." in said
    assert "Traceback" not in said
    assert gone(own)
    assert gone(child)


def test_a_module_that_is_not_there_is_a_users_mistake():
    asked = {"job": "no_such_module:job", "arguments": {}, "chain": None}
    found = ask("job", asked, 60.0)
    assert found.ended is None
    (answer,) = found.answers
    assert answer["verdict"] == "failure"
    assert "no module 'no_such_module'" in answer["told"]


def test_real_products_and_a_real_xla_program_on_this_cpu():
    products, xla = on_cpu(Subject())
    assert (products.verdict, xla.verdict) == ("ok", "ok")
    assert "float32, float16, bfloat16" in products.told
    assert all("relative error" in each for each in (*products.evidence, *xla.evidence))


def test_wrong_numbers_and_crashes_are_failures():
    answers = (
        {"what": "devices", "count": 1, "tensorflow": "2.21.0"},
        {"what": "float32", "error": 2e-7},
        {"what": "float16", "error": 0.3},
        {"what": "bfloat16", "error": float("nan")},
        {"what": "tensorfloat32", "failed": "InternalError: no kernel image"},
    )
    crashed, products = judge("GPU 0", Answered(answers, "killed by SIGSEGV", at="XLA"))
    assert crashed.told == "the process ended while at: XLA"
    assert products.told == "float16 is wrong; bfloat16 is wrong; tensorfloat32 fails"
    assert products.verdict == "failure"
    (blind,) = judge("GPU 0", Answered(({"what": "devices", "count": 0, "tensorflow": "2.21"},)))
    assert "TensorFlow does not see it" in blind.told


def test_a_check_that_breaks_or_hangs_is_a_row_and_not_the_end():
    def breaks(subject):
        yield Check("host", "first", "ok", "done")
        raise ZeroDivisionError("by nothing")

    def hangs(subject):
        time.sleep(5)

    def works(subject):
        return [Check("host", "works", "ok", "done")]

    told = []
    inspections = [
        Inspection("host", "breaks", breaks),
        Inspection("gpu", "hangs", hangs, limit_s=0.2),
        Inspection("host", "breaks here", breaks, limit_s=None),
        Inspection("host", "works", works),
    ]
    found = list(examined(inspections, Subject(), told.append))
    assert [(c.name, c.verdict) for c in found] == [
        ("first", "ok"),
        ("breaks", "warning"),
        ("hangs", "warning"),
        ("first", "ok"),
        ("breaks here", "warning"),
        ("works", "ok"),
    ]
    assert found[1].told == "could not be looked at: ZeroDivisionError: by nothing"
    assert "did not end within 0.2 s" in found[2].told
    assert told[0] == "host: breaks"


def test_nothing_of_tensorflow_is_loaded_by_the_checks_of_this_process():
    code = """
    import sys
    import tfopt
    checks = tfopt.doctor(only=["versions", "gpu", "host", "disk", "cluster"])
    assert len({(c.theme, c.name) for c in checks}) > 8, checks
    print("tensorflow" in sys.modules, "keras" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, timeout=120, env={**os.environ},
    )  # fmt: skip
    assert done.stdout.split() == ["False", "False"], done.stderr
