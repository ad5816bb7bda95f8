"""What the pages about several GPUs and machines, and Horovod, tell to run, run as readers would."""

import re
import shlex
from pathlib import Path

import pytest
from page_lines import launched

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "distributed_training.md").read_text(encoding="utf-8")
HOROVOD = (DOCS / "from_horovod.md").read_text(encoding="utf-8")


def block(name):
    """The script that opens with its name."""
    (found,) = re.findall(rf"^```python\n(# {name}\n.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    return found


def lines():
    shell = re.findall(r"^```sh\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    joined = [each.replace("\\\n", " ") for each in shell]
    return [shlex.split(line, comments=True) for each in joined for line in each.splitlines()]


@pytest.mark.parametrize(
    ("script", "flags", "said"),
    [
        # The first line of the page, and the same script without the launcher.
        ("train.py", ["--workers", "2"], r"loss: \d"),
        pytest.param("train.py", None, r"loss: \d", marks=pytest.mark.slow),
        pytest.param("train_loop.py", None, r"epoch 1, loss: \d\.\d", marks=pytest.mark.slow),
        pytest.param(
            "train_async.py",
            ["--ps", "1"],
            r"\[chief 0\] loss \[\d.*staleness \[",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_script_of_the_page_runs_as_it_stands(tmp_path, script, flags, said):
    (tmp_path / script).write_text(block(script), encoding="utf-8")
    line = ["python", script]
    if flags is not None:
        line = next(each for each in lines() if each[-1] == script and set(flags) <= {*each})
    out = launched(tmp_path, line)
    assert re.search(said, out)
    if script == "train.py":
        assert len(re.findall(said, out)) == 1, "the chief alone prints"
        assert (tmp_path / "trained.keras").is_file()


def test_the_lines_that_write_a_file_write_it(tmp_path):
    written = [each for each in lines() if "--output" in each]
    assert {each[2] for each in written} == {"slurm", "kubernetes"}
    for each in written:
        launched(tmp_path, each)
        assert (tmp_path / each[each.index("--output") + 1]).stat().st_size > 500


@pytest.mark.slow
def test_horovod_s_script_trains_alike_on_two_workers_and_knows_when_it_is_done(tmp_path):
    def blocks(language):
        return re.findall(rf"^```{language}\n(.*?)^```", HOROVOD, re.MULTILINE | re.DOTALL)

    (tmp_path / "train.py").write_text(blocks("python")[-1], encoding="utf-8")
    (command,) = (block for block in blocks("sh") if block.startswith("tfopt launch"))
    out = [launched(tmp_path, command.split()) for _ in range(2)]
    said = [dict(re.findall(r"worker (\d) of 2: accuracy (0\.\d+)", each)) for each in out]
    assert set(said[0]) == {"0", "1"}
    assert len(set(said[0].values())) == 1, "the accuracy is that of all workers"
    assert float(said[0]["0"]) > 0.3
    # A second start finds both epochs trained, and trains none again.
    assert said[1] == said[0]
    assert any((tmp_path / "checkpoints").iterdir())
