"""Traces of real steps of a small job, in processes of their own."""

import tfopt
from tfopt.measure.targets import Target
from tfopt.measure.trace import trace
from tfopt.report.display import Display


def test_each_target_leaves_a_trace_of_its_steps(in_toy_folder):
    name, traces = "toy_jobs:job", in_toy_folder / "traces"
    targets = {
        "reference": Target(name, name),
        "kept": Target(name, name, tfopt.chain(tfopt.Execution(steps_per_execution=2))),
        "broken": Target(name, "toy_jobs:troubled", arguments={"trouble": "raises"}),
    }
    (failed,) = trace(targets, traces, Display(verbose=False))
    assert failed.startswith("The steps of broken could not be traced: ")
    for name in ("reference", "kept"):
        (file,) = (traces / name).glob("plugins/profile/*/*.xplane.pb")
        assert b"MatMul" in file.read_bytes()
