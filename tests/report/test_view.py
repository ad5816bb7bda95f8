"""What a bench report says: the headline, the table, the flags, the same in every renderer."""

from __future__ import annotations

from dataclasses import replace

import bench_reports
import numpy as np
import pytest

from tfopt.measure.compare import compare_two
from tfopt.report import format as fmt
from tfopt.report.bench_report import Recommendation
from tfopt.report.columns import columns_of
from tfopt.report.compared import view_of_both
from tfopt.report.html import as_html
from tfopt.report.markdown import as_markdown
from tfopt.report.statistics import Comparison
from tfopt.report.view import view_of

DASH, X = "\N{EN DASH}", "\N{MULTIPLICATION SIGN}"


def headline(report):
    return view_of(report).headline


def with_last(report, **changes):
    """The report of the reference and another last variant."""
    changed = replace(report.variants[-1], **changes)
    return replace(report, variants=(report.reference, changed))


def test_the_kept_chain_is_told_in_one_sentence(cpu):
    assert headline(cpu) == (
        "Runs an example 2.29 times as fast (2.26 to 2.33), at +0.12 points of test accuracy."
    )


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ((0.5, 0.47, 0.53), "Runs an example 2.0 times as fast (1.9 to 2.1), at +0.12 points"),
        # An end near 1 has as many digits as show on which side of it it lies.
        ((0.95, 0.905, 0.996), "Runs an example 1.053 times as fast (1.004 to 1.105), at"),
        (
            (1.25, 1.2, 1.3),
            "Nothing was shown to be faster: the chain up to + Prune runs an example 1.2 times slower "
            "(1.2 to 1.3)",
        ),
        (
            (1.0, 0.99, 1.01),
            "Nothing was shown to be faster: the chain up to + Prune runs an example 1",
        ),
        ((0.99, 0.93, 1.08), "1.0 times as fast (0.93 to 1.1), too wide to tell."),
    ],
)
def test_the_verdict_is_that_of_the_interval(cpu, ends, told):
    assert told in headline(with_last(cpu, against_reference=Comparison(*ends, 5)))


def test_lost_quality_is_never_recommended(lossy):
    view = view_of(lossy)
    assert view.headline.startswith("No chain is recommended. The chain up to + Prune runs")
    assert "but loses 1.20 points of test accuracy: not recommended" in view.headline
    assert "Quality is lost, not recommended: chains up to + Prune (-1.20 points)." in view.warning
    assert not any(row.kept for row in view.table.rows)
    assert view.keep == view.brought == ""
    assert "quality lost: not recommended" in view.table.rows[-1].flags
    (cell,) = (cell for cell in view.table.rows[-1].cells if "lost" in cell.text)
    assert (cell.text, cell.tone) == ("-1.20 lost", "worse")


@pytest.mark.parametrize("brought", ["takes 0.62 times the peak memory", "nothing was shown"])
def test_a_search_for_less_memory_speaks_of_no_time(cpu, brought):
    found = Recommendation(cpu.variants[-1].chain, brought, ())
    spared = replace(cpu, asked=replace(cpu.asked, kind="tune", objective="memory"))
    slower = with_last(spared, against_reference=Comparison(1.25, 1.2, 1.3, 5))
    view = view_of(replace(slower, recommendation=found))
    assert view.headline == f"{brought[0].upper()}{brought[1:]}."
    assert (view.keep, view.keep_title) == (found.keep, "Keep for its memory")
    assert view.brought == brought


def test_a_search_without_a_final_says_what_it_found_first(cpu):
    found = Recommendation(cpu.reference.chain, "nothing was shown to be faster", ())
    raced = with_last(
        replace(cpu, asked=replace(cpu.asked, kind="tune"), recommendation=found),
        against_reference=None,
        unavailable={**cpu.variants[-1].unavailable, "against_reference": "one process"},
    )
    assert headline(raced) == "Nothing was shown to be faster."


def test_a_quick_measurement_is_called_so_once(cpu):
    quick = replace(cpu, asked=replace(cpu.asked, quick=True))
    assert as_markdown(view_of(quick)).startswith("## cnn_mnist (quick)\n")
    assert view_of(quick).title.endswith("(quick)")
    assert repr(view_of(quick)).lower().count("quick") == 1
    assert "quick" not in repr(view_of(cpu)).lower()


def test_nothing_to_compare_with_is_said(single):
    view = view_of(single)
    assert view.headline.endswith("One job alone: there is nothing to compare it with.")
    assert "Not measured: Batch: a generator does not tell" in view.table.notes


def test_the_job_as_it_is_may_be_best(cpu):
    slower = with_last(cpu, against_reference=Comparison(1.1, 1.05, 1.15, 6))
    kept = Recommendation(cpu.reference.chain, "nothing", ())
    best = replace(slower, recommendation=kept)
    told = headline(best)
    assert told.startswith(
        "Nothing was shown to be faster: the chain up to + Prune runs an example 1.10 times slower"
    )
    view = view_of(best)
    assert (view.keep, view.as_it_is) == (
        "",
        "Keep the job as it is: no link was worth keeping.",
    )
    assert "- Keep the job as it is" in as_markdown(view_of(best))
    assert "card keep" not in as_html(best)
    assert "Keep the job as it is" in as_html(best)


