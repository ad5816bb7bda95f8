"""Two replicas hold what one does."""

import pytest

SCRIPT = """
    import keras, numpy as np, tensorflow as tf
    import tfopt
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(64, 12)).astype("f"), rng.normal(size=(64, 4)).astype("f")
    schedule = tfopt.compress.PolynomialSparsity(0.8, begin_step=2, end_step=6, frequency=2)

    def build(*more):
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [keras.Input((12,)), keras.layers.Dense(16, "relu"), *more, keras.layers.Dense(4)]
        )
        # Without XLA on either side: two replicas cannot have it.
        model.compile(keras.optimizers.SGD(0.05), "mse", jit_compile=False)
        return model

    def fit(model):
        model.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0)

    def kernels(model):
        for layer in model.layers:
            copies = strategy.experimental_local_results(layer.kernel.value)
            np.testing.assert_array_equal(*(copy.numpy() for copy in copies))
        return [layer.kernel.numpy() for layer in model.layers]

    def assert_pruned(model):
        zeros = sum((kernel == 0).sum() for kernel in kernels(model))
        assert abs(zeros - 0.8 * 256) <= 1, zeros

    def assert_clustered(model):
        assert [len(np.unique(kernel)) for kernel in kernels(model)] == [5, 5]

    for compress, check in (
        (lambda model: tfopt.prune(model, schedule), assert_pruned),
        (lambda model: tfopt.prune(model, schedule, across="model"), assert_pruned),
        (lambda model: tfopt.cluster(model, 5), assert_clustered),
        (lambda model: tfopt.cluster(model, 5, begin_step=4), assert_clustered),
    ):
        single = compress(build())
        with strategy.scope():
            model = compress(build())
        for each in (single, model):
            fit(each)
        check(model)
        for one, other in zip(single.get_weights(), model.get_weights()):
            np.testing.assert_array_equal(one == 0, other == 0)
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)

    with strategy.scope():
        model = build(keras.layers.BatchNormalization(name="norm"))
    tfopt.quantize_aware(model, begin_step=2, freeze_batchnorm_step=3)
    fit(model)
    assert model.quantization_awareness.step == 8
    for variable in (each for each in model.variables if "moving" not in each.name):
        one, other = strategy.experimental_local_results(variable.value)
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5, atol=1e-6)
    # The mean of what both replicas saw.
    low, high = tfopt.compress.quantization_report(model)[0].output
    assert x.min() < low < 0 < high < x.max()
    model.save("FILE")
    with strategy.scope():
        small = tfopt.quantize(tfopt.strip(model), calibration=x)
    assert small.fully_integer and small.parity.relative_error < 0.1, small
    assert "one device" in small.notes[0]
    with strategy.scope():
        loaded = keras.models.load_model("FILE")
    fit(loaded)
    assert loaded.quantization_awareness.step == 16
"""


@pytest.mark.slow
def test_two_replicas_train_what_one_trains(tmp_path, fresh_python):
    fresh_python(SCRIPT.replace("FILE", str(tmp_path / "m.keras")))
