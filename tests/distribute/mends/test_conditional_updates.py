"""Weights that are updated under a condition, by replicas that meet before they ask it."""

import pytest

import tfopt

from .replicas import K, O, built, dense, even, gaps, trained, without

steps = {"gradient_accumulation_steps": 2}
CASES = {
    "accumulated": ((dense, lambda: O.SGD(0.1, **steps)), {}, even, {}),
    "clipped": (
        (dense, lambda: O.Adam(0.01, global_clipnorm=0.5, weight_decay=0.01, **steps)),
        {},
        even,
        {},
    ),
    "averaged": (
        (dense, lambda: O.Adam(0.01, use_ema=True, ema_overwrite_frequency=3)),
        {},
        even,
        {},
    ),
    "both": ((dense, lambda: O.SGD(0.1, use_ema=True, ema_momentum=0.5, **steps)), {}, even, {}),
    "constrained": (
        (lambda: [K.Dense(3, kernel_constraint="non_neg")], lambda: O.SGD(0.1, **steps)),
        {},
        even,
        {},
    ),
    "by_a_schedule": (
        (dense, lambda: O.SGD(O.schedules.CosineDecayRestarts(0.1, 3))),
        {},
        even,
        {},
    ),
    "both_by_a_schedule": (
        (
            dense,
            lambda: O.SGD(
                O.schedules.CosineDecay(0.01, 5, 0.0, warmup_target=0.1, warmup_steps=3), **steps
            ),
        ),
        {},
        even,
        {},
    ),
}


def unmended():
    without("conditional_updates")
    with tfopt.distribute(logical_cpus=2):
        several = {name: built(*case[0]) for name, case in CASES.items()}
    found = {}
    for name in ("accumulated", "averaged"):
        try:
            trained(several[name], even)
        except RuntimeError as error:
            found[name] = "merge_call" in str(error)
    return found


@pytest.mark.slow
def test_without_the_mend_they_cannot_be_trained(alone):
    assert alone(unmended) == {"accumulated": True, "averaged": True}


def mended(*names):
    return gaps({name: CASES[name] for name in names})


FEW = ("clipped", "averaged", "both_by_a_schedule")


@pytest.mark.parametrize(
    "names", [FEW, pytest.param(tuple(set(CASES) - set(FEW)), marks=pytest.mark.slow)]
)
def test_with_it_they_are_those_of_one_device(replicas, names):
    for weights, told in replicas(mended, *names).values():
        assert weights < 1e-6
        assert told < 1e-5
