"""A process that dies or hangs: its answers until then are kept, and it is gone with its children."""

import textwrap
import threading

import pytest
from processes import processes_in, wait_until

from tfopt.doctor.check import Check, Subject
from tfopt.doctor.compute_checks import on_cpu
from tfopt.doctor.examine import Inspection, examined
from tfopt.doctor.job_checks import examine_job, job

JOBS = """
    import os, sys, time
    from tfopt import Job

    def aborts() -> Job:
        print("the last words", file=sys.stderr)
        os.abort()

    def hangs() -> Job:
        time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "bad_jobs.py").write_text(textwrap.dedent(JOBS))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_why_a_process_ended_is_reported(folder):
    (crashed,) = job(Subject(job="bad_jobs:aborts"))
    assert crashed.verdict == "failure"
    assert crashed.message == "the job's process ended at this stage: making the job"
    assert crashed.evidence[0].startswith("the process ended without a result: killed by SIGABRT")
    assert "the last words" in crashed.evidence[0]


def test_what_does_not_end_is_ended(folder):
    (check,) = job(Subject(job="bad_jobs:hangs", job_limit_s=1.0))
    assert check.evidence == ("gave no answer within 1 s",)
    wait_until(lambda: not processes_in(folder))


def test_a_module_that_is_not_there_is_a_users_mistake():
    asked = {"job": "no_such_module:job", "arguments": {}, "chain": []}
    stage, check = examine_job(asked)
    assert (stage, check.verdict) == ("making the job", "failure")
    assert "no module 'no_such_module'" in check.message


def test_real_products_and_a_real_xla_program_on_this_cpu():
    (check,) = on_cpu(Subject())
    assert check.verdict == "ok"
    assert check.message == "float32, float16, bfloat16, XLA: as computed in float64"
    assert all("relative error" in each for each in check.evidence)


def test_a_check_that_breaks_or_hangs_is_a_row_and_not_the_end():
    def breaks(subject):
        yield Check("host", "first", "ok", "done")
        raise ZeroDivisionError("by nothing")

    def hangs(subject):
        threading.Event().wait(5)

    def works(subject):
        return [Check("host", "works", "ok", "done")]

    progress = []
    inspections = [
        Inspection("host", "breaks", breaks),
        Inspection("gpu", "hangs", hangs, limit_s=0.2),
        Inspection("host", "breaks here", breaks, limit_s=None),
        Inspection("host", "works", works),
    ]
    found = list(examined(inspections, Subject(), progress.append))
    assert [(c.name, c.verdict) for c in found] == [
        ("first", "ok"),
        ("breaks", "warning"),
        ("hangs", "warning"),
        ("first", "ok"),
        ("breaks here", "warning"),
        ("works", "ok"),
    ]
    assert found[1].message == "could not be checked: ZeroDivisionError: by nothing"
    assert "did not end within 0.2 s" in found[2].message
    assert progress[0] == "host: breaks"


def test_the_checks_of_this_process_do_not_load_tensorflow(fresh_python):
    printed = fresh_python("""
        import sys
        import tfopt
        checks = tfopt.doctor(only=["host", "gpu", "cluster"])
        assert {c.theme for c in checks} == {"host", "gpu", "cluster"}, checks
        print("tensorflow" in sys.modules, "keras" in sys.modules)
    """)
    assert printed.split() == ["False", "False"]
