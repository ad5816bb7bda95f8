"""Ratios and differences against the baseline, and how they are written."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tfopt.report import format as fmt
from tfopt.report.schema import Noise, compare, is_accuracy_change, is_change, seconds_to_accuracy


def test_a_variant_against_the_baseline(report):
    against = compare(report.kept.figures, report.baseline)
    assert against.train_speedup == pytest.approx(6.12 / 2.48)
    assert against.examples_per_s_ratio == pytest.approx((64 / 3.94) / (32 / 4.31), rel=1e-4)
    assert against.accuracy_points == pytest.approx(0.49)
    assert against.model_gzip_shrink == pytest.approx(203.5 / 61.8)
    assert against.artefact_shrink == pytest.approx(219.7 / 58.3)
    assert against.artefact_accuracy_points == pytest.approx(0.46)
    assert against.gpu_shrink is None


def test_the_baseline_against_itself(report):
    against = compare(report.baseline, report.baseline)
    assert against.train_speedup == 1
    assert against.accuracy_points == 0
    assert against.artefact_shrink is None


def test_a_ratio_that_no_float_holds_is_none(report):
    tiny = replace(report.baseline, train_s=1e-308)
    huge = replace(report.baseline, train_s=1e308)
    assert compare(tiny, huge).train_speedup is None


def test_seconds_to_the_baselines_accuracy(report):
    kept, baseline = report.kept.figures, report.baseline
    # 96.97 % after the second of four epochs is within 0.3 points of 97.22 %.
    assert seconds_to_accuracy(kept, baseline.test_accuracy) == pytest.approx(2.48 / 2)
    assert seconds_to_accuracy(kept, 0.9697 + 0.003) == pytest.approx(2.48 / 2)
    assert seconds_to_accuracy(kept, 0.9697 + 0.0031) == pytest.approx(2.48 * 3 / 4)
    assert seconds_to_accuracy(kept, 0.999) is None
    assert seconds_to_accuracy(kept, None) is None
    assert seconds_to_accuracy(replace(kept, epochs=()), 0.5) is None


def test_what_counts_as_a_change():
    assert not is_change(1.029, None)
    assert is_change(1.031, None)
    assert not is_change(1.09, Noise(0.1))
    assert is_change(0.89, Noise(0.1))
    assert not is_accuracy_change((0.9752 - 0.9722) * 100)
    assert is_accuracy_change(-0.31)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.00213, "0.00213"),
        (0.5321, "0.532"),
        (5.619, "5.62"),
        (9.996, "10.0"),
        (38.44, "38.4"),
        (99.96, "100"),
        (141.2, "141"),
        (9384.4, "9,384"),
        (7424.6, "7,425"),
        (999.6, "1,000"),
        (-3.14159, "-3.14"),
        (1e12, "1.00e+12"),
        (3e-7, "3.00e-07"),
    ],
)
def test_quantities_have_three_significant_digits(value, text):
    assert fmt.quantity(value) == text


def test_words_for_numbers():
    assert fmt.share(0.97812) == "97.81 %"
    assert fmt.signed_points(-0.0) == "+0.00"
    assert fmt.signed_points(-0.214) == "-0.21"
    assert fmt.times(2.5, "as fast", "as slow") == "2.50\N{MULTIPLICATION SIGN} as fast"
    assert fmt.times(0.8, "as fast", "as slow") == "1.25\N{MULTIPLICATION SIGN} as slow"
    assert fmt.moment("2025-01-31T12:00:59Z") == "2025-01-31 12:00 UTC"


def test_texts_lose_what_acts_on_a_screen_and_keep_their_lines():
    bad = "\N{REPLACEMENT CHARACTER}"
    assert (
        fmt.clean("a\x1b[31mb\u202ec\ud800\td \r\n e\u2028f\n")
        == f"a{bad}[31mb{bad}c{bad} d\n e\nf"
    )
    assert fmt.one_line(" a \n\n b ") == "a b"
    assert fmt.clean("na\u00efve \N{SNOWMAN}") == "na\u00efve \N{SNOWMAN}"
