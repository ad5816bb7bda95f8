"""The README and the pages of docs/ are run and read as a reader would.

A ``python`` block runs as it stands, in a fresh process and folder, those of the README behind its
first one; a ``py`` block is a part of a script and only has to compile. A block that opens with its file's name is a script for a launcher,
which the test of its page runs (``SCRIPTS``). Lines for a shell are parsed, links followed.
"""

import argparse
import ast
import importlib.util
import inspect
import re
import shlex
from functools import cache
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from page_lines import launched

import tfopt
from tfopt.commands.cli import _parser
from tfopt.commands.launch import cut_command
from tfopt.distribute import replicas
from tfopt.job.recipe_file import read_recipe
from tfopt.job.roster import ROSTER, transform_class

ROOT = Path(__file__).parent.parent
PAGES = [
    "README.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")),
]
TABLE = "docs/reference/functions.md"
COMMANDS = "docs/reference/command_line.md"
LINKED = [*PAGES, "CONTRIBUTING.md", "recipes/README.md", "benchmarks/README.md"]
SCRIPTS = {
    "docs/export.md": "tests/export/test_servers.py",
    "docs/distributed_training.md": "tests/distribute/test_distributed_page.py",
    "docs/from_horovod.md": "tests/distribute/test_distributed_page.py",
}
# What has no row in the table of functions: the rooms, and what a job is made of.
NO_ROW = {"Data", "Job", "UserError", "chain", "compress", "data", "job", "report", "train"}


@cache
def tokens(page):
    return MarkdownIt("commonmark").enable("table").parse((ROOT / page).read_text("utf-8"))


def inline(page):
    for token in tokens(page):
        yield from token.children or ()


def fences(page, language):
    return [each.content for each in tokens(page) if each.type == "fence" and each.info == language]


def is_script(block):
    return re.match(r"# \w+\.py\n", block) is not None


def runnable(page):
    """Return the blocks that run as they stand; the README's first one is in front of its others."""
    blocks = [each for each in fences(page, "python") if not is_script(each)]
    return [blocks[0] + each for each in blocks[1:]] if page == "README.md" else blocks


def takes_long(page, number):
    """Return whether a block searches or measures, or is not a page's first one."""
    block = runnable(page)[number - 1]
    return re.search(r"tfopt\.(tune|optimize)\(", block) is not None or (
        number > 1 and page != "README.md"
    )


def numbered(blocks_of, slow=lambda page, number: False):
    """Return each page's blocks with their place, page:number, as a test's name."""
    return [
        pytest.param(
            block,
            id=f"{page}:{number}",
            marks=pytest.mark.slow if slow(page, number) else (),
        )
        for page in PAGES
        for number, block in enumerate(blocks_of(page), 1)
    ]


@pytest.mark.parametrize(
    "block",
    numbered(runnable, slow=takes_long),
)
def test_a_block_runs_as_it_stands(block, run_page_block):
    assert len(block.strip().splitlines()) <= 20
    assert run_page_block(block).strip()


def test_each_script_has_a_test_of_its_own():
    scripts = {
        page: names
        for page in PAGES
        if (names := [each.split()[1] for each in fences(page, "python") if is_script(each)])
    }
    assert scripts.keys() == SCRIPTS.keys()
    for page, names in scripts.items():
        test = (ROOT / SCRIPTS[page]).read_text("utf-8")
        assert Path(page).name in test
        assert all(f'"{name}"' in test for name in names)


@pytest.mark.parametrize("part", numbered(lambda page: fences(page, "py")))
def test_a_part_of_a_script_compiles_and_knows_tfopt(part):
    for node in ast.walk(ast.parse(part)):
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", None) == "tfopt":
            assert node.attr in tfopt.__all__


def lines(page):
    return [
        shlex.split(line, comments=True)
        for block in fences(page, "sh")
        for line in block.replace("\\\n", " ").splitlines()
    ]


