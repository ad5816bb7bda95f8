"""The report as one page: self-contained, escaped, and as Chromium shows it."""

from __future__ import annotations

import base64
import json
import re
import shutil
import struct
import subprocess
from html.parser import HTMLParser

import pytest

from tfopt.report.html import render_html
from tfopt.report.schema import Report
from tfopt.report.view import view_of

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on PATH (Debian: apt install chromium)"
)
VOID = {"meta", "link", "br"}
ADDRESSES = ("href", "src", "srcset", "action", "data", "poster", "formaction", "xlink:href")


class _Page(HTMLParser):
    """Tags, attributes and the text outside of style; every tag must be closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.style = ""
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open and self._open[-1] == "style":
            self.style += data
        else:
            self.text += data


@pytest.mark.parametrize("which", ["report", "hostile", "rough"])
def test_nothing_is_fetched_and_nothing_runs(request, which):
    page = _Page(render_html(request.getfixturevalue(which)))
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "iframe", "img", "object", "embed", "form", "base", "b"}
    addresses = [
        value
        for _, attributes in page.tags
        for name in ADDRESSES
        if (value := attributes.get(name))
    ]
    assert all(re.match(r"#note-\d+$|data:", address) for address in addresses)
    assert any(address.startswith("data:application/json;base64,") for address in addresses)
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert "url(" not in page.style
    assert "@import" not in page.style
    (policy,) = (a for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy["content"]


@pytest.mark.parametrize("which", ["report", "hostile", "rough"])
def test_the_json_inside_is_the_report(request, which):
    report = request.getfixturevalue(which)
    (link,) = (a for tag, a in _Page(render_html(report)).tags if tag == "a" and "download" in a)
    content = base64.b64decode(link["href"].partition(",")[2]).decode()
    assert Report.from_json(content) == report


def test_hostile_texts_are_shown_as_they_are(hostile):
    page = _Page(render_html(hostile))
    view = view_of(hostile)
    spaced = " ".join(page.text.split())
    for told in (view.title, view.keep, *view.dropped, *(row.transform for row in view.rows)):
        assert told in spaced
    assert "\x1b" not in page.text
    assert "\u202e" not in page.text
    # An attribute ends where the template ends it.
    titles = {a["title"] for _, a in page.tags if "title" in a}
    assert titles == set(view.footnotes)


def test_every_row_is_in_the_table_and_tells_its_reason(rough):
    page = _Page(render_html(rough))
    assert [tag for tag, a in page.tags if a.get("scope") == "row"] == ["th"] * 6
    spaced = " ".join(page.text.split())
    assert "refused Execution and Distribute cannot run together." in spaced
    assert "failed MemoryError: no room" in spaced
    assert "interrupted Ctrl-C" in spaced
    assert "Incomplete: the measurement stopped after 6 rows." in spaced


def test_each_footnote_that_is_pointed_at_is_there(report):
    page = _Page(render_html(report))
    targets = {a["id"] for _, a in page.tags if a.get("id", "").startswith("note-")}
    pointed = {a["href"][1:] for tag, a in page.tags if tag == "a" and a["href"][0] == "#"}
    assert targets == pointed == {"note-1", "note-2"}


def test_an_empty_report_is_a_page(report):
    empty = Report.from_json(
        json.dumps({**json.loads(report.to_json()), "rows": [], "advice": None, "noise": None})
    )
    assert "Nothing was measured." in _Page(render_html(empty)).text


def _chromium(folder, html, *options):
    """Runs a headless Chromium with a profile of its own on the page."""
    page = folder / "report.html"
    page.write_text(html, encoding="utf-8")
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
        "--no-first-run", "--disable-background-networking", "--disable-component-update",
        "--disable-sync", "--hide-scrollbars", f"--user-data-dir={folder / 'profile'}",
        *options, page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


# Chromium tells the layout: what is wider than its screen, how long bars are, which colours.
MEASURE = """<!DOCTYPE html><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<body><script>
const page = PAGE, widths = WIDTHS, found = {};
const frames = widths.map(width => new Promise(done => {
  const frame = document.createElement("iframe");
  frame.style = `border:0;height:900px;width:${width}px`;
  frame.onload = () => {
    const inner = frame.contentDocument, view = frame.contentWindow;
    const fills = [...inner.querySelectorAll(".groups > :first-child .fill")];
    found[width] = {
      excess: inner.documentElement.scrollWidth - inner.documentElement.clientWidth,
      background: view.getComputedStyle(inner.body).backgroundColor,
      lengths: fills.map(fill => fill.getBoundingClientRect().width),
      cards: view.getComputedStyle(inner.querySelector(".results tr:last-child")).display,
      table: inner.querySelector(".scroll").scrollWidth - inner.querySelector(".scroll").clientWidth,
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


def _laid_out(folder, report, widths, *options):
    page = json.dumps(render_html(report)).replace("<", "\\u003c")
    measure = MEASURE.replace("PAGE", page).replace("WIDTHS", json.dumps(widths))
    dom = _chromium(folder, measure, "--virtual-time-budget=10000", "--dump-dom", *options)
    found = re.search(r'<pre id="found">(.*?)</pre>', dom, re.DOTALL)
    assert found, dom[:2000]
    return {int(width): values for width, values in json.loads(found.group(1)).items()}


@needs_chromium
@pytest.mark.parametrize("which", ["report", "hostile", "rough"])
def test_no_screen_is_too_narrow(request, tmp_path, which):
    found = _laid_out(tmp_path, request.getfixturevalue(which), [360, 390, 800, 1280])
    assert {width: values["excess"] for width, values in found.items()} == dict.fromkeys(found, 0)
    assert {width: values["cards"] for width, values in found.items()} == {
        360: "block", 390: "block", 800: "block", 1280: "table-row",
    }  # fmt: skip


@needs_chromium
def test_words_without_end_are_broken(endless, tmp_path):
    found = _laid_out(tmp_path, endless, [390, 1280])
    assert {width: values["excess"] for width, values in found.items()} == {390: 0, 1280: 0}


@needs_chromium
def test_bars_are_as_long_as_their_figures_and_the_table_fits(report, tmp_path):
    wide = _laid_out(tmp_path, report, [1280])[1280]
    assert wide["table"] == 0
    baseline, *_, kept = wide["lengths"]
    assert kept / baseline == pytest.approx(2.48 / 6.12, abs=0.01)


@needs_chromium
def test_light_and_dark_follow_the_reader(report, tmp_path):
    light = _laid_out(tmp_path, report, [390], "--blink-settings=preferredColorScheme=1")
    dark = _laid_out(tmp_path, report, [390], "--blink-settings=preferredColorScheme=0")
    assert light[390]["background"] == "rgb(246, 247, 248)"
    assert dark[390]["background"] == "rgb(16, 19, 22)"


@needs_chromium
def test_screenshots(report, tmp_path):
    shots = []
    for scheme in (0, 1):
        picture = tmp_path / f"{scheme}.png"
        options = (f"--blink-settings=preferredColorScheme={scheme}", "--window-size=1280,1700")
        _chromium(tmp_path, render_html(report), f"--screenshot={picture}", *options)
        shots.append(picture.read_bytes())
        assert struct.unpack(">II", shots[-1][16:24]) == (1280, 1700)
        # A blank page compresses to a few kilobytes.
        assert len(shots[-1]) > 100_000
    assert shots[0] != shots[1]
