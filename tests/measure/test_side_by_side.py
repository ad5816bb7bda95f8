"""Two reports side by side: figures, reasons, marks, in a terminal, Markdown and JSON."""

import json
import re
from dataclasses import replace

import pytest
from bench_reports import NO_GPU, blocks, report, single, variant
from markdown_it import MarkdownIt

from tfopt.measure.side_by_side import NOT_IN_THE_INTERVAL, Named, side_by_side
from tfopt.report.compared import as_markdown, as_terminal_text

HOSTILE = "</td><script>|a`b\n# d\x1b[31m\u202e [bold]x[/bold] @i"


def put(first, second, **asked):
    return side_by_side(Named("a.json", first), Named("b.json", second), **asked)


@pytest.fixture
def found():
    first = report(
        variant("baseline", blocks(10, first_step_s=1.0, host_peak_mib=900.0)),
        variant("+ A", blocks(8, seed=1)),
        variant("+ old", blocks(8, seed=2)),
    )
    second = report(
        variant("baseline", blocks(10.5, 7, seed=3, first_step_s=2.0, gpu_peak_mib=512.0)),
        variant("+ A", ()),
        provenance={"git": "9f8e7d6"},
    )
    return put(first, second)


def test_figures_of_both_with_the_ratio_and_what_may_be_said(found):
    (line,) = found.lines
    assert line.first.step_ms == pytest.approx(10, rel=0.01)
    assert line.first.p90_ms >= line.first.step_ms
    assert (line.first.blocks, line.second.blocks) == (6, 7)
    assert (line.first.first_step_s, line.second.first_step_s) == (1.0, 2.0)
    assert line.comparison.verdict == "slower"
    assert line.first.peaks_mib["gpu_allocator_peak_mib"] is None
    assert line.first.unavailable["gpu_allocator_peak_mib"] == NO_GPU
    assert line.second.peaks_mib["gpu_allocator_peak_mib"] == 512.0
    assert [(each.name, each.first, each.second) for each in found.left_out] == [
        ("+ A", "measured", "failed"),
        ("+ old", "measured", "absent"),
    ]


def test_the_largest_peak_of_the_valid_blocks_is_the_peak():
    small, large = blocks(10, 2, host_peak_mib=900.0), blocks(10, 2, host_peak_mib=950.0)
    huge = replace(blocks(10, 1, host_peak_mib=2000.0)[0], invalid="another process")
    (line,) = put(report(variant("x", (*small, *large, huge))), single(name="x", seed=1)).lines
    assert line.first.peaks_mib["host_peak_mib"] == 950.0
    assert (line.first.blocks, line.first.invalid) == (4, 1)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_in_a_terminal_nothing_is_lost_at_any_width(found, width):
    text = as_terminal_text(found, width)
    assert max(map(len, text.splitlines())) <= width
    words = " ".join(text.split())
    for part in ("10.5", "slower", "1.00 -> 2.00", "n/a [1] -> 512", "6 -> 7"):
        assert part in words
    assert f"[1] {NO_GPU}" in words
    assert "git: 1a2b3c4 against 9f8e7d6" in words
    assert "+ old: b.json: no such variant" in words
    assert " ".join(NOT_IN_THE_INTERVAL.split()) in words


def test_markdown_has_one_row_a_variant_and_one_item_a_note(found):
    tokens = MarkdownIt().enable("table").parse(as_markdown(found))
    assert len([token for token in tokens if token.type == "tr_open"]) == 2
    assert max(token.level for token in tokens if token.type == "bullet_list_open") == 0
    assert "1.00 -&gt; 2.00" in as_markdown(found)


def test_json_carries_everything_with_the_verdict(found):
    content = json.loads(found.to_json())
    assert content["schema"] == "tfopt.compare/1"
    assert content["lines"][0]["comparison"]["verdict"] == "slower"
    assert content["lines"][0]["second"]["peaks_mib"]["gpu_allocator_peak_mib"] == 512.0
    assert content["left_out"][1]["second"] == "absent"
    assert content["differences"] == [
        {"what": "git", "first": "1a2b3c4", "second": "9f8e7d6", "blocks": False}
    ]


def test_a_forced_comparison_says_so_on_every_row():
    first = report(variant("one", blocks(10)), variant("two", blocks(9)))
    second = report(
        variant("one", blocks(10, seed=4)),
        variant("two", blocks(9, seed=5, batch_size=64)),
        provenance={"cpu": "Intel"},
    )
    forced = put(first, second, force=True)
    assert [line.forced_over for line in forced.lines] == [("CPU",), ("CPU", "global batch")]
    markdown = as_markdown(forced)
    rows = [line for line in markdown.splitlines() if line.startswith(("| one", "| two"))]
    assert len(rows) == 2
    assert all("not comparable, forced: CPU" in row for row in rows)
    assert "compared by force: CPU, global batch" in markdown
    # The table is broken into several here, and each has the mark.
    text = as_terminal_text(forced, 80)
    assert len(re.findall("──\n", text)) == len(re.findall("one .not", text)) > 1


def test_a_variant_that_is_not_comparable_stands_there_with_the_reason():
    found = put(single(), single(seed=1, in_block={"batch_size": 64}))
    text = " ".join(as_terminal_text(found, 200).split())
    assert "n/a [1]" in text
    assert "[1] not comparable: global batch: 32 against 64" in text


def test_quick_is_said_beside_the_figures():
    quick = {"asked": {"quick": True}}
    found = put(single(**quick), single(seed=1, **quick))
    assert "baseline (quick)" in as_terminal_text(found, 200)
    assert "| baseline (quick) |" in as_markdown(found)


def test_texts_of_a_report_act_on_nobody():
    sides = [
        single(seed=seed, name=HOSTILE, title=HOSTILE, provenance={"git": f"{HOSTILE}{seed}"})
        for seed in (0, 1)
    ]
    found = put(*sides)
    text = as_terminal_text(found, 200)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[bold]x[/bold]" in text
    markdown = as_markdown(found)
    html = MarkdownIt().enable("table").render(markdown)
    assert "<script" not in html
    assert "<h1" not in html
    assert html.count("<tr>") == 2
    assert "@i" not in markdown
