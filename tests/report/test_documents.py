"""A report as a page, as Markdown and in a terminal: what each shows, and texts that stay texts."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import pytest
from rich.console import Console

from tfopt.report.html import as_html
from tfopt.report.markdown import as_markdown, code, escape
from tfopt.report.statistics import Comparison
from tfopt.report.terminal import as_terminal
from tfopt.report.view import view_of

EVERY = ["trained", "single", "rough_bench", "hostile_bench"]
ADDRESSES = ("href", "src", "srcset", "action", "data", "poster", "formaction", "xlink:href")
MARKDOWN = {
    "h2", "p", "strong", "em", "code", "ul", "li", "br", "details", "summary",
    "table", "thead", "tbody", "tr", "th", "td", "blockquote",
}  # fmt: skip
PAGES: dict[str, str] = {}


@pytest.fixture
def page(request):
    """The page of a fixture's report, rendered once for all tests."""

    def render(which: str) -> str:
        if which not in PAGES:
            PAGES[which] = as_html(request.getfixturevalue(which))
        return PAGES[which]

    return render


def shown(report, width, **options):
    console = Console(file=io.StringIO(), width=width, **options)
    console.print(as_terminal(view_of(report)))
    return console.file.getvalue()


def test_no_form_of_a_report_loads_tensorflow(cpu, tmp_path, fresh_python):
    path = tmp_path / "bench.json"
    path.write_text(cpu.to_json())
    printed = fresh_python(
        f"""
        import sys
        from tfopt.report import Report
        report = Report.read({str(path)!r})
        report.save({str(tmp_path)!r}), str(report)
        print(*(name in sys.modules for name in ("keras", "tensorflow")))
        """
    )
    assert printed.split() == ["False", "False"]


