"""The batch file for Slurm: what it says, and what a real Slurm on this machine makes of it."""

import os
import pwd
import shutil
import socket
import subprocess
import sys

import pytest
from on_workers import LIMIT_S
from processes import wait_until

from tfopt.distribute.launch import task
from tfopt.distribute.launch.local import free_ports
from tfopt.distribute.launch.slurm import SlurmJob
from tfopt.errors import UserError

MISSING = [name for name in ("slurmctld", "slurmd", "sbatch") if shutil.which(name) is None]
needs_slurm = pytest.mark.skipif(
    bool(MISSING) or os.geteuid() != 0,
    reason="a Slurm of one's own needs root, and Debian's slurmctld, slurmd and slurm-client",
)


def test_the_batch_file_asks_for_what_was_asked():
    text = SlurmJob(
        ("python", "train.py", "--name", "it's; rm -rf /"),
        nodes=2,
        workers_per_node=4,
        gpus_per_worker=1,
        cpus_per_worker=8,
        partition="gpu",
        time="1-00:30:00",
        requeue=True,
    ).batch_file()
    asked = [line.split()[1] for line in text.splitlines() if line.startswith("#SBATCH")]
    assert {
        "--nodes=2",
        "--ntasks-per-node=4",
        "--cpus-per-task=8",
        "--gres=gpu:4",
        "--partition=gpu",
        "--time=1-00:30:00",
        "--signal=B:TERM@120",
        "--requeue",
    } <= set(asked)
    assert """-- python train.py --name 'it'"'"'s; rm -rf /' &""" in text
    assert "scontrol requeue" in text
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    # The tasks begin in the Python of the command.
    for first, python in (("/my env/bin/python3", "'/my env/bin/python3'"), ("./a.sh", "python")):
        text = SlurmJob((first, "train.py"), nodes=1).batch_file()
        assert f"  {python} -m tfopt.distribute.launch.task -- " in text


def test_what_cannot_be_written_is_refused():
    for fields, words in (
        ({"nodes": 0}, "--nodes is not a count"),
        ({"name": "two words"}, "--name has characters"),
        ({"partition": "gpu\n#SBATCH --mail-user=x"}, "--partition has characters"),
        ({"command": ()}, "no command"),
    ):
        with pytest.raises(UserError, match=words):
            SlurmJob(**{"command": ("python", "train.py"), "nodes": 2} | fields)


