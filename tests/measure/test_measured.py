"""Measuring from Python: the report that comes back, prints, looks up and saves."""

from types import SimpleNamespace

import fake_workers
import pytest
from fake_workers import FAST
from toy_jobs import job

import tfopt
from tfopt import Prune, UserError, chain
from tfopt.report import Report

JOB = "toy_jobs:job"


@pytest.fixture
def workers(monkeypatch):
    return fake_workers.install(monkeypatch, fake_workers.Workers())


def test_a_chain_is_measured_and_the_report_looked_into(workers, tmp_path, capsys):
    report = tfopt.measure(job, chain(FAST, Prune(0.5)), arguments={"epochs": 2})
    assert "+ Prune: trained in" in capsys.readouterr().out
    assert report.names == ["baseline", "+ Execution", "+ Prune", "kept"]
    assert report["baseline"].step_ms == pytest.approx(10, rel=0.02)
    assert report["kept"].step_ms == pytest.approx(5, rel=0.02)
    assert report["kept"].whole.ratio == pytest.approx(0.5, rel=0.02)
    assert {asked.job for asked in workers.asked} == {JOB}
    assert workers.asked[0].arguments == {"epochs": 2}
    text = str(report)
    assert "+ Execution" in text
    assert max(map(len, text.splitlines())) <= 100
    again = Report.read(report.save(tmp_path / "perf"))
    assert again == report
    assert {path.name for path in (tmp_path / "perf").iterdir()} == {
        "bench.json", "bench.md", "bench.html",
    }  # fmt: skip
    with pytest.raises(KeyError, match=r"\+ Execution, \+ Prune, kept"):
        report["pruned"]


def test_a_job_alone_a_single_transform_and_an_ablation(workers, capsys):
    report = tfopt.measure(JOB, whole=False, verbose=False)
    assert capsys.readouterr().out == ""
    assert report.names == ["baseline", "kept"]
    assert report["kept"] is report["baseline"]  # nothing else is to be kept
    assert workers.kinds().count("training") == 0
    assert "+ Execution" in tfopt.measure(JOB, FAST, whole=False, rounds=2).names
    alone = tfopt.measure(JOB, chain(FAST, Prune(0.5)), ablate=True, rounds=2)
    assert alone.names[:3] == ["whole chain", "- Execution", "- Prune"]


def test_interrupted_it_returns_what_was_measured(workers):
    def answer(asked):
        if workers.kinds().count("training") > 2:
            raise KeyboardInterrupt

    workers.answer = answer
    report = tfopt.measure(JOB, FAST)
    assert not report.found.complete
    assert len(report["baseline"].trainings) == 1
    workers.answer = lambda asked: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        tfopt.measure(JOB, FAST)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"chain": [FAST]}, "This is no chain"),
        ({"rounds": 1}, "rounds is not a count"),
        ({"chain": FAST, "ablate": True}, "two transforms"),
        ({"whole": "yes"}, "whole"),
        ({"job": SimpleNamespace()}, "make the job anew"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_runs(workers, given, words):
    with pytest.raises(UserError, match=words):
        tfopt.measure(**{"job": JOB, **given})
    assert not workers.asked
