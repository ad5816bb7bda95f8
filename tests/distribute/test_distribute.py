"""Distribution over logical CPU devices: equal to one device, explicit batches, clear refusals."""

import pytest

from tfopt import Distribute, Job, Pipeline, UserError, chain
from tfopt.errors import CannotCombine

COMMON = """
    import json, keras, numpy as np, tfopt
    from tfopt import *
    rng = np.random.default_rng(0)
    x = rng.normal(size=(96, 6)).astype("float32"); y = x.sum(axis=1, keepdims=True)
    def build():
        return keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
    def make(optimizer="adam", **settings):
        return Job(build=build, data=lambda: Data(train=(x, y), test=(x, y)),
                   compile=lambda: {"optimizer": optimizer, "loss": "mse"}, batch_size=16, epochs=3, **settings)
"""


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_two_replicas_train_the_weights_of_one_device(fresh_python, optimizer):
    code = (
        COMMON
        + f"""
    two = run(chain(Distribute(logical_cpus=2), Pipeline(shuffle=False)).apply(make({optimizer!r})))
    one = run(chain(Pipeline(shuffle=False)).apply(make({optimizer!r})))
    gap = float(np.max([np.abs(a - b).max() for a, b in zip(one.model.get_weights(), two.model.get_weights())]))
    print(json.dumps([gap, two.effects[0][1].note, one.evaluation["loss"], two.evaluation["loss"]]))
    """
    )
    import json

    gap, note, one, two = json.loads(fresh_python(code))
    assert gap < 2e-6
    assert two == pytest.approx(one, rel=1e-4)
    assert "2 replicas" in note
    assert "global batch 16, 8 per replica" in note


def test_the_function_is_a_scope_with_explicit_batches(fresh_python):
    printed = fresh_python(
        COMMON
        + """
    with distribute(logical_cpus=2, per_replica_batch=12) as replicas:
        model = build(); model.compile("sgd", "mse")
    model.fit(x, y, batch_size=replicas.global_batch, verbose=0)
    print(replicas.count, replicas.global_batch, replicas.per_replica_batch, int(model.optimizer.iterations.numpy()))
    print(type(model.distribute_strategy).__name__)
    """
    )
    assert printed.split() == ["2", "24", "12", "4", "MirroredStrategy"]


@pytest.mark.parametrize("locked", [False, True])
def test_two_threads_have_one_strategy(fresh_python, locked):
    """Without the lock the second thread makes another one before the first is mended."""
    printed = fresh_python(
        COMMON
        + f"""
    import contextlib, threading
    from tfopt.distribute import replicas as distribution
    import tensorflow as tf
    cpus = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2)
    tf.config.list_logical_devices()
    if not {locked}:
        distribution._one_at_a_time = contextlib.nullcontext()
    both, found = threading.Barrier(2), []
    def enter():
        both.wait()
        with distribute(logical_cpus=2) as replicas:
            found.append(replicas.strategy)
    threads = [threading.Thread(target=enter) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print(len(found), len({{id(each) for each in found}}))
    """
    )
    assert printed.split() == ["2", "1" if locked else "2"]


def test_without_gpus_one_device_is_told_as_such(fresh_python):
    printed = fresh_python(
        COMMON
        + """
    outcome = run(Distribute().apply(make()))
    print(outcome.effects[0][1])
    """
    )
    assert "acted=False" in printed
    assert "nothing to distribute over" in printed


def test_a_batch_that_does_not_divide_is_an_error_with_the_nearest(fresh_python):
    error = fresh_python(
        COMMON
        + """
    run(Distribute(logical_cpus=2, global_batch=15).apply(make()))
    """,
        fails=True,
    )
    assert "does not divide over 2 replicas" in error
    assert "use 14 or 16" in error


def test_too_late_is_an_error_that_says_so(fresh_python):
    error = fresh_python(
        COMMON
        + """
    build()
    with distribute(logical_cpus=2): pass
    """,
        fails=True,
    )
    assert "came too late" in error
    assert "build or load the model inside" in error
    assert "new process" in error


def test_a_distribution_of_keras_that_shards_nothing_is_refused(fresh_python):
    error = fresh_python(
        COMMON
        + """
    import tensorflow as tf
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    parallel = keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"])
    keras.distribution.set_distribution(parallel)
    model = build(); model.compile("sgd", "mse"); model.fit(x, y, verbose=0)
    # The defect: the kernel lies on one device, whole, and nobody else has seen the data.
    assert "CPU:0" in model.layers[0].kernel.value.device
    with distribute(logical_cpus=2): pass
    """,
        fails=True,
    )
    assert "shards nothing on TensorFlow" in error
    assert "DataParallel" in error


def test_an_error_inside_leaves_no_scope_behind(fresh_python):
    printed = fresh_python(
        COMMON
        + """
    import tensorflow as tf
    keras.config.set_dtype_policy("float32")
    def bad():
        keras.config.set_dtype_policy("mixed_bfloat16")
        raise RuntimeError("boom")
    job = Distribute(logical_cpus=2).apply(make()).with_(build=bad)
    try: run(job)
    except RuntimeError: pass
    print(tf.distribute.has_strategy(), keras.config.dtype_policy().name)
    """
    )
    assert printed.split() == ["False", "float32"]