def test_a_task_takes_its_own_gpus_of_the_nodes(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", task.__name__, "--", "printenv", "CUDA_VISIBLE_DEVICES"],
        env={
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "4,5,6,7",
            "TFOPT_GPUS_PER_WORKER": "2",
            "SLURM_LOCALID": "1",
        },
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert done.stdout == "6,7\n"


class Slurm:
    """slurmctld and a slurmd for each of two nodes, which are this machine, in a folder."""

    def __init__(self, folder):
        self.folder = folder
        self.daemons = []
        here = socket.gethostname().partition(".")[0]
        # The tasks' addresses are made of the nodes' names, so these must be real; in this order,
        # since Slurm takes a first "localhost" for another name of this machine.
        self.nodes = list(dict.fromkeys((here, "localhost")))
        controller, *daemons = free_ports(1 + len(self.nodes))
        settings = {
            "ClusterName": "test",
            "SlurmctldHost": f"{here}(127.0.0.1)",
            "SlurmUser": pwd.getpwuid(os.geteuid()).pw_name,
            "SlurmctldPort": controller,
            "AuthType": "auth/none",
            "CredType": "cred/none",
            "MpiDefault": "none",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_Core",
            "SchedulerType": "sched/builtin",
            "SchedulerParameters": "sched_interval=1",
            "SlurmdParameters": "config_overrides",
            "KillWait": 10,
            "SlurmctldPidFile": folder / "slurmctld.pid",
            "SlurmdPidFile": folder / "slurmd-%n.pid",
            "StateSaveLocation": folder / "state",
            "SlurmdSpoolDir": folder / "spool-%n",
            "SlurmctldLogFile": folder / "slurmctld.log",
            "SlurmdLogFile": folder / "slurmd-%n.log",
        }
        lines = [f"{name}={value}" for name, value in settings.items()]
        for node, port in zip(self.nodes, daemons, strict=True):
            lines.append(
                f"NodeName={node} NodeHostname={here} NodeAddr=127.0.0.1 Port={port} CPUs=4 "
                "State=UNKNOWN"
            )
            (folder / f"spool-{node}").mkdir()
        lines.append("PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
        (folder / "slurm.conf").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (folder / "state").mkdir()
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def start(self):
        for command in (["slurmctld"], *(["slurmd", "-N", node] for node in self.nodes)):
            with (self.folder / f"{command[-1]}.out").open("w") as log:
                how = {"env": self.environment, "stdout": log, "stderr": log, "cwd": self.folder}
                self.daemons.append(subprocess.Popen([*command, "-D"], **how))
        wait_until(self._is_ready)

    def _is_ready(self):
        logs = {path.name: path.read_text() for path in self.folder.glob("*.out")}
        assert all(daemon.poll() is None for daemon in self.daemons), logs
        return self.ask("sinfo", "-h", "-N", "-o", "%T").split() == ["idle"] * len(self.nodes)

    def ask(self, *command):
        done = subprocess.run(
            command,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            cwd=self.folder,
        )
        return done.stdout + done.stderr

    def submit(self, script):
        """Write the batch file by the command itself, and hand it to sbatch; return the job."""
        path, batch = self.folder / "train.py", self.folder / "train.sh"
        path.write_text(script, encoding="utf-8")
        wrote = self.ask(
            *(sys.executable, "-m", "tfopt", "launch", "slurm", "--nodes", str(len(self.nodes))),
            *("--workers-per-node", "2", "--requeue", "--output", str(batch)),
            *("--", sys.executable, str(path)),
        )
        assert wrote == f"{batch}\n"
        return self.ask("sbatch", "--parsable", "--output=train.out", str(batch)).strip()

    def said(self):
        path = self.folder / "train.out"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def job(self, number):
        shown = self.ask("scontrol", "--oneliner", "show", "job", number)
        return dict(part.partition("=")[::2] for part in shown.split())

    def stop(self):
        if self.daemons and self.daemons[0].poll() is None:
            self.ask("scancel", "--user=root")
            self.ask("scancel", "--signal=KILL", "--user=root")
        for daemon in reversed(self.daemons):
            daemon.terminate()
            daemon.wait(timeout=LIMIT_S)


@pytest.fixture
def slurm(tmp_path_factory):
    made = Slurm(tmp_path_factory.mktemp("slurm"))  # a short path, for Slurm's sockets
    try:
        made.start()
        yield made
    finally:
        made.stop()


@needs_slurm
def test_a_preempted_job_saves_and_goes_on_and_a_failed_one_is_not_queued_again(slurm):
    script = """
import os, signal, sys, time
from tfopt.distribute.launch.place import place_in_cluster
slurm = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
place, by_slurm = place_in_cluster(), place_in_cluster(slurm)
assert place.source == "TF_CONFIG" and by_slurm.source == "Slurm" and place.cluster == by_slurm.cluster
restart = os.environ.get("SLURM_RESTART_COUNT", "0")
def save(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(2 if place.is_chief else 0)
    print("saved", place.index, flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
print(f"begins {restart} {place.index}", os.environ["SLURMD_NODENAME"], place.address, flush=True)
while (restart, place.index) != ("1", 1) or not os.path.exists("fail"):
    time.sleep(0.1)
sys.exit(3)
"""
    count = 2 * len(slurm.nodes)
    number = slurm.submit(script)
    wait_until(lambda: slurm.said().count("begins 0") == count)
    lines = sorted(line.split()[3:] for line in slurm.said().splitlines() if "begins" in line)
    assert [int(words[0]) for words in lines] == list(range(count))
    assert all(node == address.partition(":")[0] for _, node, address in lines)
    assert {node for _, node, _ in lines} == set(slurm.nodes)
    # What Slurm does before the time limit, by --signal=B:TERM@120.
    slurm.ask("scancel", "--signal=TERM", "--batch", number)
    wait_until(lambda: slurm.job(number).get("Restarts") == "1")
    assert {f"{task}: saved {task}" for task in range(count)} <= {*slurm.said().splitlines()}
    wait_until(lambda: slurm.job(number)["JobState"] == "PENDING")
    # Else Slurm waits for two minutes. Not at once: in the second in which the nodes let the job go
    # they take it for that one ("Job credential revoked").
    slurm.ask("scontrol", "update", f"JobId={number}", "StartTime=now+5")
    wait_until(lambda: slurm.said().count("begins 1") == count)
    (slurm.folder / "fail").touch()
    wait_until(lambda: slurm.job(number)["JobState"] == "FAILED")
    assert "task 1: Exited with exit code 3" in slurm.said()
    assert slurm.job(number)["Restarts"] == "1"
