"""The README is run: each Python block in a fresh process and folder, as a reader would."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def test_there_is_a_block_for_each_function():
    text = "\n".join(BLOCKS)
    for name in (
        "place",
        "mixed_precision",
        "distribute",
        "pipeline",
        "prune",
        "cluster",
        "quantize_aware",
        "footprint",
        "sensitivity",
        "distill",
        "quantize",
        "remove_channels",
        "execution",
        "keep_host_memory",
        "resume",
        "remat",
        "accumulate",
        "training_memory",
        "Monitor",
        "explain_out_of_memory",
        "run",
    ):
        assert f"tfopt.{name}(" in text
    assert all(len(block.strip().splitlines()) <= 20 for block in BLOCKS)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_block_runs_as_it_stands(number, run_page_block):
    assert run_page_block(BLOCKS[number]).strip()


def test_every_command_in_the_readme_exists():
    for name in re.findall(r"^make (\w+)", README, flags=re.MULTILINE):
        assert re.search(rf"^{name}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    for name in re.findall(r"recipes/\w+\.toml", README):
        assert (ROOT / name).exists()


def test_every_link_to_a_file_leads_somewhere():
    for name in re.findall(r"`((?:tfopt|recipes|benchmarks|tests)/[\w./]*\w)`", README):
        assert (ROOT / name).exists(), name
