"""Memory left: control groups of both versions, as real files."""

import pytest

from tfopt.data.host_memory import available_memory, require_fits
from tfopt.errors import UserError

MIB = 1024**2


def group(folder, **values):
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        (folder / name.replace("__", ".")).write_text(str(value))


def test_version_2_limits_with_its_page_cache_given_back(tmp_path):
    group(tmp_path / "proc" / "self", cgroup="0::/job/step\n")
    root = tmp_path / "sys" / "fs" / "cgroup"
    group(root / "job" / "step", memory__max="max", memory__current=30 * MIB)
    group(
        root / "job",
        memory__max=100 * MIB,
        memory__current=60 * MIB,
        memory__stat=f"anon 1\ninactive_file {20 * MIB}\n",
    )
    memory = available_memory(tmp_path)
    assert memory.available_bytes == 60 * MIB
    assert str(root / "job") in memory.limited_by


def test_version_1_limits_and_none(tmp_path):
    group(tmp_path / "proc" / "self", cgroup="4:memory:/a\n3:cpu:/a\n")
    limited = tmp_path / "sys" / "fs" / "cgroup" / "memory" / "a"
    group(limited, memory__limit_in_bytes=50 * MIB, memory__usage_in_bytes=10 * MIB)
    assert available_memory(tmp_path).available_bytes == 40 * MIB
    group(limited, memory__limit_in_bytes=2**63 - 4096, memory__usage_in_bytes=1)
    for root in (tmp_path, tmp_path / "none"):
        assert available_memory(root).limited_by == "the machine's free memory"


def test_what_does_not_fit_is_refused_with_the_figures():
    with pytest.raises(UserError, match="does not fit") as caught:
        require_fits(1 << 50, what="The cache", detail="too many", fix="fewer")
    assert "1,073,741,824 MiB" in caught.value.received
    require_fits(1, what="The cache", detail="one byte", fix="none")
