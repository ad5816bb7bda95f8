"""How numbers and words are written, the same in every renderer."""

from __future__ import annotations

import pytest

from tfopt.report import format as fmt
from tfopt.report.statistics import Comparison


@pytest.mark.parametrize(
    ("comparison", "told"),
    [
        ((0.5, 0.48, 0.52), "2.00* (1.92-2.08)"),
        ((1.25, 1.2, 1.3), "0.800* (0.769-0.833)"),
        # However narrow, an interval shows that it has a width.
        ((1.0, 0.99999, 1.00001), "1.00* (0.999990-1.00001)"),
    ],
)
def test_a_speed_is_above_one_where_it_is_faster_and_has_its_interval(comparison, told):
    signs = {"*": "\N{MULTIPLICATION SIGN}", "-": "\N{EN DASH}"}
    expected = "".join(signs.get(letter, letter) for letter in told)
    assert fmt.speed_and_interval(Comparison(*comparison, 5)) == expected


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.5321, "0.532"),
        (9.996, "10.0"),
        (99.96, "100"),
        (141.2, "141"),
        (9384.4, "9,384"),
        (999.6, "1,000"),
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
    assert fmt.factor(0.8) == "0.800\N{MULTIPLICATION SIGN}"
    assert fmt.moment("2025-01-31T12:00:59Z") == "2025-01-31 12:00 UTC"


def test_texts_lose_what_acts_on_a_screen_and_keep_their_lines():
    bad = "\N{REPLACEMENT CHARACTER}"
    assert (
        fmt.clean("a\x1b[31mb\u202ec\ud800\td \r\n e\u2028f\n")
        == f"a{bad}[31mb{bad}c{bad} d\n e\nf"
    )
    assert fmt.one_line(" a \n\n b ") == "a b"
    assert fmt.clean("na\u00efve \N{SNOWMAN}") == "na\u00efve \N{SNOWMAN}"
