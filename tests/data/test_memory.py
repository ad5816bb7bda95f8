"""Memory left: within the narrowest control group, or on the machine."""

from tfopt.data.host_memory import available_memory

MIB = 1024**2


def test_the_limit_of_a_group_counts_without_its_page_cache(tmp_path):
    group = tmp_path / "sys" / "fs" / "cgroup" / "job"
    for path, text in {
        tmp_path / "proc" / "self" / "cgroup": "0::/job\n",
        group / "memory.max": str(100 * MIB),
        group / "memory.current": str(60 * MIB),
        group / "memory.stat": f"anon 1\ninactive_file {20 * MIB}\n",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    memory = available_memory(tmp_path)
    assert memory.available_bytes == 60 * MIB
    assert str(group) in memory.limited_by
    assert available_memory(tmp_path / "none").limited_by == "the machine's free memory"
