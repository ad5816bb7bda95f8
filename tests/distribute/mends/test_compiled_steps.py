"""Steps that XLA compiles on each replica, between what the replicas exchange."""

import json

import pytest
from repairs.replicas import COMMON

CASES = """
    jit = {"jit_compile": True}
    CASES = {
        "dense": ((dense, lambda: O.SGD(0.01)), jit, (x, y), {}),
        "normalized": (
            (lambda: dense(K.BatchNormalization(synchronized=True)), lambda: O.Adam(0.01, clipnorm=0.1)),
            jit, (x, y), {},
        ),
        "scaled": ((dense, lambda: O.LossScaleOptimizer(O.Adam(0.01))), jit, even, {}),
    }
"""


def test_without_the_mend_a_compiled_step_fails(fresh_python):
    printed = fresh_python(
        COMMON
        + CASES
        + """
    without("compiled_steps")
    with tfopt.distribute(logical_cpus=2):
        model = built(*CASES["dense"][0], **jit)
    try:
        trained(model, even)
    except tf.errors.InvalidArgumentError as error:
        print("located in device" in str(error))
    """
    )
    assert printed.strip() == "True"


@pytest.mark.slow
def test_with_it_weights_are_those_of_one_device_and_xla_has_compiled_for_each(
    fresh_python, tmp_path
):
    printed = fresh_python(
        COMMON + CASES + "\n    print(json.dumps(gaps(CASES, 2)))",
        env={"XLA_FLAGS": f"--xla_dump_to={tmp_path / 'programs'}"},
    )
    for weights, told in json.loads(printed).values():
        assert weights < 1e-5
        assert told < 1e-5
    programs = list((tmp_path / "programs").glob("*before_optimizations*"))
    products = [path for path in programs if " dot(" in path.read_text()]
    # Forward and backward of two dense layers, for each of three models and two replicas.
    assert len(products) >= 6
