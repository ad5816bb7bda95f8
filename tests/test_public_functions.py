"""Call every public function once on a small net, on whichever TensorFlow and Keras are installed.

What each promises is tested in its own room; ``tests/lanes.py`` runs this file on the oldest, the
newest and the next versions.
"""

import inspect
import sys

import keras
import numpy as np
import pytest
from dense_nets import X, Y, a_job, dense_model, fit

import tfopt

OLD = keras.__version__.startswith(("3.8.", "3.9."))

# They work in processes of their own: what calls them.
ELSEWHERE = {
    "doctor": "tests/doctor/test_command.py",
    "find_batch_size": "tests/tune/test_batch_size.py",
    "split": "tests/train/test_split.py",
    "measure": "tests/measure/test_children.py",
    "train_asynchronously": "tests/distribute/asynchronous/test_nothing_lost.py",
    "tune": "tests/tune/test_given_model.py",
}


def net():
    keras.utils.set_random_seed(0)
    return dense_model()


def attentive():
    x = keras.Input((4, 8))
    h = keras.layers.MultiHeadAttention(2, 4, name="attention")(x, x)
    model = keras.Model(x, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(h)))
    model.compile("adam", "mse")
    return model


def fitted(model, **options):
    assert np.isfinite(fit(model, epochs=2, **options).history["loss"]).all()
    return model


def fine_tuned(model):
    """Check that a model trains on, and return what strip leaves, which answers as before."""
    trained = tfopt.strip(fitted(model))
    assert trained.predict(X, verbose=0).shape == (64, 4)
    return trained


def test_prune_and_strip():
    kernel = fine_tuned(tfopt.prune(net(), 0.5)).get_layer("hidden").kernel
    assert np.mean(kernel.numpy() == 0) == 0.5


def test_cluster():
    kernel = fine_tuned(tfopt.cluster(net(), 4)).get_layer("hidden").kernel
    assert len(np.unique(kernel.numpy())) <= 4


def test_quantize_aware_and_quantize(tmp_path):
    model = fitted(tfopt.quantize_aware(fitted(net())))
    made = tfopt.quantize(tfopt.strip(model), tmp_path / "aware.tflite", calibration=X)
    (answers,) = made.predict(X)
    np.testing.assert_allclose(answers, model.predict(X, verbose=0), atol=0.05)


def test_quantize_to_four_bits_in_blocks():
    model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(4)])
    x = np.random.default_rng(0).normal(size=(64, 32)).astype("float32")
    (answers,) = tfopt.quantize(model, precision="int4", calibration=x, max_drop=100).predict(x)
    np.testing.assert_allclose(answers, model.predict(x, verbose=0), atol=0.5)


def test_remove_channels():
    assert fine_tuned(tfopt.remove_channels(net(), 0.5)).get_layer("hidden").units == 8


def test_export_and_load(tmp_path):
    model = fitted(net())
    exported = tfopt.export(model, tmp_path, formats=["litert", "saved_model"], examples=X)
    for name in ("litert", "saved_model"):
        (answers,) = tfopt.load(exported[name].folder)(X)
        np.testing.assert_allclose(answers, model.predict(X, verbose=0), atol=1e-5)


def test_optimize_and_footprint(tmp_path):
    model = fitted(net())
    best = tfopt.optimize(
        model, (X, Y), folder=tmp_path, formats="litert", precision="float32", turns=5
    )
    rows = tfopt.footprint({"keras": model, "file": best.winner.path}, turns=5).rows
    assert len(rows) == 2


def test_execution():
    model = fitted(tfopt.execution(net(), jit_compile=False, steps_per_execution=2))
    assert model.steps_per_execution == 2


def test_mixed_precision():
    model = tfopt.mixed_precision(net(), "mixed_bfloat16")
    assert model.get_layer("hidden").compute_dtype == "bfloat16"
    fitted(model)


def test_accumulate():
    assert fitted(tfopt.accumulate(net(), 2)).optimizer.gradient_accumulation_steps == 2


def test_remat():
    plain, again = fitted(net()), fitted(tfopt.remat(net(), "hidden"))
    for one, other in zip(plain.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_fused_attention():
    # float32, which cuDNN's kernels do not take, whether there is a GPU or not.
    with pytest.raises(tfopt.UserError, match="No attention of"):
        tfopt.fused_attention(attentive())


def test_pipeline_and_scaled_learning_rate():
    data = tfopt.pipeline((X, Y), batch_size=16, shuffle=False, cache="memory")
    assert np.isfinite(net().fit(data, shuffle=False, verbose=0).history["loss"][0])
    assert tfopt.scaled_learning_rate(0.1, tuned_batch=32, batch=64, rule="linear") == 0.2


def test_resume(tmp_path):
    whole = fitted(net())
    first = net()
    fit(first, callbacks=[tfopt.resume(tmp_path)])
    again = fitted(net(), callbacks=[tfopt.resume(tmp_path)])
    for one, other in zip(whole.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_training_memory_and_an_explained_error():
    memory = tfopt.training_memory(net(), (X[:16], Y[:16]))
    assert memory.peak_mib > memory.parameters_mib > 0
    with tfopt.explain_out_of_memory(net()):
        fitted(net())


def test_run_a_chain():
    chain = tfopt.chain(tfopt.Execution(steps_per_execution=2), tfopt.Prune(0.5))
    assert np.isfinite(tfopt.run(a_job(), chain).evaluation["loss"])


def test_hardware_estimate():
    assert tfopt.hardware_estimate(a_job()).gflop > 0


@pytest.mark.skipif(OLD, reason="refused: metrics of replicas need Keras 3.10")
def test_distribute_over_two_devices(fresh_python):
    fresh_python("""
        import tensorflow as tf
        import keras
        import numpy as np
        import tfopt
        with tfopt.distribute(logical_cpus=2, global_batch=16):
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        x = np.ones((32, 3), "float32")
        history = model.fit(x, x[:, :1], batch_size=16, verbose=0).history
        assert np.isfinite(history["loss"][0])
    """)


@pytest.mark.skipif(not OLD, reason="Keras has metrics of replicas")
def test_distribute_is_refused_by_its_version(fresh_python):
    said = fresh_python("""
        import tensorflow as tf
        import tfopt
        try:
            with tfopt.distribute(logical_cpus=2):
                pass
        except tfopt.UserError as error:
            print(error.expected)
    """)
    assert said.strip() == "Keras 3.10 or newer"


def test_what_is_set_before_the_devices_are_used(fresh_python, tmp_path):
    fresh_python(f"""
        import tensorflow as tf
        import tfopt
        assert tfopt.compile_cache({str(tmp_path / "programs")!r}).is_dir()
        for effect in (tfopt.place(), tfopt.keep_host_memory()):
            assert effect.note, effect
    """)


def test_each_function_is_called():
    functions = {name for name in tfopt.__all__ if inspect.isfunction(getattr(tfopt, name))}
    source = inspect.getsource(sys.modules[__name__])
    called = {name for name in functions if f"tfopt.{name}(" in source}
    assert functions - called == {*ELSEWHERE}