@pytest.mark.slow
def test_what_fails_in_keras_is_a_chain_like_others_in_either_order(fresh_python):
    printed = fresh_python(
        COMMON
        + """
    links = Distribute(logical_cpus=2), Execution(jit_compile=True, steps_per_execution=4)
    rule = lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    job = make().with_(compile=lambda: {"optimizer": rule(), "loss": "mse"})
    several = [
        run(chain(*pair, Pipeline(shuffle=False)).apply(job)) for pair in (links, links[::-1])
    ]
    one = run(Pipeline(shuffle=False).apply(job))
    for two in several:
        weights = zip(one.model.get_weights(), two.model.get_weights())
        print(float(np.max([np.abs(a - b).max() for a, b in weights])))
    """
    )
    assert all(float(each) < 2e-6 for each in printed.split())


@pytest.mark.parametrize(
    "optimizer",
    [
        "keras.optimizers.SGD(0.1, global_clipnorm=0.1)",
        "keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(clipnorm=0.1))",
    ],
)
def test_what_clips_or_scales_trains_the_weights_of_one_device(fresh_python, optimizer):
    printed = fresh_python(
        COMMON
        + f"""
    def job():
        return make().with_(compile=lambda: {{"optimizer": {optimizer}, "loss": "mse"}})
    two = run(chain(Distribute(logical_cpus=2), Pipeline(shuffle=False)).apply(job()))
    one = run(chain(Pipeline(shuffle=False)).apply(job()))
    pairs = zip(one.model.get_weights(), two.model.get_weights())
    print(float(np.max([np.abs(a - b).max() for a, b in pairs])))
    """
    )
    assert float(printed) < 2e-6


def test_float16_trains_on_several_replicas(fresh_python):
    printed = fresh_python(
        COMMON
        + """
    links = (MixedPrecision("mixed_float16"), Distribute(logical_cpus=2))
    outcome = run(chain(*links, Pipeline(shuffle=False)).apply(make()))
    print(type(outcome.model.optimizer).__name__, outcome.evaluation["loss"] < 10)
    """
    )
    assert printed.split() == ["LossScaleOptimizer", "True"]


@pytest.mark.parametrize(
    "bad",
    [
        {"gpus": (0, 0)},
        {"gpus": ()},
        {"gpus": (-1,)},
        {"logical_cpus": 0},
        {"gpus": (0,), "logical_cpus": 2},
        {"global_batch": 8, "per_replica_batch": 4},
        {"global_batch": 0},
    ],
)
def test_nonsense_is_refused(bad):
    with pytest.raises(UserError):
        Distribute(**bad)


@pytest.mark.parametrize(
    "distribute",
    [
        Distribute(logical_cpus=2, global_batch=8),
        Distribute(logical_cpus=2, per_replica_batch=4),
        Distribute(gpus=(0, 1), per_replica_batch=4),
    ],
)
def test_two_batch_sizes_are_refused_by_both_names_in_either_order(distribute):
    job = Job(build=dict, data=dict, compile=dict)
    for both in ([distribute, Pipeline(batch_size=6)], [Pipeline(batch_size=6), distribute]):
        with pytest.raises(CannotCombine, match="different batches") as caught:
            chain(*both).apply(job)
        for word in ("Pipeline", "Distribute", "6 by", "8 by"):
            assert word in str(caught.value)
    chain(distribute, Pipeline(batch_size=8)).apply(job)


def test_batches_a_replica_are_compared_once_the_replicas_are_known(fresh_python):
    error = fresh_python(
        COMMON
        + """
    # Without GPUs there is one replica.
    run(chain(Pipeline(batch_size=6), Distribute(per_replica_batch=4)).apply(make()))
    """,
        fails=True,
    )
    assert "CannotCombine" in error
    assert "6 by Pipeline" in error
    assert "4 by Distribute" in error


def test_the_batches_of_the_data_are_what_is_shared(fresh_python):
    printed = fresh_python(
        COMMON
        + """
    import tensorflow as tf
    def job(size):
        def data():
            return Data(train=tf.data.Dataset.from_tensor_slices((x, y)).batch(size))
        return Job(build=build, data=data, compile=lambda: {"optimizer": "sgd", "loss": "mse"})
    print(run(Distribute(logical_cpus=2).apply(job(24))).effects[0][1].note)
    for chained, size in ((Distribute(logical_cpus=2), 15),
                          (Distribute(logical_cpus=2, global_batch=16), 24)):
        try: run(chained.apply(job(size)))
        except UserError as error: print(error)
    """
    )
    assert "global batch 24, 12 per replica" in printed
    assert "batch of 15 does not divide over 2 replicas" in printed
    assert "yields batches of 24, and nothing makes batches of 16" in printed


def test_the_test_part_gives_its_numbers_under_replicas(fresh_python):
    printed = fresh_python(
        COMMON
        + """
    from tfopt.run import prepared
    weights = rng.random(93).astype("float32")
    import tfopt.run
    tfopt.run._EVALUATION_BATCH = 8  # several batches, the last one smaller and uneven
    job = make().with_(batch_size=10, data=lambda: Data(train=(x, y), test=(x[:93], y[:93], weights)))
    with prepared(Distribute(logical_cpus=2).apply(job)) as ready:
        expected = ready.model.evaluate(x[:93], y[:93], sample_weight=weights, batch_size=10, verbose=0)
        print(json.dumps([expected, ready.evaluate()["loss"], ready.evaluate()["loss"]]))
    """
    )
    import json

    expected, once, again = json.loads(printed.splitlines()[-1])
    assert once == again == pytest.approx(expected, rel=1e-6)
