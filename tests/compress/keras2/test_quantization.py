"""tf_keras models go through tfmot, in a process of their own: tfmot is a Keras 2 library."""

SCRIPT = """
    import os
    import numpy as np
    import tf_keras
    import tfopt
    x = np.random.default_rng(0).normal(size=(64, 12)).astype("f")
    y = np.random.default_rng(1).normal(size=(64, 4)).astype("f")

    def build():
        model = tf_keras.Sequential([
            tf_keras.layers.Dense(16, "relu", input_shape=(12,), name="hidden"),
            tf_keras.layers.Dense(4, name="out"),
        ])
        model.compile(tf_keras.optimizers.legacy.SGD(0.05), "mse", metrics=["mae"])
        return model

    model = build()
    aware = tfopt.quantize_aware(model, layers="^hidden")
    assert aware is not model
    assert "mae" in aware.fit(x, y, batch_size=8, verbose=0).history
    rows = {row.path: row for row in tfopt.compress.quantization_report(aware)}
    assert rows["hidden"].weights == "int8", rows
    assert rows["out"].weights is None

    def refused(words, call, *arguments, **options):
        try:
            call(*arguments, **options)
        except tfopt.UserError as error:
            assert words in str(error), error
        else:
            raise AssertionError("accepted")

    refused("already", tfopt.quantize_aware, aware)
    refused("tfmot trains int8", tfopt.quantize_aware, model, "int4")
    refused("tfmot trains int8", tfopt.quantize_aware, model, begin_step=5)
    refused("hidden, out", tfopt.quantize_aware, model, layers="nowhere")
    refused("not quantization-aware", tfopt.compress.quantization_report, model)
    refused("cannot take", tfopt.strip, aware)
    assert tfopt.strip(model) is model

    # Importing tfmot must not have moved the process to Keras 2.
    import keras
    import tensorflow as tf
    assert "TF_USE_LEGACY_KERAS" not in os.environ
    assert tf.keras.Model is keras.Model
"""


def test_a_keras2_model_is_wrapped_by_tfmot_or_refused(fresh_python):
    fresh_python(SCRIPT)
