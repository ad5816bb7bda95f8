"""How many cores a process may use."""

from tfopt.job import cgroup


def test_usable_cores_are_whole_ones_within_affinity_and_quota(monkeypatch):
    monkeypatch.setattr(cgroup, "allowed_cores", lambda: 8)
    for quota, cores in ((None, 8), (2.5, 2), (0.5, 1), (64.0, 8)):
        monkeypatch.setattr(cgroup, "cpu_quota", lambda quota=quota: quota)
        assert cgroup.usable_cores() == cores
