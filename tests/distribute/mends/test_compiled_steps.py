"""Steps that XLA compiles on each replica, between what the replicas exchange."""

import pytest
import tensorflow as tf

import tfopt

from .replicas import K, O, built, dense, even, gaps, trained, without, x, y

jit = {"jit_compile": True}
CASES = {
    "dense": ((dense, lambda: O.SGD(0.01)), jit, (x, y), {}),
    "normalized": (
        (
            lambda: dense(K.BatchNormalization(synchronized=True)),
            lambda: O.Adam(0.01, clipnorm=0.1),
        ),
        jit,
        (x, y),
        {},
    ),
    "scaled": ((dense, lambda: O.LossScaleOptimizer(O.Adam(0.01))), jit, even, {}),
}


def unmended():
    without("compiled_steps")
    with tfopt.distribute(logical_cpus=2):
        model = built(*CASES["dense"][0], **jit)
    try:
        trained(model, even)
    except tf.errors.InvalidArgumentError as error:
        return "located in device" in str(error)


@pytest.mark.slow
def test_without_the_mend_a_compiled_step_fails(alone):
    assert alone(unmended)


def one_mended():
    return gaps({"normalized": CASES["normalized"]})


def test_with_it_weights_are_those_of_one_device(replicas):
    ((weights, told),) = replicas(one_mended).values()
    assert weights < 1e-5
    assert told < 1e-5


def mended():
    return gaps(CASES)


@pytest.mark.slow
def test_xla_has_compiled_for_each_replica(alone, tmp_path):
    environment = {"XLA_FLAGS": f"--xla_dump_to={tmp_path / 'programs'}"}
    for weights, told in alone(mended, environment=environment).values():
        assert weights < 1e-5
        assert told < 1e-5
    programs = list((tmp_path / "programs").glob("*before_optimizations*"))
    products = [path for path in programs if " dot(" in path.read_text()]
    # Forward and backward of two dense layers, for each of three models and two replicas.
    assert len(products) >= 6
