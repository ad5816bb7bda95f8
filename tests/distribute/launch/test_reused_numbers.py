"""A group's number is the kernel's again when nothing is in it: it may be another program's."""

import json

CODE = """
    import json, sys
    from tfopt.distribute.launch import attempt
    from tfopt.distribute.launch.local import LocalJob, launch_here

    plain, living = attempt.signalled, attempt._has_a_living_process
    empty, wrongly = set(), []

    def given_out_again(groups, number):
        if number:
            wrongly.extend(groups & empty)
        again = groups & empty
        there = plain(groups - empty, number)
        empty.update(groups - there - again)
        return there | again

    attempt.signalled = given_out_again
    attempt._has_a_living_process = lambda group: group in empty or living(group)
    waits = "import json, os, time; time.sleep(json.loads(os.environ['TF_CONFIG'])['task']['index'])"
    code = launch_here(LocalJob((sys.executable, "-c", waits), workers=2, grace=1.0))
    print(json.dumps({"code": code, "ended": len(empty), "wrongly": wrongly}))
"""


def test_a_number_that_was_given_out_again_is_not_signalled(fresh_python):
    found = json.loads(fresh_python(CODE).splitlines()[-1])
    assert found == {"code": 0, "ended": 2, "wrongly": []}
