"""``tfopt monitor`` as people run it: in a terminal, in a pipe, with and without a GPU.

The GPUs are a stand-in for NVIDIA's library: what passes has not run on the hardware.
"""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request

import pytest
from nvml_stand_in.library import gpu
from terminal import Terminal

from tfopt.commands.cli import main

COMMAND = [sys.executable, "-m", "tfopt", "monitor"]
LONG_S = 120
HOT = "0 1 reasons 32\n0 1 clock.1 900\n0 1 temperature 90\n"  # SwThermalSlowdown
TRACE = gpu(0) + gpu(1, {"uuid": "GPU-bbbb", "processes": ""}) + HOT


def ended(*arguments, env=None, code=0):
    done = subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=LONG_S,
        env={**os.environ, "COLUMNS": "80", **(env or {})},
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture
def running():
    """Starts the command, in a pipe unless a terminal is given; whatever is left of it is ended."""
    started = []
    pipes = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}

    def start(*arguments, env=None, **how):
        command = [*COMMAND, "--interval", "0.2", *arguments]
        process = subprocess.Popen(command, env={**os.environ, **(env or {})}, **(how or pipes))
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait(LONG_S)
        if process.stdout:
            process.stdout.close()
        if process.stderr:
            process.stderr.close()


def test_without_a_driver_one_line_says_so_and_the_host_is_shown():
    done = ended("--once", code=3)
    assert done.stdout.count("No GPU to show: NVML ") == 1
    assert re.search(r"host, .* %", done.stdout)
    assert "Traceback" not in done.stdout + done.stderr
    sample = json.loads(ended("--once", "--json", code=3).stdout)
    assert (sample["gpus"], sample["no_gpu_reason"][:5]) == ([], "NVML ")
    assert sample["host"]["memory_total_mib"] > 0
    assert sample["host"]["rss_mib"] is None  # of the process that only watches


def test_once_is_a_table_of_80_columns_or_an_object_with_all_that_was_sampled(nvml_stand_in):
    done = ended("--once", env=nvml_stand_in(TRACE))
    assert "GPU 0 NVIDIA Stand-In" in done.stdout
    assert "throttled by heat, detected by the driver" in done.stdout
    assert "29.3/40.0" in done.stdout
    assert "312/400" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    changed = gpu(0, {"fan": None})
    done = ended("--once", "--json", "--interval", "0.2", env=nvml_stand_in(changed))
    sample = json.loads(done.stdout)
    assert sample["gpus"][0]["power_w"] == pytest.approx(312.45)
    assert sample["gpus"][0]["fan_percent"] is None
    assert "Not Supported" in sample["gpus"][0]["missing"]["fan_percent"]
    assert sample["gpus"][0]["processes"][0]["mib"] == 2000
    assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]+[+-]", sample["at"])


def test_in_a_terminal_it_stays_and_ctrl_c_ends_it_with_the_terminal_as_it_was(
    running, nvml_stand_in
):
    terminal = Terminal()
    env = {**nvml_stand_in(TRACE), "TERM": "xterm-256color"}
    process = running(env=env, **terminal.process_arguments())
    try:
        terminal.until("serious: ")  # a finding that needs 5 s of samples
        assert "\x1b[?1049h" in terminal.seen
        assert "\x1b[?1049l" not in terminal.seen
        os.write(terminal.here, b"\x03")
        terminal.until("\x1b[?1049l")
        for _ in range(LONG_S * 5):
            terminal.rest()
            if process.poll() is not None:
                break
        assert process.returncode == 0
        after = terminal.rest().split("\x1b[?1049l")[1]
        assert "\x1b[?25h" in terminal.seen  # the cursor is back
        assert "GPU 0" in after  # and the last picture stays
        assert "Traceback" not in terminal.seen
    finally:
        terminal.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_in_a_pipe_it_is_tables_and_each_finding_once_until_a_signal(
    running, nvml_stand_in, number
):
    process = running(env={**nvml_stand_in(TRACE), "COLUMNS": "200"})
    seen = []
    while not any("was throttled by heat" in line for line in seen):
        seen.append(process.stdout.readline())
    seen += [process.stdout.readline() for _ in range(20)]
    (found,) = (line for line in seen if "was throttled by heat" in line)
    assert "GPU 1" in found
    assert "".join(seen).count("GPU 0 NVIDIA Stand-In") >= 2
    assert "\x1b" not in "".join(seen)
    process.send_signal(number)
    _, complaint = process.communicate(timeout=LONG_S)
    assert (process.returncode, complaint) == (0, "")


def test_a_reader_that_goes_away_ends_it(running):
    process = running()
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(LONG_S) in (0, 3)
    assert "Traceback" not in process.stderr.read()


def test_samples_go_to_a_file_and_to_prometheus_as_well(running, nvml_stand_in, tmp_path):
    pytest.importorskip("prometheus_client")
    path = tmp_path / "samples.csv"
    flags = ("--csv", str(path), "--prometheus", "0", "--pid", str(os.getpid()))
    process = running(*flags, env=nvml_stand_in(TRACE))
    where = process.stderr.readline().strip()
    assert where.startswith("http://127.0.0.1:")
    for _ in range(24):
        process.stdout.readline()
    page = urllib.request.urlopen(where, timeout=LONG_S).read().decode()
    assert 'tfopt_gpu_throttled{index="1",name="NVIDIA Stand-In",uuid="GPU-bbbb"} 1.0' in page
    process.send_signal(signal.SIGINT)
    process.wait(LONG_S)
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    hosts, gpus = ([row for row in rows if row["row"] == kind] for kind in ("host", "gpu"))
    assert len(hosts) >= 4
    assert float(hosts[0]["rss_mib"]) > 20  # this process, which was named
    assert float(gpus[0]["device_mib"]) == 30_000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--interval", "2h"), "from 0.1 to 3600"),
        (("--pid", "4194999"), "no process"),
        (("--csv", "/no/such/folder/x.csv"), "does not exist"),
        (("--once", "--prometheus", "99999"), "65535"),
    ],
)
def test_bad_arguments_are_one_message(capsys, arguments, words):
    assert main(["monitor", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert words in shown.err


def test_the_dashboard_is_written_and_the_command_ends(tmp_path, capsys):
    path = tmp_path / "dashboard.json"
    assert main(["monitor", "--dashboard", str(path)]) == 0
    assert capsys.readouterr().out.strip() == str(path)
    board = json.loads(path.read_text(encoding="utf-8"))
    assert (board["title"], len(board["panels"])) == ("tfopt: training", 17)
