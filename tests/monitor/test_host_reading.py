"""Read the host: this machine, control groups written by hand, and processes."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from tfopt.data.host_memory import available_memory
from tfopt.job import cgroup
from tfopt.monitor.host import host_poller
from tfopt.monitor.readings import HostReading

MIB = 1024**2


def test_this_machine_has_memory_cores_and_rates():
    now = [0.0]
    host = host_poller(os.getpid(), lambda: now[0])
    first = HostReading(**host.values())
    assert first.rss_mib == pytest.approx(psutil.Process().memory_info().rss / MIB, rel=0.2)
    assert first.memory_total_mib == pytest.approx(psutil.virtual_memory().total / MIB)
    assert 0 < first.memory_used_mib < first.memory_total_mib
    assert 0 < first.cpu_limit_cores <= len(os.sched_getaffinity(0))
    assert (first.cpu_percent, first.process_cpu_percent) == (None, None)
    assert "two readings" in host.missing["cpu_percent"]
    assert "two readings" in host.missing["network_sent_mib_per_s"]
    busy_until = time.process_time() + 0.2
    while time.process_time() < busy_until:
        pass
    now[0] = 1.0
    second = HostReading(**host.values())
    assert 0 < second.cpu_percent <= 100
    # A fifth of that second, as the clock of this test counts; the system counts in ticks.
    assert second.process_cpu_percent >= 18
    assert second.disk_read_mib_per_s is None or second.disk_read_mib_per_s >= 0
    assert second.network_sent_mib_per_s >= 0


def test_a_process_that_ends_is_read_no_more():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    now = [0.0]
    host = host_poller(child.pid, lambda: now[0])
    try:
        assert HostReading(**host.values()).rss_mib > 0
    finally:
        child.communicate()
    now[0] = 60.0
    gone = HostReading(**host.values())
    assert (gone.rss_mib, gone.process_cpu_percent, gone.cpu_limit_cores) == (None, None, None)
    assert "no longer exists" in host.missing["rss_mib"] or "not found" in host.missing["rss_mib"]
    assert gone.memory_used_mib > 0


V2 = {
    "proc/self/cgroup": "0::/pod/box\n",
    "sys/fs/cgroup/pod/box/memory.max": "max\n",
    "sys/fs/cgroup/pod/box/cpu.max": "max 100000\n",
    "sys/fs/cgroup/pod/memory.max": f"{512 * MIB}\n",
    "sys/fs/cgroup/pod/memory.current": f"{300 * MIB}\n",
    "sys/fs/cgroup/pod/memory.stat": f"anon 5\ninactive_file {100 * MIB}\n",
    "sys/fs/cgroup/pod/cpu.max": "150000 100000\n",
}
V1 = {
    # Named as the host sees it: in the container the top is the group.
    "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{512 * MIB}\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{300 * MIB}\n",
    "sys/fs/cgroup/memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {100 * MIB}\n",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000\n",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
}
UNLIMITED = {
    "proc/self/cgroup": "0::/\n4:memory:/\n",
    "sys/fs/cgroup/memory.max": "max\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
}


@pytest.mark.parametrize(
    ("files", "limits"),
    [
        (V2, (512 * MIB, 200 * MIB, 1.5)),
        (V1, (512 * MIB, 200 * MIB, 1.5)),
        (UNLIMITED, (None,) * 3),
        ({}, (None,) * 3),
    ],
)
def test_a_group_has_its_narrowest_limit_and_what_counts(tmp_path, files, limits):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    narrowest = next(iter(cgroup.memory_limits(tmp_path)), (None, None))
    assert (*narrowest[:2], cgroup.cpu_quota(tmp_path)) == limits
    free = available_memory(tmp_path)
    whose = "the limit of control group" if limits[0] else "the machine's free memory"
    assert free.limited_by.startswith(whose)
    assert limits[0] is None or free.available_bytes == limits[0] - limits[1]


def test_usable_cores_are_whole_ones_within_affinity_and_quota(monkeypatch):
    monkeypatch.setattr(cgroup, "allowed_cores", lambda: 8)
    for quota, cores in ((None, 8), (2.5, 2), (0.5, 1), (64.0, 8)):
        monkeypatch.setattr(cgroup, "cpu_quota", lambda quota=quota: quota)
        assert cgroup.usable_cores() == cores
