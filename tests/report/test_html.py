"""The report as one page: self-contained, escaped, and as Chromium shows it."""

from __future__ import annotations

import base64
import json
import re
import struct

import pytest

from tfopt.report.html import render_html
from tfopt.report.schema import Report
from tfopt.report.view import view_of

ADDRESSES = ("href", "src", "srcset", "action", "data", "poster", "formaction", "xlink:href")


@pytest.mark.parametrize("which", ["report", "hostile", "rough"])
def test_nothing_is_fetched_and_nothing_runs(request, which, page_of):
    page = page_of(render_html(request.getfixturevalue(which)))
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "iframe", "img", "object", "embed", "form", "base", "b"}
    addresses = [
        value
        for _, attributes in page.tags
        for name in ADDRESSES
        if (value := attributes.get(name))
    ]
    assert all(re.match(r"#(serving-)?note-\d+$|data:", address) for address in addresses)
    assert any(address.startswith("data:application/json;base64,") for address in addresses)
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert "url(" not in page.style
    assert "@import" not in page.style
    (policy,) = (a for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy["content"]


@pytest.mark.parametrize("which", ["report", "hostile", "rough"])
def test_the_json_inside_is_the_report(request, which, page_of, texts):
    report = request.getfixturevalue(which)
    (link,) = (a for tag, a in page_of(render_html(report)).tags if tag == "a" and "download" in a)
    content = base64.b64decode(link["href"].partition(",")[2]).decode()
    encodable = texts(report, lambda text: text.replace("\ud800", "?"))
    assert Report.from_json(content) == encodable


def test_hostile_texts_are_shown_as_they_are(hostile, page_of):
    page = page_of(render_html(hostile))
    view = view_of(hostile)
    spaced = " ".join(page.text.split())
    for told in (view.title, view.keep, *view.dropped, *(row.transform for row in view.rows)):
        assert told in spaced
    assert "\x1b" not in page.text
    assert "\u202e" not in page.text
    # An attribute ends where the template ends it.
    titles = {a["title"] for _, a in page.tags if "title" in a}
    assert titles == {*view.footnotes, *view.serving.footnotes}


def test_a_job_that_is_best_as_it_is_has_no_frame_of_a_chain(left, page_of):
    page = page_of(render_html(left))
    classes = {word for _, a in page.tags for word in (a.get("class") or "").split()}
    assert "as-it-is" in classes
    assert "keep" not in classes
    assert "kept" not in classes
    assert "Keep the job as it is: no link was worth keeping" in page.text


def test_every_row_is_in_the_table_and_tells_its_reason(rough, page_of):
    page = page_of(render_html(rough))
    assert [tag for tag, a in page.tags if a.get("scope") == "row"] == ["th"] * 6
    spaced = " ".join(page.text.split())
    assert "refused Execution and Distribute cannot run together." in spaced
    assert "failed MemoryError: no room" in spaced
    assert "interrupted Ctrl-C" in spaced
    assert "Incomplete: the measurement stopped after 6 rows." in spaced


def test_each_footnote_that_is_pointed_at_is_there(report, page_of):
    page = page_of(render_html(report))
    targets = {a["id"] for _, a in page.tags if a.get("id", "").startswith("note-")}
    pointed = {a["href"][1:] for tag, a in page.tags if tag == "a" and a["href"][0] == "#"}
    assert targets == pointed == {"note-1", "note-2"}


def test_an_empty_report_is_a_page(report, page_of):
    empty = Report.from_json(
        json.dumps({**json.loads(report.to_json()), "rows": [], "advice": None, "noise": None})
    )
    assert "Nothing was measured." in page_of(render_html(empty)).text


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


def _laid_out(chromium, report, widths, *options):
    page = json.dumps(render_html(report)).replace("<", "\\u003c")
    measure = MEASURE.replace("PAGE", page).replace("WIDTHS", json.dumps(widths))
    dom = chromium(measure, "--virtual-time-budget=10000", "--dump-dom", *options)
    found = re.search(r'<pre id="found">(.*?)</pre>', dom, re.DOTALL)
    assert found, dom[:2000]
    return {int(width): values for width, values in json.loads(found.group(1)).items()}


@pytest.mark.parametrize("which", ["report", "hostile", "rough"])
def test_no_screen_is_too_narrow(request, which, chromium):
    found = _laid_out(chromium, request.getfixturevalue(which), [360, 390, 800, 1280])
    assert {width: values["excess"] for width, values in found.items()} == dict.fromkeys(found, 0)
    assert {width: values["cards"] for width, values in found.items()} == {
        360: "block", 390: "block", 800: "block", 1280: "table-row",
    }  # fmt: skip


def test_words_without_end_are_broken(endless, chromium):
    found = _laid_out(chromium, endless, [390, 1280])
    assert {width: values["excess"] for width, values in found.items()} == {390: 0, 1280: 0}


def test_bars_are_as_long_as_their_figures_and_the_table_fits(report, chromium):
    wide = _laid_out(chromium, report, [1280])[1280]
    assert wide["table"] == 0
    baseline, *_, kept = wide["lengths"]
    assert kept / baseline == pytest.approx(2.48 / 6.12, abs=0.01)


def test_light_and_dark_follow_the_reader(report, chromium):
    light = _laid_out(chromium, report, [390], "--blink-settings=preferredColorScheme=1")
    dark = _laid_out(chromium, report, [390], "--blink-settings=preferredColorScheme=0")
    assert light[390]["background"] == "rgb(246, 247, 248)"
    assert dark[390]["background"] == "rgb(16, 19, 22)"


def test_screenshots(report, tmp_path, chromium):
    shots = []
    for scheme in (0, 1):
        picture = tmp_path / f"{scheme}.png"
        options = (f"--blink-settings=preferredColorScheme={scheme}", "--window-size=1280,1700")
        chromium(render_html(report), f"--screenshot={picture}", *options)
        shots.append(picture.read_bytes())
        assert struct.unpack(">II", shots[-1][16:24]) == (1280, 1700)
        # A blank page compresses to a few kilobytes.
        assert len(shots[-1]) > 100_000
    assert shots[0] != shots[1]
