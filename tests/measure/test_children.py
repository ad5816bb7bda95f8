"""Processes of jobs: what comes back, how they die, and that none outlives who started it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from nvml_stand_in.library import gpu
from processes import processes_in, wait_until
from toy_jobs import Talk, TellData

from tfopt import UserError
from tfopt.measure.children import JobProcess, Lost, carried_out
from tfopt.measure.provenance import relevant_variables
from tfopt.measure.targets import Target
from tfopt.train.compile_cache import cache_variables


def target(name="job", **arguments):
    return Target(name, f"toy_jobs:{name}", arguments=arguments)


@pytest.fixture
def start(in_toy_folder):
    """Start children, which are ended with the test."""
    started = []

    def run(job, task, **settings):
        started.append(JobProcess(job, task, **settings))
        return started[-1]

    yield run
    for child in started:
        child.end()


def test_parent_and_child_talk(start):
    child = start(target(), Talk())
    assert not child.has_answered(0)
    for number in (1, 21):
        child.send(number)
        assert child.receive(60) == 2 * number
    child.send(None)
    assert child.receive(60) == 2
    with pytest.raises(Lost, match="exit code 0"):
        child.receive(60)


@pytest.mark.parametrize(
    ("trouble", "status", "words"),
    [
        ("refuses", "refused", r"^There is no such digit\.$"),
        ("raises", "failed", r"^RuntimeError: the disk .* \(toy_jobs.py, line \d+, in gone\)$"),
        ("exits", "failed", r"the job called sys.exit\('no licence'\)"),
        ("dies", "failed", r"exit code 7; .*: last words"),
        ("is killed", "failed", r"killed by SIGKILL \(the system may have run out of memory\)"),
    ],
)
def test_the_reason_why_there_is_no_result(in_toy_folder, trouble, status, words):
    with pytest.raises(Lost, match=words) as caught:
        carried_out(target("troubled", trouble=trouble), TellData(), timeout_s=120)
    assert caught.value.status == status
    wait_until(lambda: not processes_in(in_toy_folder))


def test_one_that_is_silent_is_lost_and_a_job_that_is_not_there_refused(in_toy_folder):
    with pytest.raises(Lost, match="it did not answer within 2 s"):
        carried_out(target("troubled", trouble="hangs"), Talk(), timeout_s=2)
    wait_until(lambda: not processes_in(in_toy_folder))
    with pytest.raises(Lost, match="nowhere") as caught:
        carried_out(Target("toy", "toy_jobs:nowhere"), TellData())
    assert caught.value.status == "refused"


def test_what_a_child_leaves_in_the_temporary_folder_is_gone_with_it(in_toy_folder):
    ended = Path(carried_out(target("leaving"), TellData()))
    with pytest.raises(Lost, match="its last output: /") as lost:
        carried_out(target("leaving", dies=True), TellData())
    died = Path(str(lost.value).split("its last output: ")[1])
    assert len({ended, died}) == 2
    wait_until(lambda: not ended.exists() and not died.exists())


def test_forked_children_draw_other_random_numbers(in_toy_folder):
    drawn = {carried_out(target("drawing"), TellData()) for _ in range(3)}
    assert len(drawn) == 3


def test_a_job_that_sets_how_tensorflow_is_loaded_is_loaded_before_it(in_toy_folder):
    found = carried_out(target("set_up"), TellData())
    assert found == "set before TensorFlow was loaded: True"


def test_children_on_a_gpu_keep_what_xla_compiles(played, in_toy_folder, monkeypatch):
    assert cache_variables({}) == {}  # no GPU
    played(gpu(0))
    # Not in the folder of the job, which stands first in the path of imports.
    caches = in_toy_folder / "caches"
    monkeypatch.setenv("XDG_CACHE_HOME", str(caches))
    monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_max_cluster_size=9")
    own, kept = carried_out(target("with_flags"), TellData()).split()
    assert own == os.environ["TF_XLA_FLAGS"]
    assert kept.startswith(f"--tf_xla_persistent_cache_directory={caches}/tfopt/tfopt-xla/")
    assert relevant_variables({"TF_XLA_FLAGS": f"{own} {kept}"}) == {"TF_XLA_FLAGS": own}
    assert relevant_variables({"TF_XLA_FLAGS": kept}) == {}
    foreign = {"TF_XLA_FLAGS": "--tf_xla_persistent_cache_directory=/data"}
    assert (relevant_variables(foreign), cache_variables(foreign)) == (foreign, {})


def test_who_has_no_turn_stands_still_with_all_its_processes(start, in_toy_folder):
    child = start(target("troubled", trouble="has workers"), Talk())
    child.send(1)
    assert child.receive(60) == 2
    assert len(processes_in(in_toy_folder)) == 3
    child.stop()
    wait_until(lambda: set(processes_in(in_toy_folder).values()) == {"T"})
    child.send(2)
    assert not child.has_answered(0.2)
    child.go_on()
    assert child.receive(60) == 4
    child.stop()
    child.end()
    wait_until(lambda: not processes_in(in_toy_folder))


def test_no_process_and_no_temporary_file_outlives_a_parent_that_is_killed(in_toy_folder):
    code = """
        from pathlib import Path
        from toy_jobs import Talk
        from tfopt.measure.children import JobProcess
        from tfopt.measure.targets import Target

        jobs = [Target(t, "toy_jobs:troubled", arguments={"trouble": t}) for t in ("has workers", "")]
        children = [JobProcess(job, Talk()) for job in (*jobs, Target("left", "toy_jobs:leaving"))]
        for child in children:
            child.send(1)
            child.receive(120)
        children[0].stop()
        Path("ready").touch()
        children[1].receive(600)
    """
    Path("parent.py").write_text("\n".join(line[8:] for line in code.splitlines()))
    (temporary := in_toy_folder / "temporary").mkdir()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(temporary)}
    parent = subprocess.Popen([sys.executable, "parent.py"], env=environment)
    try:
        wait_until(lambda: Path("ready").exists() or parent.poll() is not None)
        assert len(processes_in(in_toy_folder)) == 6
        assert list(temporary.glob("tfopt-*/*/*/more"))
        wait_until(lambda: "T" in processes_in(in_toy_folder).values())
        (starter,) = children_of(parent.pid)
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: not processes_in(in_toy_folder))
    wait_until(lambda: not Path(f"/proc/{starter}").exists())
    wait_until(lambda: not list(temporary.iterdir()))


def children_of(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_a_starter_that_dies_is_told_and_another_one_starts(start, in_toy_folder):
    child = start(target(), Talk())
    child.send(1)
    child.receive(60)
    os.kill(child._starter.process.pid, signal.SIGKILL)
    with pytest.raises(Lost, match="ended"):
        child.receive(60)
    wait_until(lambda: not processes_in(in_toy_folder))
    assert carried_out(target(note="again"), TellData()) == "again"


def test_a_python_that_cannot_load_tensorflow_is_one_sentence(in_toy_folder, monkeypatch):
    Path("tensorflow.py").write_text("raise ImportError('libcuda.so is from another year')")
    monkeypatch.setenv("PYTHONPATH", str(in_toy_folder), prepend=os.pathsep)
    with pytest.raises(UserError, match="No process can be started") as caught:
        carried_out(target(), TellData())
    assert "libcuda.so is from another year" in caught.value.received
