"""Reports read and shown: refusals by name, and texts that stay texts in each form."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import pytest
from rich.console import Console

from tfopt.errors import UserError
from tfopt.report.documents import publish, read_any
from tfopt.report.html import as_html
from tfopt.report.markdown import as_markdown
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
    console.print(as_terminal(report))
    return console.file.getvalue()


def test_what_is_published_is_read_by_its_name_or_its_folder(single, tmp_path):
    publish(single, tmp_path)
    assert read_any(tmp_path / "bench.json") == read_any(tmp_path) == single
    assert "One job alone" in (tmp_path / "bench.md").read_text()
    assert "Everything, as JSON" in (tmp_path / "bench.html").read_text()


@pytest.mark.parametrize("content", ['{"schema": "other/1"}', "[]", "", "[" * 100_000])
def test_anything_else_is_refused(content, tmp_path):
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r"other\.json") as caught:
        read_any(path)
    if "other" in content:
        assert "tfopt.bench/6" in caught.value.expected


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
    for text in (view.title, view.keep, *view.dropped, *(row.transform for row in view.table.rows)):
        assert text in spaced
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
    parsed = markdown_of(as_markdown(report))
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


# Chromium measures the layout: what leaves the screen or its drawing, what lies on what, how large
# the letters are.
MEASURE = """<!DOCTYPE html><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<body><script>
const pages = PAGES, widths = WIDTHS, found = {};
const beyond = (box, inner) => Math.max(box.left - inner.left, inner.right - box.right,
  box.top - inner.top, inner.bottom - box.bottom);
const crossed = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
  Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3;
function drawn(plot, view) {
  const box = plot.getBoundingClientRect();
  const texts = [...plot.querySelectorAll(".name, .value, .unit, .axis span")];
  const places = texts.map(text => text.getBoundingClientRect());
  const pairs = places.flatMap((one, n) => places.slice(n + 1).map((other, m) => [n, n + 1 + m]));
  return {
    beyond: Math.max(...places.map(place => beyond(box, place))),
    size: Math.min(...texts.map(text => parseFloat(view.getComputedStyle(text).fontSize))),
    crossed: pairs.filter(([n, m]) => crossed(places[n], places[m]))
      .map(([n, m]) => texts[n].textContent + " on " + texts[m].textContent),
    height: box.height, points: plot.querySelectorAll(".point").length,
    ink: view.getComputedStyle(texts[0]).color,
  };
}
const frames = pages.flatMap(([name, page]) => widths.map(width => new Promise(done => {
  const frame = document.createElement("iframe");
  frame.style = `border:0;height:900px;width:${width}px`;
  frame.onload = () => {
    const inner = frame.contentDocument, view = frame.contentWindow;
    const plots = [...inner.querySelectorAll("figure > .plot")];
    const scroll = inner.querySelector(".scroll");
    found[name + " " + width] = {
      excess: inner.documentElement.scrollWidth - inner.documentElement.clientWidth,
      table: scroll.scrollWidth - scroll.clientWidth,
      cards: view.getComputedStyle(inner.querySelector(".results tr:last-child")).display,
      background: view.getComputedStyle(inner.body).backgroundColor,
      columns: new Set(plots.map(plot => plot.getBoundingClientRect().left)).size,
      plots: Object.fromEntries(plots.map(plot => [plot.parentNode.id, drawn(plot, view)])),
    };
    done();
  };
  frame.srcdoc = page;
  document.body.append(frame);
})));
Promise.all(frames).then(() => {
  const result = document.createElement("pre");
  result.id = "found";
  result.textContent = JSON.stringify(found);
  document.body.replaceChildren(result);
});
</script>"""


def laid_out(chromium, pages, widths, *options):
    """What Chromium measures, by the name of a page and the width of its window."""
    measure = MEASURE.replace("PAGES", json.dumps([*pages.items()]).replace("<", "\\u003c"))
    measure = measure.replace("WIDTHS", json.dumps(widths))
    dom = chromium(measure, "--virtual-time-budget=20000", "--dump-dom", *options)
    found = re.search(r'<pre id="found">(.*?)</pre>', dom, re.DOTALL)
    assert found, dom[:2000]
    return json.loads(found.group(1))


def test_on_no_screen_is_text_clipped_or_lies_on_another(page, chromium):
    chosen = ["gpu", "trained", "rough_bench", "hostile_bench", "endless_bench", "largest"]
    pages = {which: page(which) for which in chosen}
    # A drawing whose texts were moved: the test can fail.
    moved, count = re.subn(
        'class="value"', 'class="value" style="margin-right:-200px"', page("cpu")
    )
    assert count
    found = laid_out(chromium, {**pages, "moved": moved}, [390, 800, 1280])
    assert found["gpu 1280"]["table"] == 0
    assert max(plot["beyond"] for plot in found["moved 1280"]["plots"].values()) > 100
    for which, text in pages.items():
        expected = set(re.findall(r'<figure class="card" id="(plot-[\w-]+)"', text))
        for width, columns, cards in ((390, 1, "block"), (800, 1, "block"), (1280, 2, "table-row")):
            values = found[f"{which} {width}"]
            assert (values["excess"], values["columns"]) == (0, min(columns, len(expected)))
            assert values["cards"] == cards
            assert set(values["plots"]) == expected
            for name, plot in values["plots"].items():
                assert plot["beyond"] <= 0.5, (which, width, name, plot)
                assert plot["crossed"] == [], (which, width, name)
                assert plot["size"] >= 9, (which, width, name, plot["size"])
                assert plot["height"] > 45
                assert plot["points"] >= 1


@pytest.mark.slow
def test_a_dark_page_has_dark_plots(page, chromium):
    options = "--blink-settings=preferredColorScheme=0"
    (dark,) = laid_out(chromium, {"cpu": page("cpu")}, [390], options).values()
    assert dark["background"] == "rgb(16, 19, 22)"
    assert "rgb(0, 0, 0)" not in {plot["ink"] for plot in dark["plots"].values()}


def test_the_console_stays_empty(page, chromium):
    """The page's own policy would be heard there."""
    loud = ("--enable-logging=stderr", "--dump-dom", "--virtual-time-budget=5000")
    assert "CONSOLE" not in chromium(page("hostile_bench"), *loud, errors=True)


@pytest.mark.slow
def test_on_paper_everything_is_there(page, chromium, tmp_path):
    target = tmp_path / "report.pdf"
    chromium(page("gpu"), f"--print-to-pdf={target}", "--no-pdf-header-footer")
    content = target.read_bytes()
    assert content.startswith(b"%PDF")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", content)) <= 14