@pytest.mark.parametrize("which", EVERY)
def test_a_page_fetches_and_runs_nothing(page, which, page_of):
    parsed = page_of(page(which))
    names = {tag for tag, _ in parsed.tags}
    assert not names & {"script", "iframe", "img", "object", "embed", "form", "base", "image", "b"}
    ids = {attributes["id"] for _, attributes in parsed.tags if "id" in attributes}
    for _, attributes in parsed.tags:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ADDRESSES:
            address = attributes.get(name)
            if address:
                assert address.startswith("data:") or address[1:] in ids
        assert not re.search(r"url\((?!#)|@import", " ".join(filter(None, attributes.values())))
    assert "url(" not in parsed.style
    assert "@import" not in parsed.style
    (policy,) = (a for _, a in parsed.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy["content"].startswith("default-src 'none'")


def test_hostile_texts_are_shown_as_they_are_on_a_page(hostile_bench, page, page_of):
    parsed = page_of(page("hostile_bench"))
    view = view_of(hostile_bench)
    spaced = " ".join(parsed.text.split())
    for text in (view.title, view.keep, *view.notes, *(row.transform for row in view.table.rows)):
        assert " ".join(text.split()) in spaced
    assert "\x1b" not in parsed.text
    assert "\u202e" not in parsed.text
    # An attribute ends where the template ends it.
    titles = {a["title"] for _, a in parsed.tags if "title" in a}
    assert titles <= {*view.table.footnotes, *view.serving.footnotes}


def test_every_row_of_a_page_says_what_became_of_it(page, page_of):
    parsed = page_of(page("rough_bench"))
    assert sum(a.get("scope") == "row" for _, a in parsed.tags) == 6
    spaced = " ".join(parsed.text.split())
    assert "refused Execution and Distribute cannot run together." in spaced
    assert "failed MemoryError: no room" in spaced
    assert "interrupted Ctrl-C" in spaced
    assert "forced: another program was using the CPU" in spaced


@pytest.mark.parametrize("which", ["trained", "gpu"])
def test_each_footnote_that_is_pointed_at_is_there(page, which, page_of):
    parsed = page_of(page(which))
    ids = [a.get("id", "") for _, a in parsed.tags]
    targets = {name for name in ids if name.startswith(("note-", "serving-note-"))}
    assert targets == {a["href"][1:] for t, a in parsed.tags if t == "a" and a["href"][0] == "#"}
    assert targets


@pytest.mark.parametrize("which", EVERY)
def test_markdown_has_no_markup_of_a_text_and_a_row_each(request, which, markdown_of):
    report = request.getfixturevalue(which)
    parsed = markdown_of(as_markdown(view_of(report)))
    assert {tag for tag, _ in parsed.tags} <= MARKDOWN
    assert all(not attributes or "style" in attributes for _, attributes in parsed.tags)
    # The title is the only heading.
    assert sum(tag == "h2" for tag, _ in parsed.tags) == 1
    view = view_of(report)
    figures = next(t for t in parsed.tables if t[0][1] == view.table.columns[0].heading)
    assert {len(row) for row in figures} == {len(view.table.columns) + 1}
    assert [row[0] for row in figures[1:]] == [
        row.name.replace("@", "@\u200b") for row in view.table.rows
    ]


def test_markdown_quotes_a_warning_and_keeps_nothing_then(lossy):
    markdown = as_markdown(view_of(lossy))
    lost = "Quality is lost, not recommended: chains up to + Prune (-1.20 points)."
    assert f"> **{lost}**" in markdown
    assert "Keep" not in markdown


def test_escape_leaves_plain_words_alone():
    plain = "steps_per_execution=16, 10 % (a-b) + c."
    assert escape(plain) == plain
    assert escape("<b> & @x|y\nz") == "&lt;b&gt; &amp; @&#8203;x\\|y<br>z"


@pytest.mark.parametrize("text", ["a", "a`b", "``", "`a", "a```b`", "a|b", "<b>"])
def test_code_is_shown_as_it_is(text, markdown_of):
    parsed = markdown_of(f"- {code(text)}")
    assert parsed.text.strip() == text
    assert [tag for tag, _ in parsed.tags] == ["ul", "li", "code"]


def test_the_last_lines_are_what_to_do(cpu, rough_bench):
    *_, keep, brought = shown(cpu, 400).rstrip().splitlines()
    assert keep.strip() == f"Keep for its speed: {cpu.recommendation.keep}"
    assert brought.split(maxsplit=1) == ["Brought:", cpu.recommendation.brought]
    measured = replace(cpu.recommendation, brought="")  # of which the headline says it
    told = shown(replace(cpu, recommendation=measured), 400).rstrip().splitlines()[-1]
    assert told.split(maxsplit=1) == ["Brought:", view_of(cpu).headline]
    assert shown(rough_bench, 400).rstrip().splitlines()[-1] == view_of(rough_bench).headline


@pytest.mark.parametrize("width", [40, 200])
@pytest.mark.parametrize("which", ["trained", "gpu"])
def test_every_figure_is_whole_in_a_terminal_of_any_width(request, which, width):
    report = request.getfixturevalue(which)
    text = shown(report, width)
    assert max(map(len, text.splitlines())) <= width
    view = view_of(report)
    for row in (*view.table.rows, *(view.serving.rows if view.serving else ())):
        for cell in row.cells:
            for part in (cell.text, cell.detail, cell.badge):
                assert part in text
    assert "\N{HORIZONTAL ELLIPSIS}" not in text


def test_texts_in_a_terminal_are_neither_markup_nor_control_codes(hostile_bench):
    marked = replace(hostile_bench, title="[red]t[/red] [/]", data="[link=http://x]d[/link]")
    text = shown(marked, 200, force_terminal=True)
    assert "[red]t[/red] [/]" in text
    assert "[link=http://x]d[/link]" in text
    text = shown(hostile_bench, 200)
    assert "\x1b" not in text
    assert "\u202e" not in text
    text.encode()


# Chromium measures the layout: what leaves the screen, or its table.
MEASURE = """<!DOCTYPE html><meta charset="utf-8"><body><script>
const pages = PAGES, widths = WIDTHS, found = {};
const frames = pages.flatMap(([name, page]) => widths.map(width => new Promise(done => {
  const frame = document.createElement("iframe");
  frame.style = `border:0;height:900px;width:${width}px`;
  frame.onload = () => {
    const root = frame.contentDocument.documentElement;
    const boxes = [root, ...root.querySelectorAll(".scroll")];
    found[name + " " + width] = Math.max(...boxes.map(box => box.scrollWidth - box.clientWidth));
    done();
  };
  frame.srcdoc = page;
  document.body.append(frame);
})));
Promise.all(frames).then(() => {
  document.body.innerHTML = "<pre id=found></pre>";
  document.getElementById("found").textContent = JSON.stringify(found);
});
</script>"""


def test_on_no_screen_is_text_clipped(page, chromium):
    pages = {which: page(which) for which in ("gpu", "trained", "hostile_bench", "endless_bench")}
    # A card that is wider than the screen: the test can fail.
    moved = page("cpu").replace('class="card keep"', 'class="card keep" style="width:2000px"')
    shown = json.dumps([*pages.items(), ("moved", moved)]).replace("<", "\\u003c")
    dom = chromium(
        MEASURE.replace("PAGES", shown).replace("WIDTHS", "[390, 800, 1101, 1200, 1280]")
    )
    found = json.loads(re.search(r'<pre id="found">(.*?)</pre>', dom, re.DOTALL).group(1))
    assert found.pop("moved 390") > 100
    assert {each: excess for each, excess in found.items() if excess and "moved" not in each} == {}


def test_a_bar_lies_where_the_figure_says(ablation, page_of):
    first, *others = ablation.variants
    compared = (Comparison(0.5, 0.25, 1.0, 6), Comparison(2.0, 1.0, 8.0, 6))
    changed = [replace(v, against_reference=c) for v, c in zip(others, compared, strict=True)]
    parsed = page_of(as_html(replace(ablation, variants=(first, *changed))))
    styles = [a["style"] for _, a in parsed.tags if a.get("class") in ("interval", "point")]
    # Twice as fast lies as far from the middle as half as fast; what is beyond 4 times is cut.
    assert styles == ["left:50.0%;right:0.0%", "left:75.0%", "left:0.0%;right:50.0%", "left:25.0%"]
