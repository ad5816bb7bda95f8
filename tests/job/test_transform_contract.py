"""What every transform in the roster promises; a new one is tested by being listed."""

import dataclasses
import itertools

import keras
import numpy as np
import pytest
from allpairspy import AllPairs
from one_transform import EXAMPLES, example

import tfopt
from tfopt import Data, Job, chain, run
from tfopt.data import PipelineOptions
from tfopt.errors import CannotCombine, UserError
from tfopt.job.roster import ROSTER, transform_class, transform_name

RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 6)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int64")

NAMES = pytest.mark.parametrize("name", list(ROSTER))


# These refuse each other. Of any other two, some chain holds both.
APART = (("prune", "cluster"), ("distribute", "split"))
CHOICES = [[name, None] for name in ROSTER if not any(name in pair for pair in APART)]
CHAINS = [
    [name for name in row if name]
    for row in AllPairs([*CHOICES, *([*pair, None] for pair in APART)])
]


def quick_first():
    """Mark the chains slow of whose pairs each is in an earlier one: there without these others."""
    seen = set()
    for names in CHAINS:
        pairs = {*itertools.combinations(names, 2)}
        marks = [] if pairs - seen else [pytest.mark.slow]
        seen |= pairs
        yield pytest.param(names, id="-".join(names), marks=marks)


def a_job():
    return Job(
        build=lambda: keras.Sequential(
            [keras.Input((6,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(2, "softmax")]
        ),
        data=lambda: Data(train=(X, Y), test=(X, Y)),
        compile=lambda: {
            "optimizer": "adam",
            "loss": "sparse_categorical_crossentropy",
            "metrics": ["accuracy"],
            "jit_compile": False,
        },
        batch_size=16,
    )


def test_the_roster_is_complete():
    base = tfopt.job.Transform
    public = [getattr(tfopt, name) for name in tfopt.__all__]
    classes = [value for value in public if isinstance(value, type)]
    transforms = {each for each in classes if issubclass(each, base) and each is not base}
    assert transforms == {transform_class(name) for name in ROSTER}
    assert set(EXAMPLES) == set(ROSTER)
    assert [transform_name(example(name)) for name in ROSTER] == list(ROSTER)


@NAMES
def test_it_is_a_frozen_value_that_its_repr_gives_back(name):
    transform = example(name)
    with pytest.raises(dataclasses.FrozenInstanceError):
        transform.anything = None
    names = {n: getattr(tfopt, n) for n in tfopt.__all__} | {"PipelineOptions": PipelineOptions}
    assert eval(repr(transform), names) == transform
    assert hash(transform) == hash(example(name))


BAD = [
    ("distribute", {"gpus": (0, 0)}, "each GPU once"),
    ("distribute", {"gpus": ()}, "each GPU once"),
    ("distribute", {"logical_cpus": 0}, "logical_cpus is not a count"),
    ("distribute", {"gpus": (0,), "logical_cpus": 2}, "gpus and logical_cpus exclude"),
    ("distribute", {"global_batch": 8, "per_replica_batch": 4}, "per_replica_batch exclude"),
    ("mixed_precision", {"policy": "float16"}, 'use "mixed_float16"'),
    ("mixed_precision", {"policy": "mixed_bf16"}, "did you mean mixed_bfloat16"),
    *(("execution", {"jit_compile": value}, "Invalid jit_compile") for value in (1, 0, "yes")),
    ("execution", {"steps_per_execution": 0}, "steps_per_execution is not a count"),
    *(("learning_rate", {"peak": value}, "LearningRate.peak") for value in (0, "cubic", [0.1])),
    *(("learning_rate", {"warmup": value}, "LearningRate.warmup") for value in ("0.1", 1.0)),
    ("learning_rate", {"decay": "step"}, "LearningRate.decay"),
    ("accumulate", {"steps": 1}, "Accumulate.steps is not a count"),
    ("prune", {"schedule": "cubic"}, "Invalid Prune.schedule"),
    ("prune", {"schedule": "constant", "initial_sparsity": 0.2}, "needs a polynomial schedule"),
    ("prune", {"begin": 0.8, "end": 0.2}, "begin must be less than"),
    ("prune", {"frequency": 0}, "frequency is not a count"),
    ("prune", {"layers": 3}, "layers does not choose layers"),
    ("prune", {"pattern": "2:4"}, "contradicts the pattern"),
    ("prune", {"pattern": "2:4", "schedule": "constant", "across": "model"}, "no pattern"),
    ("cluster", {"clusters": 1}, "clusters is not a count"),
    ("cluster", {"begin": 1.5}, "begin is not a fraction"),
    ("cluster", {"layers": "("}, "layers is not a regular expression"),
    ("remove_channels", {"fraction": 1.5}, "Invalid fraction"),
    ("remove_channels", {"target": len}, "takes no data and no functions"),
    ("remove_channels", {"score": "taylor"}, "takes no data and no functions"),
    ("remove_channels", {"ranking": "both"}, "Invalid ChannelOptions.ranking"),
    ("remove_channels", {"layers": "("}, "layers is not a regular expression"),
    ("quantize_aware", {"precision": "int3"}, "Invalid QuantizeAware.precision"),
    ("quantize_aware", {"begin": 1.5}, "begin is not a fraction"),
    ("quantize_aware", {"freeze_batchnorm": -1}, "freeze_batchnorm is not a fraction"),
]


@pytest.mark.parametrize(("name", "settings", "words"), BAD)
def test_a_bad_setting_is_refused_when_it_is_made(name, settings, words):
    with pytest.raises(UserError, match=words):
        transform_class(name)(**{**EXAMPLES[name], **settings})


@NAMES
def test_two_of_a_kind_are_refused(name):
    with pytest.raises(CannotCombine, match="twice"):
        chain(example(name), example(name))


def test_pairs_are_refused_in_both_orders_and_by_both_names():
    pairs = {*itertools.permutations(ROSTER, 2)}
    refused = {order for pair in APART for order in (pair, pair[::-1])}
    for pair in pairs - refused:
        chain(*map(example, pair))
    for pair in refused:
        with pytest.raises(CannotCombine) as caught:
            chain(*map(example, pair))
        assert all(transform_class(name).__name__ in str(caught.value) for name in pair)
    assert {
        pair for names in CHAINS for pair in itertools.permutations(names, 2)
    } == pairs - refused


@pytest.mark.parametrize("names", [*quick_first()])
def test_they_train_the_same_in_either_order(names):
    weights = []
    for order in (names, names[::-1]):
        outcome = run(a_job(), chain(*map(example, order)))
        assert [transform for transform, _ in outcome.effects] == [*map(example, order)]
        assert all(effect.note for _, effect in outcome.effects)
        assert np.isfinite(outcome.evaluation["loss"])
        assert len(outcome.artefacts) == len({"quantize", "quantize_aware"} & {*names})
        weights.append(outcome.model.get_weights())
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)
    if "prune" in names:
        kernel = weights[0][0]
        assert np.mean(kernel == 0) == pytest.approx(0.5, abs=1 / kernel.size)


def test_those_that_say_they_are_exact_train_the_weights_of_the_plain_job():
    in_order = tfopt.Pipeline(shuffle=False)
    names = [name for name in ROSTER if transform_class(name).exact]
    # Of those that spread the model over devices the first: the other has tests of its own.
    exact = [example(name) for name in names if name != "split"]
    plain = run(a_job(), in_order).model.get_weights()
    changed = run(a_job(), chain(*exact, in_order)).model.get_weights()
    for expected, got in zip(plain, changed, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-6)
