"""Job, Transform, chain: pure, frozen, composable, and free of TensorFlow."""

import pytest

import tfopt
from tfopt import (
    Execution,
    Job,
    MixedPrecision,
    Pipeline,
    Place,
    Prune,
    UserError,
    chain,
)
from tfopt.data import PipelineOptions


def a_job(**changes):
    return Job(build=dict, data=dict, compile=dict, **changes)


def test_a_transform_is_written_without_what_it_leaves_at_its_default():
    options = PipelineOptions(drop_remainder=True)
    assert repr(Pipeline()) == "Pipeline()"
    written = "Pipeline(batch_size=50, options=PipelineOptions(drop_remainder=True))"
    assert repr(Pipeline(batch_size=50, options=options)) == written
    assert repr(chain(Pipeline(), Place("none"))) == "chain(Pipeline(), Place(gpus='none'))"


def test_a_chain_is_a_transform_and_flattens():
    inner = chain(Place(), MixedPrecision())
    outer = chain(inner, Execution(steps_per_execution=4))
    assert isinstance(outer, tfopt.job.Transform)
    assert outer.parts == (Place(), MixedPrecision(), Execution(steps_per_execution=4))
    assert eval(repr(outer), vars(tfopt) | {n: getattr(tfopt, n) for n in tfopt.__all__}) == outer


def test_a_chain_is_exact_where_its_parts_are():
    assert chain(Execution(steps_per_execution=4)).exact
    assert not chain(Execution(steps_per_execution=4), Prune(0.5)).exact


def test_data_is_written_without_its_examples():
    data = tfopt.Data(train=([0.25] * 9, [1] * 9), test=([0.75], [0]), name="digits")
    assert repr(data) == "Data(name='digits', note='')"


def test_chain_takes_transforms_only():
    with pytest.raises(UserError, match="takes transforms"):
        chain(Place(), "execution")


def test_a_job_refuses_what_is_not_a_count():
    for name, value in {"batch_size": 0, "epochs": 1.5, "steps_per_epoch": -1}.items():
        with pytest.raises(UserError, match=rf"Job\.{name} is not a count"):
            a_job(**{name: value})


class Model:
    """Can be called, as a Keras model can."""

    def __call__(self, *args, **kwargs): ...
    def get_config(self): ...


@pytest.mark.parametrize(
    ("name", "value"), [("compile", {"loss": "mse"}), ("data", ([0], [1])), ("build", Model())]
)
def test_a_job_wants_functions_not_values(name, value):
    with pytest.raises(UserError) as caught:
        a_job().with_(**{name: value})
    error = caught.value
    assert error.what == f"Job.{name} must be a function without arguments."
    assert error.expected.startswith(f"def {name}(): that returns")
    assert error.received == f"{type(value).__name__}, not a function"
    assert "Job.from_model(model, data)" in error.fix


def test_with_refuses_an_unknown_field_and_lists_the_known():
    with pytest.raises(UserError, match="no field 'epoch'"):
        a_job().with_(epoch=3)
    assert a_job().with_(epochs=3).epochs == 3


def test_a_function_that_wants_arguments_is_refused_with_what_it_should_be():
    with pytest.raises(UserError, match=r"Job\.compile must be a function without") as caught:
        Job(build=dict, data=dict, compile=lambda model: model.compile("adam"))
    assert "arguments of model.compile() as a dict" in str(caught.value)
