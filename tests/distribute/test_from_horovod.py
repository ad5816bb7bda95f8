"""What the page about Horovod tells its readers to run, run as they would: two real workers."""

import re
from pathlib import Path

import pytest
from page_lines import launched

pytestmark = pytest.mark.slow


PAGE = (Path(__file__).parents[2] / "docs" / "from_horovod.md").read_text(encoding="utf-8")


def block(language, *, last=True):
    blocks = re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    return blocks[-1 if last else 0]


def run(folder):
    """The page's command; what it printed."""
    return launched(folder, block("sh").split())


def test_the_page_s_script_trains_alike_on_two_workers_and_knows_when_it_is_done(tmp_path):
    (tmp_path / "train.py").write_text(block("python"), encoding="utf-8")
    said = [
        dict(re.findall(r"worker (\d) of 2: accuracy (0\.\d+)", run(tmp_path))) for _ in range(2)
    ]
    assert set(said[0]) == {"0", "1"}
    assert len(set(said[0].values())) == 1, "the accuracy is that of all workers"
    assert float(said[0]["0"]) > 0.3
    # A second start finds both epochs trained, and trains none again.
    assert said[1] == said[0]
    assert any((tmp_path / "checkpoints").iterdir())