def test_what_is_not_decided_is_no_verdict_for_the_job_as_it_is(cpu):
    unclear = with_last(cpu, against_reference=Comparison(0.5, 0.2, 1.1, 6))
    kept = Recommendation(cpu.reference.chain, "nothing: the job as it is", (), ("Execution",))
    open_ = replace(unclear, recommendation=kept)
    told = headline(open_)
    assert told.startswith(
        "Nothing was shown to be faster: the chain up to + Prune runs an example 2.0 times as"
    )
    assert told.endswith(
        "(0.91 to 5.0), too wide to tell. Not decided yet: a longer measurement may."
    )
    assert view_of(open_).as_it_is == view_of(open_).keep == ""


def test_an_ablation_tells_the_link_that_matters_most(ablation):
    told = (
        "The link that matters most: without Execution the chain runs an example 1.6 times slower"
    )
    assert headline(ablation).startswith(told)
    whole = Recommendation(ablation.reference.chain, "nothing can be left out", ())
    kept = replace(ablation, recommendation=whole)
    assert headline(kept).startswith(f"The whole chain is worth keeping. {told}")
    assert view_of(kept).keep == ablation.reference.chain
    one = replace(kept, variants=(kept.variants[0], kept.variants[2]))
    assert view_of(one).keep == ""


def test_a_bad_day(rough_bench):
    view = view_of(rough_bench)
    assert view.warning == ("Incomplete: the measurement stopped before its end. Failed: + Prune.")
    statuses = [row.status_text for row in view.table.rows]
    assert statuses == ["measured", "measured", "no effect", "refused", "failed", "interrupted"]
    assert view.table.rows[4].story == ("MemoryError: no room",)
    assert view.table.rows[1].flags == ("GPU throttled: heat: the hardware slows down",)
    assert view.notes == rough_bench.notes


def test_every_gap_has_its_reason(cpu, single, gpu):
    for report in (cpu, single, gpu):
        view = view_of(report)
        for row in view.table.rows:
            for cell in row.cells:
                assert ("n/a" in (cell.text, cell.detail)) == bool(cell.reason)
    assert view_of(cpu).table.footnotes == ("it is the reference",)
    assert len(columns_of(gpu)[0]) == 9
    assert columns_of(gpu)[1] == ()
    assert [text.split(": ")[1] for text in columns_of(cpu)[1]] == ["GPU peak, MiB"]


def test_the_figures_are_those_of_the_report(cpu):
    kept, row = cpu.variants[-1], view_of(cpu).table.rows[-1]
    step, batch, examples, speed, *_, host, _ = row.cells
    assert (step.text, batch.text) == (f"{kept.percentile_ms(50):.2f}", "50")
    assert examples.text == f"{1000 * 50 / kept.percentile_ms(50):,.0f}"
    ratio = kept.against_reference
    assert (speed.text, speed.detail) == (fmt.speed(ratio), fmt.interval(ratio))
    assert host.text == f"{max(process.host_peak_mib for process in kept.processes):,.0f}"


def test_a_long_name_is_short_in_the_headline_alone(endless_bench):
    view = view_of(endless_bench)
    assert len(view.headline) < 1000
    assert view.table.rows[0].name == "baseline" + "W" * 400


def test_first_steps_say_whether_the_cache_had_their_programs():
    shapes, random = ("float32[32x4]", "float32[8x4]"), np.random.default_rng(0)
    steps = ((1.05, 2, shapes), (0.2, 0, shapes), (1.05, None, ()))
    made = [
        bench_reports.process(10.0, random, first_step_s=seconds, new_programs=new, shapes=each)
        for seconds, new, each in steps
    ]
    given = bench_reports.report(bench_reports.variant("baseline", tuple(made)))
    (row,) = view_of(given).table.rows
    assert dict(row.facts)["Compiled by XLA"] == (
        "1.05 s, at most 2 new programs; 200 ms, all from the cache; "
        "for batches of float32[32x4] and of float32[8x4]"
    )


@pytest.mark.parametrize(
    ("steps", "shown"),
    [
        (((80.0, 7), (0.8, 0), (0.6, 0)), "80.0 (0.700 from the cache)"),
        (((0.8, 0), (0.6, 0)), "0.700 (from the cache)"),
        (((80.0, None), (82.0, None)), "81.0"),
    ],
)
def test_a_first_step_from_the_cache_is_no_part_of_one_that_compiles(steps, shown):
    random = np.random.default_rng(0)
    made = [
        bench_reports.process(10.0, random, first_step_s=seconds, new_programs=new)
        for seconds, new in steps
    ]
    given = bench_reports.report(bench_reports.variant("baseline", tuple(made)))
    table = view_of(given).table
    column = [column.title for column in table.columns].index("First step, s")
    assert table.in_words(table.rows[0].cells[column]) == shown
    later = replace(given, created="2026-11-22T12:00:00+00:00")
    both = view_of_both(compare_two(("a", given), ("b", later))).table
    assert f"{shown} -> {shown}" in [cell.text for cell in both.rows[0].cells]
