"""``tfopt repairs``: what is mended, and whether it is wrong in the installed versions."""

import json

import pytest

from tfopt.distribute.mends.repairs_roster import ELSEWHERE, REPAIRS


def test_each_is_looked_for_here_and_listed_with_its_answer(fresh_python):
    printed = fresh_python(
        """
    import json, keras
    keras.config.set_dtype_policy("mixed_float16")  # what probes make is of their own policy
    from tfopt.distribute.mends import repairs_roster as roster
    told = {repair.key: here for repair, here in roster.found_here()}
    print(json.dumps(told))
    """
    )
    told = json.loads(printed)
    assert list(told) == [repair.key for repair in (*REPAIRS, *ELSEWHERE)]
    in_a_cluster = {repair.key for repair in REPAIRS if repair.several_processes_only}
    assert {name for name, here in told.items() if here is None} == in_a_cluster
    # Each is mended because it is there: one that has gone can be taken out.
    assert {name for name, here in told.items() if here} == set(told) - in_a_cluster


@pytest.mark.slow
def test_the_command_lists_them(fresh_python):
    printed = fresh_python(
        """
    import os
    os.environ["COLUMNS"] = "60"
    from tfopt.commands.cli import main
    main(["repairs"])
    """
    )
    assert all(repair.name in printed for repair in (*REPAIRS, *ELSEWHERE))
    assert "keras-team/keras#21207" in printed
    assert "looked for in a cluster" in printed
    # No word is broken, and no line longer than the terminal is wide.
    words = printed.split()
    assert all(word in words for repair in REPAIRS for word in repair.defect.split())
    assert max(map(len, printed.splitlines())) <= 80
