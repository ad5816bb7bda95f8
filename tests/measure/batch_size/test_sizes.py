"""Which batch is tried next: for every threshold, from every start, within few trials."""

import pytest

from tfopt.measure.batch_size.find import Grid, next_size


def searched(grid, start, trains):
    tried = {}
    while (size := next_size(grid, start, [s for s in tried if tried[s]], [s for s in tried if not tried[s]])) is not None:  # fmt: skip
        assert size not in tried
        assert size == grid.floor(size) > 0
        tried[size] = trains(size)
        assert len(tried) < 25
    return max((size for size in tried if tried[size]), default=None), tried


@pytest.mark.parametrize("unit", [1, 6, 8])
@pytest.mark.parametrize("start", [1, 32, 100])
def test_the_largest_multiple_is_found(unit, start):
    for threshold in range(1, 300, 7):
        found, tried = searched(Grid(unit), start, lambda size: size <= threshold)  # noqa: B023
        assert (found or 0) == threshold // unit * unit
        assert all(size in tried for size in ([found + unit] if found else [unit]))


def test_powers_of_two_and_an_end():
    assert searched(Grid(1, True), 32, lambda size: size <= 1000)[0] == 512
    assert searched(Grid(3, True), 32, lambda size: size <= 100)[0] == 96
    found, tried = searched(Grid(8, most=100), 32, lambda size: True)
    assert (found, sorted(tried)) == (96, [32, 64, 96])
    assert searched(Grid(1, True, most=100), 512, lambda size: True)[0] == 64
    # The job's own batch may be off the grid.
    assert searched(Grid(8), 5, lambda size: size < 20)[0] == 16


def test_what_failed_below_is_passed_over():
    assert next_size(Grid(8), 32, passed={64}, failed={32}) == 128


def test_few_trials_are_needed():
    _, tried = searched(Grid(8), 32, lambda size: size <= 1016)
    assert len(tried) <= 12
