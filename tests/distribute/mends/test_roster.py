"""What is mended, and whether it is wrong in the installed versions."""

import json

from tfopt.distribute.mends.repairs_roster import ELSEWHERE, REPAIRS


def test_each_is_looked_for_here(fresh_python):
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
