"""Weights that are updated under a condition, by replicas that meet before they ask it."""

import json

from repairs.replicas import COMMON

CASES = """
    steps = {"gradient_accumulation_steps": 2}
    CASES = {
        "accumulated": ((dense, lambda: O.SGD(0.1, **steps)), {}, even, {}),
        "clipped": (
            (dense, lambda: O.Adam(0.01, global_clipnorm=0.5, weight_decay=0.01, **steps)),
            {}, even, {},
        ),
        "averaged": ((dense, lambda: O.Adam(0.01, use_ema=True, ema_overwrite_frequency=3)), {}, even, {}),
        "both": ((dense, lambda: O.SGD(0.1, use_ema=True, ema_momentum=0.5, **steps)), {}, even, {}),
        "constrained": (
            (lambda: [K.Dense(3, kernel_constraint="non_neg")], lambda: O.SGD(0.1, **steps)),
            {}, even, {},
        ),
        "by_a_schedule": (
            (dense, lambda: O.SGD(O.schedules.CosineDecayRestarts(0.1, 3))), {}, even, {},
        ),
        "both_by_a_schedule": (
            (dense, lambda: O.SGD(O.schedules.CosineDecay(0.01, 5, 0.0, warmup_target=0.1, warmup_steps=3), **steps)),
            {}, even, {},
        ),
    }
"""


def test_without_the_mend_they_cannot_be_trained(fresh_python):
    printed = fresh_python(
        COMMON
        + CASES
        + """
    without("conditional_updates")
    with tfopt.distribute(logical_cpus=2):
        several = {name: built(*case[0]) for name, case in CASES.items()}
    found = {}
    for name in ("accumulated", "averaged"):
        try:
            trained(several[name], even)
        except RuntimeError as error:
            found[name] = "merge_call" in str(error)
    print(json.dumps(found))
    """
    )
    assert json.loads(printed) == {"accumulated": True, "averaged": True}


def test_with_it_they_are_those_of_one_device(fresh_python):
    printed = fresh_python(COMMON + CASES + "\n    print(json.dumps(gaps(CASES, 2)))")
    for weights, told in json.loads(printed).values():
        assert weights < 1e-6
        assert told < 1e-5
