"""The page of a bench report: self-contained, small, escaped, and as Chromium shows it."""

from __future__ import annotations

import base64
import csv
import gzip
import io
import json
import re
import struct

import pytest

from tfopt.report.bench.bench_html import render_bench_html, windows_csv
from tfopt.report.bench.bench_report import BenchReport
from tfopt.report.bench.bench_view import view_of

ADDRESSES = ("href", "src", "srcset", "action", "data", "poster", "formaction", "xlink:href")
EVERY = ["cpu", "gpu", "rough", "lossy", "quick", "pair", "ablation", "single"]
RENDERED: dict[int, str] = {}


@pytest.fixture
def page(request):
    """The page of a fixture's report, rendered once for all tests."""

    def render(which: str) -> str:
        report = request.getfixturevalue(which)
        if id(report) not in RENDERED:
            RENDERED[id(report)] = render_bench_html(report)
        return RENDERED[id(report)]

    return render


def downloads(parsed):
    """Name and content of every file in a page."""
    found = {}
    for tag, attributes in parsed.tags:
        if tag == "a" and "download" in attributes:
            content = base64.b64decode(attributes["href"].partition(";base64,")[2])
            packed = attributes["download"].endswith(".gz")
            found[attributes["download"]] = (
                gzip.decompress(content) if packed else content
            ).decode()
    return found


@pytest.mark.parametrize("which", [*EVERY, "hostile"])
def test_nothing_is_fetched_and_nothing_runs(page, which, page_of):
    parsed = page_of(page(which))
    names = {tag for tag, _ in parsed.tags}
    assert not names & {"script", "iframe", "img", "object", "embed", "form", "base", "image"}
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


@pytest.mark.parametrize("which", [*EVERY, "hostile", "largest"])
def test_all_raw_data_are_inside(request, page, which, page_of, texts):
    report = request.getfixturevalue(which)
    found = downloads(page_of(page(which)))
    document, table = found.values()
    encodable = texts(report, lambda text: text.replace("\ud800", "?"))
    assert BenchReport.from_json(document) == encodable
    rows = list(csv.DictReader(io.StringIO(table)))
    blocks = [block for variant in report.variants for block in variant.blocks]
    assert [float(row["step_ms"]) for row in rows] == [w for b in blocks for w in b.windows_ms]
    assert sum(row["counted"] == "no" for row in rows) == sum(
        len(block.windows_ms) for block in blocks if block.invalid
    )


def test_a_spreadsheet_takes_no_name_for_a_formula(cpu):
    assert {row["variant"] for row in csv.DictReader(io.StringIO(windows_csv(cpu)))} == {
        "baseline", "'+ LearningRate", "'+ Pipeline", "'+ Execution", "'+ Prune",
    }  # fmt: skip


@pytest.mark.parametrize("which", [*EVERY, "hostile", "largest"])
def test_a_page_is_under_a_megabyte(page, which):
    assert len(page(which).encode()) < 1_000_000


def test_a_page_stays_under_a_megabyte_where_nobody_rounds(unrounded, page, page_of):
    assert len(unrounded.to_json()) > 1_500_000
    text = page("unrounded")
    assert len(text.encode()) < 1_000_000
    assert "Everything, as JSON, rounded to 6 digits, gzipped" in text
    document, _ = downloads(page_of(text)).values()
    inside = BenchReport.from_json(document)
    for one, other in zip(inside.variants, unrounded.variants, strict=True):
        assert one.windows_ms == pytest.approx(other.windows_ms, rel=1e-5)


def test_hostile_texts_are_shown_as_they_are(hostile, page, page_of):
    parsed = page_of(page("hostile"))
    view = view_of(hostile)
    spaced = " ".join(parsed.text.split())
    for told in (view.title, view.keep, *view.dropped, *(row.transform for row in view.rows)):
        assert told in spaced
    assert "\x1b" not in parsed.text
    assert "\u202e" not in parsed.text


def test_every_variant_is_in_the_table_and_tells_its_reason(page, page_of):
    parsed = page_of(page("rough"))
    assert sum(a.get("scope") == "row" for _, a in parsed.tags) == 6
    spaced = " ".join(parsed.text.split())
    assert "refused Execution and Distribute cannot run together." in spaced
    assert "failed MemoryError: no room" in spaced
    assert "forced: another program was using the CPU" in spaced


def test_a_quick_measurement_has_a_mark_at_every_heading(page):
    text = page("quick")
    headings = re.findall(r"<h2>.*?</h2>", text)
    assert len(headings) == 6
    assert all('<span class="flag">quick</span>' in heading for heading in headings)
    assert "<h1>cnn_mnist (quick)</h1>" in text


def test_each_footnote_that_is_pointed_at_is_there(page, page_of):
    parsed = page_of(page("gpu"))
    targets = {a["id"] for _, a in parsed.tags if a.get("id", "").startswith("note-")}
    assert targets == {a["href"][1:] for t, a in parsed.tags if t == "a" and a["href"][0] == "#"}
    assert targets


