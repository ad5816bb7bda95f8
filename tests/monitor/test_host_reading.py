"""The host's metrics: of this machine, of control groups written by hand, and of processes."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from tfopt.monitor import host as cgroup
from tfopt.monitor.host import WatchedHost, _BusyCores
from tfopt.monitor.readings import HostReading, Kept, Sample, StepMark

MIB = 1024**2


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_this_machine_tells_memory_cores_and_rates():
    now = [0.0]
    host = WatchedHost(os.getpid(), lambda: now[0])
    first = host.read()
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
    second = host.read()
    assert len(second.cpu_percent) == psutil.cpu_count()
    assert all(0 <= core <= 100 for core in second.cpu_percent)
    # A fifth of that second, as the clock of this test counts.
    assert second.process_cpu_percent >= 19
    assert second.disk_read_mib_per_s is None or second.disk_read_mib_per_s >= 0
    assert second.network_sent_mib_per_s >= 0


def test_what_changes_seldom_is_asked_seldom():
    now = [0.0]
    host = WatchedHost(os.getpid(), lambda: now[0])
    first = host.read()
    now[0] = 0.5
    second = host.read()
    assert second.memory_used_mib == first.memory_used_mib
    # A rate of a second is not one of half of it.
    assert (second.network_sent_mib_per_s, second.process_cpu_percent is None) == (None, False)


def test_a_process_that_ends_is_told_no_more():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    now = [0.0]
    host = WatchedHost(child.pid, lambda: now[0])
    try:
        assert host.read().rss_mib > 0
    finally:
        child.communicate()
    now[0] = 60.0
    gone = host.read()
    assert (gone.rss_mib, gone.process_cpu_percent, gone.cpu_limit_cores) == (None, None, None)
    assert "no longer exists" in host.missing["rss_mib"] or "not found" in host.missing["rss_mib"]
    assert gone.memory_used_mib > 0


def test_a_group_of_version_2_tells_its_narrowest_limit_and_what_counts(tmp_path):
    group = "sys/fs/cgroup/pod/box"
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/box\n",
            f"{group}/memory.max": "max\n",
            f"{group}/cpu.max": "max 100000\n",
            f"{group}/cpu.stat": "usage_usec 5\nnr_throttled 1\nthrottled_usec 9\n",
            "sys/fs/cgroup/pod/memory.max": f"{512 * MIB}\n",
            "sys/fs/cgroup/pod/memory.current": f"{300 * MIB}\n",
            "sys/fs/cgroup/pod/memory.stat": f"anon 5\ninactive_file {100 * MIB}\n",
            "sys/fs/cgroup/pod/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/pod/cpu.stat": "usage_usec 5\nthrottled_usec 2500000\n",
        },
    )
    assert cgroup.memory_limit(tmp_path) == 512 * MIB
    assert cgroup.memory_in_limit(tmp_path) == 200 * MIB
    assert (cgroup.cpu_quota(tmp_path), cgroup.throttled_s(tmp_path)) == (1.5, 2.5)


def test_a_group_of_version_1_tells_the_same(tmp_path):
    write(
        tmp_path,
        {
            # Named as the host sees it: in the container the top is the group.
            "proc/12/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{256 * MIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{200 * MIB}\n",
            "sys/fs/cgroup/memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {50 * MIB}\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu/cpu.stat": "nr_periods 9\nthrottled_time 4000000000\n",
        },
    )
    assert cgroup.memory_limit(tmp_path, 12) == 256 * MIB
    assert cgroup.memory_in_limit(tmp_path, 12) == 150 * MIB
    assert (cgroup.cpu_quota(tmp_path, 12), cgroup.throttled_s(tmp_path, 12)) == (0.5, 4.0)


def test_without_limits_there_are_none(tmp_path):
    unlimited = {
        "proc/self/cgroup": "0::/\n4:memory:/\n",
        "sys/fs/cgroup/memory.max": "max\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/cpu.stat": "usage_usec 5\nthrottled_usec 9\n",
    }
    for files in ({}, unlimited):
        write(tmp_path, files)
        assert cgroup.memory_limit(tmp_path) is None
        assert cgroup.memory_in_limit(tmp_path) is None
        assert cgroup.cpu_quota(tmp_path) is None
        assert cgroup.throttled_s(tmp_path) is None


def test_a_core_is_busy_between_nothing_and_all_of_the_time():
    cores = _BusyCores()
    with pytest.raises(Exception, match="two readings"):
        cores.busy()
    time.sleep(0.05)
    assert all(0 <= core <= 1 for core in cores.busy())


def test_what_is_kept_does_not_grow_without_end():
    kept = Kept(most=100)
    for moment in range(1000):
        kept.add(Sample(float(moment), HostReading()))
        kept.mark(StepMark(float(moment), steps=2, seconds=0.5, examples=None))
    everything = (-1.0, 1e9)
    samples, marks = kept.samples(*everything), kept.steps(*everything)
    assert max(len(samples), len(marks)) <= 100
    assert [each.at_s for each in samples[-50:]] == [float(n) for n in range(950, 1000)]
    assert samples[0].at_s == 0
    times = [mark.ended_s for mark in marks]
    assert times == sorted(times)
    # However they were joined, nothing is lost of their sums.
    assert sum(mark.steps for mark in marks) == 2000
    assert sum(mark.seconds for mark in marks) == 500
    assert {mark.examples for mark in marks} == {None}
    assert [each.at_s for each in kept.samples(960.0, 962.0)] == [960, 961, 962]
    assert kept.newest().at_s == 999