@pytest.mark.parametrize("page", LINKED)
def test_every_command_exists_and_takes_its_flags(page):
    for words in lines(page):
        if "tfopt" in words[:2]:
            ours, command = cut_command(words[words.index("tfopt") + 1 :])
            _parser().parse_args(ours, argparse.Namespace(command=command))
        elif words[:2] == ["python", "-m"]:
            assert importlib.util.find_spec(words[2])
    code = [token.content for token in inline(page) if token.type == "code_inline"]
    asked = {each[5:] for each in code if re.fullmatch(r"make [\w-]+", each)}
    asked |= {words[1] for words in lines(page) if words[:1] == ["make"]}
    for name in asked:
        assert re.search(rf"^{name}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE), name


@cache
def headings(page):
    """Return the names by which GitHub links to a page's headings."""
    titles = [
        tokens(page)[at + 1].children
        for at, each in enumerate(tokens(page))
        if each.type == "heading_open"
    ]
    texts = ["".join(part.content for part in title).lower() for title in titles]
    return [re.sub(r"[^\w\- ]", "", text).replace(" ", "-") for text in texts]


@pytest.mark.parametrize("page", LINKED)
def test_every_link_leads_somewhere(page):
    links = [token.attrs.get("href") or token.attrs.get("src") for token in inline(page)]
    for link in filter(None, links):
        if re.match(r"\w+:", link):
            continue
        path, _, heading = link.partition("#")
        target = (ROOT / page).parent.joinpath(path).resolve() if path else ROOT / page
        assert target.exists(), link
        assert not heading or heading in headings(str(target.relative_to(ROOT))), link


@pytest.mark.parametrize("page", LINKED)
def test_every_file_that_is_named_is_there(page):
    code = [each.content for each in inline(page) if each.type == "code_inline"]
    code += fences(page, "sh")
    for name in re.findall(
        r"(?<![\w./])(?:tfopt|docs|recipes|benchmarks|tests)/[\w./*-]*\w", "\n".join(code)
    ):
        assert [*ROOT.glob(name)], name


def rows():
    """Return the table: names of functions and commands, transform, exact, Keras, link."""
    table = re.findall(
        r"^\| (`.*) \| (?:`(\w+)`)? ?\| .* \| (\w*)[^|]*\| ([\d.]*) ?\| \[.*\]\((.*)\) \|$",
        (ROOT / TABLE).read_text("utf-8"),
        flags=re.MULTILINE,
    )
    return [(re.findall("`(.*?)`", names), *rest) for names, *rest in table]


def test_the_table_has_a_row_for_each_transform():
    classes = map(transform_class, ROSTER)
    assert sorted((transform, exact) for _, transform, exact, *_ in rows() if transform) == sorted(
        (each.__name__, "yes" if each.exact else "no") for each in classes
    )


def test_the_table_has_a_row_for_each_function_and_command():
    (commands,) = (
        action.choices
        for action in _parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    named = {name for names, *_ in rows() for name in names}
    named |= {transform for _, transform, *_ in rows() if transform}
    assert named == {*tfopt.__all__} - NO_ROW | {f"tfopt {name}" for name in commands}


def test_the_table_says_which_function_needs_a_newer_keras(monkeypatch):
    told = {names[0]: keras for names, _, _, keras, _ in rows() if keras}
    monkeypatch.setattr(replicas, "library_versions", lambda: {"Keras": "3.8.0"})
    with pytest.raises(tfopt.UserError) as refused:
        replicas.require_metrics_of_replicas()
    assert f"Keras is older than {told['distribute']}" in inspect.getdoc(tfopt.distribute)
    assert refused.value.expected == f"Keras {told.pop('distribute')} or newer"
    assert told == {}


def test_a_block_calls_each_function():
    """What is shown by a command, or takes a GPU or a fresh process, need not be called."""
    blocks = "\n".join(block for page in PAGES for block in fences(page, "python"))
    called = {*re.findall(r"tfopt\.(\w+)\(", blocks)}
    functions = {name for names, *_ in rows() for name in names if name.isidentifier()}
    assert functions - called == {
        "compile_cache",
        "find_batch_size",
        "fused_attention",
        "hardware_estimate",
        "measure",
    }


def test_the_readme_is_short_and_links_to_each_page_of_a_task():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 110
    linked = {token.attrs.get("href", "").partition("#")[0] for token in inline("README.md")}
    tasks = {page for page in PAGES if re.fullmatch(r"docs/\w+\.md", page)}
    assert tasks - {"docs/index.md", "docs/how_to.md"} <= linked


def test_each_page_has_a_block_that_runs():
    """Pages of functions are made from docstrings, whose examples ``test_reference.py`` runs."""
    without = {page for page in PAGES if not fences(page, "python")}
    made = {page for page in PAGES if fences(page, "{eval-rst}")}
    assert without == {COMMANDS, "docs/notebooks/index.md", *made}


@pytest.mark.slow
def test_the_commands_of_the_command_line_run(tmp_path):
    for words in lines(COMMANDS):
        assert launched(tmp_path, words).strip()


def test_the_command_line_has_a_row_for_each_command():
    (commands,) = (
        action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction)
    )
    rows = re.findall(
        r"^\| `tfopt ([\w-]+)[ A-Z]*` \| (.*) \|$",
        (ROOT / COMMANDS).read_text(),
        flags=re.MULTILINE,
    )
    assert rows == [(each.dest, each.help) for each in commands._choices_actions]


@pytest.mark.parametrize("recipe", numbered(lambda page: fences(page, "toml")))
def test_a_recipe_file_is_read(recipe, tmp_path):
    (tmp_path / "recipe.toml").write_text(recipe)
    assert read_recipe(tmp_path / "recipe.toml").chain.parts
