"""The notebooks of docs/notebooks are whole, and run as their readers would run them."""

import json
import re

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError, CellTimeoutError
from notebooks import FOLDER, executed

PATHS = sorted(FOLDER.glob("*.ipynb"))
KILOBYTES = 300
each_notebook = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@each_notebook
def test_it_is_kept_with_what_it_showed(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    outputs = [output for cell in cells for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {
        "stream",
        "display_data",
        "execute_result",
    }
    assert any("text/html" in output.get("data", {}) for output in outputs)
    assert path.stat().st_size < 1000 * KILOBYTES


@each_notebook
def test_it_shows_no_noise_and_nothing_private(path):
    notebook = nbformat.read(path, as_version=4)
    shown = json.dumps([cell.outputs for cell in code_cells(notebook)])
    for unwanted in (r"\\u001b", "stderr", "INFO:", "WARNING", r"[IWE]0000 ", r"\d+it/s"):
        assert not re.search(unwanted, shown), unwanted
    everything = path.read_text("utf-8")
    assert not re.search(r"/(?:home|root|tmp|var|work|usr|opt)/\w|site-packages", everything)


@each_notebook
def test_its_links_lead_somewhere(path):
    cells = nbformat.read(path, as_version=4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", text)
    assert links
    assert [link for link in links if not (FOLDER / link).exists()] == []


@each_notebook
def test_it_stands_on_the_site(path):
    index = (FOLDER / "index.md").read_text("utf-8")
    assert f"]({path.name})" in index
    assert f"\n{path.stem}\n" in index.partition("{toctree}")[2]


@pytest.mark.slow
@each_notebook
def test_it_runs(path, tmp_path):
    try:
        executed(path, tmp_path)
    except (CellExecutionError, CellTimeoutError) as error:
        pytest.fail(f"{path.name}: {error}")
