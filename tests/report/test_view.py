"""What a bench report says: the headline, the table, the flags, the same in every renderer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tfopt.report import format as fmt
from tfopt.report.bench_report import Recommendation
from tfopt.report.footprint import Comparison
from tfopt.report.html import as_html
from tfopt.report.markdown import as_markdown
from tfopt.report.view import columns_of, view_of

DASH, X = "\N{EN DASH}", "\N{MULTIPLICATION SIGN}"


def headline(report):
    return view_of(report).summary.headline


def with_last(report, **changes):
    """The report with another last variant."""
    *others, last = report.variants
    changed = replace(last, **changes)
    return replace(report, variants=(*others, changed))


def test_the_kept_chain_is_told_in_one_sentence(cpu):
    comparison = cpu.variants[-1].against_reference
    told = headline(cpu)
    speed = fmt.speed_and_interval(comparison)
    assert told.startswith(
        f"The kept chain runs an example at {speed} the speed of baseline: faster"
    )
    assert told.endswith("+0.12 points of test accuracy.")


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        (
            (0.5, 0.49, 0.51),
            "2.00\N{MULTIPLICATION SIGN} (1.96\N{EN DASH}2.04) the speed of baseline: faster",
        ),
        (
            (1.25, 1.2, 1.3),
            "0.800\N{MULTIPLICATION SIGN} (0.769\N{EN DASH}0.833) the speed of baseline: slower",
        ),
        ((1.0, 0.99, 1.01), "No difference: "),
        ((0.99, 0.93, 1.08), "the interval is too wide for a verdict"),
    ],
)
def test_the_verdict_is_that_of_the_interval(cpu, ends, told):
    assert told in headline(with_last(cpu, against_reference=Comparison(*ends, 6)))


def test_a_chain_to_keep_that_was_not_measured_as_a_whole_is_said(cpu):
    keep = replace(cpu.recommendation, keep="chain(Execution())")
    told = headline(replace(cpu, recommendation=keep))
    assert told.startswith("The chain to keep was not measured as a whole.")


def test_lost_quality_is_never_recommended(lossy):
    view = view_of(lossy)
    assert view.summary.headline.startswith("No chain is recommended.")
    assert "but loses 1.20 points of test accuracy: not recommended" in view.summary.headline
    assert (
        "Quality is lost, not recommended: chains up to + Prune (-1.20 points)."
        in view.summary.warning
    )
    assert not any(row.kept for row in view.rows)
    assert view.keep == view.brought == ""
    assert "quality lost: not recommended" in view.rows[-1].flags
    (cell,) = (cell for cell in view.rows[-1].cells if "lost" in cell.text)
    assert (cell.text, cell.tone) == ("-1.20 lost", "worse")


def test_a_quick_measurement_is_marked_everywhere(quick, cpu):
    view = view_of(quick)
    assert view.title.endswith("(quick)")
    assert view.summary.headline.startswith("Quick measurement: ")
    assert view.summary.warning.startswith("Quick: ")
    told = [cell.badge for row in view.rows for cell in row.cells if cell.badge]
    assert len(told) == 8
    assert all(text.endswith(", quick") for text in told)
    assert "quick" not in repr(view_of(cpu)).lower()


def test_nothing_to_compare_with_is_said(single):
    view = view_of(single)
    assert view.summary.headline.endswith("One job alone: there is nothing to compare it with.")
    assert [tile.label for tile in view.summary.tiles] == [
        "Step, median",
        "Step, p99",
        "Peak host memory",
    ]
    assert "Batch: a generator does not tell" in view.left_out


def test_of_one_job_alone_it_is_said_where_its_time_goes(single, cpu):
    split = replace(cpu.reference.split, told="input-bound: all of it waits", try_next="Pipeline()")
    unavailable = {k: v for k, v in single.reference.unavailable.items() if k != "split"}
    alone = replace(single.reference, split=split, unavailable=unavailable)
    view = view_of(replace(single, variants=(alone,)))
    assert view.summary.headline.endswith("It is input-bound: all of it waits. Try Pipeline().")


def test_the_job_as_it_is_may_be_best(cpu):
    slower = with_last(cpu, against_reference=Comparison(1.1, 1.05, 1.15, 6))
    kept = Recommendation(cpu.reference.chain, "nothing", ())
    best = replace(slower, recommendation=kept)
    told = headline(best)
    assert told.startswith("The job is best left as it is. The last row measured (+ Prune)")
    view = view_of(best)
    assert (view.keep, view.as_it_is) == (
        "",
        "Keep the job as it is: no link was worth keeping.",
    )
    assert "- Keep the job as it is" in as_markdown(best)
    assert "Keep this chain" not in as_html(best)
    assert "Keep the job as it is" in as_html(best)


def test_what_is_not_decided_is_no_verdict_for_the_job_as_it_is(cpu):
    unclear = with_last(cpu, against_reference=Comparison(0.5, 0.2, 1.1, 6))
    kept = Recommendation(cpu.reference.chain, "nothing: the job as it is", (), ("Execution",))
    open_ = replace(unclear, recommendation=kept)
    told = headline(open_)
    assert told.startswith("Not decided yet: measure more rounds. Inconclusive: ")
    assert view_of(open_).as_it_is == view_of(open_).keep == ""


def test_an_ablation_tells_the_link_that_matters_most(ablation):
    assert headline(ablation).startswith(
        f"The link that matters most: without Execution runs an example at 0.617{X} (0.602{DASH}0.633)"
    )


def test_a_pair_that_nobody_can_tell_apart(pair):
    assert headline(pair) == (
        f"Inconclusive: my job runs an example at 1.00{X} (0.926{DASH}1.08) the speed of baseline; "
        "the interval is too wide for a verdict, measure more rounds."
    )


def test_a_bad_day(rough_bench):
    view = view_of(rough_bench)
    assert view.summary.warning == (
        "Incomplete: the measurement stopped before its end. Failed: + Prune. "
        "Invalid blocks, not counted: 1 of 13."
    )
    statuses = [row.status_text for row in view.rows]
    assert statuses == ["measured", "measured", "no effect", "refused", "failed", "interrupted"]
    assert view.rows[4].story == ("MemoryError: no room",)
    assert view.rows[1].flags == ("1 of 7 blocks invalid",)
    assert view.rows[1].blocks[3][-1].startswith("invalid: the machine was busy")
    assert view.notes == rough_bench.notes


def test_every_gap_has_its_reason(cpu, single, gpu):
    for report in (cpu, single, gpu):
        view = view_of(report)
        for row in view.rows:
            for cell in row.cells:
                assert ("n/a" in (cell.text, cell.detail)) == (cell.footnote is not None)
    assert view_of(cpu).footnotes == ("it is the reference",)
    assert len(columns_of(gpu)[0]) == 10
    assert columns_of(gpu)[1] == ()
    assert [text.split(":")[0] for text in columns_of(cpu)[1]] == [
        "GPU peak, MiB (steady)", "NVML peak, MiB (device)",
    ]  # fmt: skip


def test_the_figures_are_those_of_the_report(cpu):
    kept = cpu.variants[-1]
    *_, row = view_of(cpu).rows
    texts = [(cell.text, cell.detail) for cell in row.cells]
    ratio = kept.against_reference
    assert texts[0][0] == f"{kept.percentile_ms(50):.2f}"
    assert texts[1] == ("50", "")
    assert texts[2][0] == f"{1000 * 50 / kept.percentile_ms(50):,.0f}"
    assert texts[3] == (fmt.speed(ratio), fmt.interval(ratio))
    assert row.cells[3].badge == "faster"
    assert texts[6][0] == f"{max(block.memory.host_peak_mib for block in kept.blocks):,.0f}"


def test_a_long_name_is_short_in_the_headline_alone(endless_bench):
    view = view_of(endless_bench)
    assert len(view.summary.headline) < 1000
    assert view.rows[0].name == "baseline" + "W" * 400


@pytest.mark.parametrize(
    ("milliseconds", "told"),
    [(0.0421, "42.1 \N{MICRO SIGN}s"), (9.59, "9.59 ms"), (1500, "1.50 s")],
)
def test_durations_have_the_unit_that_suits_them(milliseconds, told):
    assert fmt.duration(milliseconds) == told


def test_the_energy_of_an_example_is_told_where_a_gpu_tells_it(gpu, cpu):
    facts = dict(view_of(gpu).rows[0].facts)
    block = gpu.reference.valid[0]
    # 4,210 J over the steady state, shared out over its examples.
    examples = sum(block.steps) * block.batch_size
    told, unit = facts["Energy an example"].split()
    assert unit == "mJ"
    assert float(told.replace(",", "")) == pytest.approx(4210 * 1000 / examples, rel=0.1)
    assert "Energy an example" not in dict(view_of(cpu).rows[0].facts)
