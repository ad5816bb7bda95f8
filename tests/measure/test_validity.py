"""Blocks measured under another clock are marked, and sway nothing."""

from dataclasses import replace

import pytest

from tfopt.measure.rounds import invalid_by_clock


def marked(blocks):
    return [number for number, block in enumerate(invalid_by_clock(blocks)) if block.invalid]


def test_a_block_under_another_clock_is_marked_and_says_by_how_much(made_block):
    blocks = [made_block(1500.0), made_block(1410.0), made_block(1500.0), made_block(1500.0)]
    judged = invalid_by_clock(blocks)
    assert marked(blocks) == [1]
    reason = judged[1].invalid
    assert all(word in reason for word in ("GPU 0", "1410 MHz", "1500 MHz", "3%"))
    assert replace(judged[1], invalid=None) == blocks[1]
    assert [judged[0], *judged[2:]] == [blocks[0], *blocks[2:]]


@pytest.mark.parametrize(
    ("clock", "expected"), [(1545.0, []), (1455.0, []), (1546.0, [0]), (1454.0, [0])]
)
def test_three_percent_is_the_limit_upwards_and_downwards(made_block, clock, expected):
    assert marked([made_block(clock), *[made_block(1500.0)] * 4]) == expected


def test_one_gpu_of_several_is_enough_and_each_is_compared_with_itself(made_block):
    usual = [made_block(1500.0, 900.0)] * 3
    assert marked(usual) == []
    blocks = [*usual, made_block(1500.0, 800.0)]
    assert marked(blocks) == [3]
    assert "GPU 1" in invalid_by_clock(blocks)[3].invalid


def test_an_invalid_block_keeps_its_reason_and_sways_no_other(made_block):
    throttled = made_block(700.0, invalid="throttled")
    blocks = [throttled, throttled, throttled, made_block(1500.0), made_block(1500.0)]
    assert [block.invalid for block in invalid_by_clock(blocks)] == ["throttled"] * 3 + [None] * 2


def test_without_clocks_nothing_is_marked(made_block):
    assert marked([made_block(), made_block()]) == []
    assert marked([made_block(None), made_block(1500.0), made_block(1500.0)]) == []
    assert invalid_by_clock([]) == ()