# Chromium tells the layout: what leaves the screen or its drawing, what lies on what, how large
# the letters are.
MEASURE = """<!DOCTYPE html><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<body><script>
const page = PAGE, widths = WIDTHS, found = {};
const beyond = (box, inner) => Math.max(box.left - inner.left, inner.right - box.right,
  box.top - inner.top, inner.bottom - box.bottom);
const crossed = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
  Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3;
function told(svg, view) {
  const box = svg.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width;
  const texts = [...svg.querySelectorAll("text")].filter(text => text.textContent.trim());
  const places = texts.map(text => text.getBoundingClientRect());
  const pairs = places.flatMap((one, n) => places.slice(n + 1).map((other, m) => [n, n + 1 + m]));
  return {
    beyond: Math.max(...places.map(place => beyond(box, place))),
    size: Math.min(...texts.map(text => scale * parseFloat(view.getComputedStyle(text).fontSize))),
    crossed: pairs.filter(([n, m]) => crossed(places[n], places[m]))
      .map(([n, m]) => texts[n].textContent + " on " + texts[m].textContent),
    height: box.height, shapes: svg.querySelectorAll("path, use").length,
    ink: view.getComputedStyle(texts[0]).fill,
  };
}
const frames = widths.map(width => new Promise(done => {
  const frame = document.createElement("iframe");
  frame.style = `border:0;height:900px;width:${width}px`;
  frame.onload = () => {
    const inner = frame.contentDocument, view = frame.contentWindow;
    const plots = [...inner.querySelectorAll("figure > svg")];
    const scroll = inner.querySelector(".scroll");
    found[width] = {
      excess: inner.documentElement.scrollWidth - inner.documentElement.clientWidth,
      table: scroll.scrollWidth - scroll.clientWidth,
      background: view.getComputedStyle(inner.body).backgroundColor,
      columns: new Set(plots.map(svg => svg.getBoundingClientRect().left)).size,
      plots: Object.fromEntries(plots.map(svg => [svg.parentNode.id, told(svg, view)])),
    };
    done();
  };
  frame.srcdoc = page;
  document.body.append(frame);
}));
Promise.all(frames).then(() => {
  const told = document.createElement("pre");
  told.id = "found";
  told.textContent = JSON.stringify(found);
  document.body.replaceChildren(told);
});
</script>"""


def laid_out(chromium, text, widths, *options):
    measure = MEASURE.replace("PAGE", json.dumps(text).replace("<", "\\u003c"))
    measure = measure.replace("WIDTHS", json.dumps(widths))
    dom = chromium(measure, "--virtual-time-budget=10000", "--dump-dom", *options)
    found = re.search(r'<pre id="found">(.*?)</pre>', dom, re.DOTALL)
    assert found, dom[:2000]
    return {int(width): values for width, values in json.loads(found.group(1)).items()}


@pytest.mark.parametrize("which", ["gpu", "rough", "hostile", "endless", "single", "largest"])
def test_no_text_is_clipped_and_none_lies_on_another(page, which, chromium):
    text = page(which)
    expected = set(re.findall(r'<figure class="card" id="(plot-[\w-]+)"', text))
    found = laid_out(chromium, text, [390, 1280])
    for width, values in found.items():
        assert values["excess"] == 0
        assert set(values["plots"]) == expected
        for name, plot in values["plots"].items():
            assert plot["beyond"] <= 0.5, (width, name, plot)
            assert plot["crossed"] == [], (width, name)
            assert plot["size"] >= 9, (width, name, plot["size"])
            assert plot["height"] > 60
            assert plot["shapes"] > 2
    assert found[390]["columns"] == 1
    assert found[1280]["columns"] == 2


def test_the_measuring_page_sees_a_text_that_is_clipped(page, chromium):
    moved, count = re.subn(
        r'(<text style="[^"]*text-anchor: end[^"]*" x=")', r"\g<1>9", page("cpu")
    )
    assert count
    found = laid_out(chromium, moved, [1280])[1280]["plots"]
    assert max(plot["beyond"] for plot in found.values()) > 100


def test_the_table_fits_a_desktop(page, chromium):
    assert laid_out(chromium, page("gpu"), [1280])[1280]["table"] == 0


def test_light_and_dark_reach_into_the_plots(page, chromium):
    light, dark = (
        laid_out(chromium, page("cpu"), [390], f"--blink-settings=preferredColorScheme={scheme}")[
            390
        ]
        for scheme in (1, 0)
    )
    assert light["background"] == "rgb(246, 247, 248)"
    assert dark["background"] == "rgb(16, 19, 22)"
    assert {plot["ink"] for plot in light["plots"].values()} != {
        plot["ink"] for plot in dark["plots"].values()
    }
    assert all(plot["ink"] != "rgb(0, 0, 0)" for plot in dark["plots"].values())


@pytest.mark.parametrize("which", ["gpu", "hostile"])
def test_the_console_stays_empty(page, which, chromium):
    loud = ("--enable-logging=stderr", "--dump-dom", "--virtual-time-budget=5000")
    assert "CONSOLE" not in chromium(page(which), *loud, errors=True)
    # What the page's own policy forbids is told on the console: the test can fail.
    broken = page(which).replace("<main>", '<main><img src="https://example.invalid/x.png">')
    assert "CONSOLE" in chromium(broken, *loud, errors=True)


def test_on_paper_everything_is_there(page, chromium, tmp_path):
    target = tmp_path / "report.pdf"
    chromium(page("gpu"), f"--print-to-pdf={target}", "--no-pdf-header-footer")
    content = target.read_bytes()
    assert content.startswith(b"%PDF")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", content)) <= 14


def test_screenshots(page, chromium, tmp_path):
    shots = []
    for scheme in (0, 1):
        picture = tmp_path / f"{scheme}.png"
        options = (f"--blink-settings=preferredColorScheme={scheme}", "--window-size=1280,1700")
        chromium(page("gpu"), f"--screenshot={picture}", *options)
        shots.append(picture.read_bytes())
        assert struct.unpack(">II", shots[-1][16:24]) == (1280, 1700)
        # A blank page compresses to a few kilobytes.
        assert len(shots[-1]) > 100_000
    assert shots[0] != shots[1]
