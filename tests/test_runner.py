"""run: order, effects, process state, bad input, files that appear whole."""

import os
import subprocess

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfopt
from tfopt import Data, Execution, Job, Prune, UserError, chain, run
from tfopt.files import prepare_folder, write_atomically

RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 6)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int64")


def classifier():
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(2, "softmax")])


def a_job(**changes):
    return Job(
        build=classifier,
        data=lambda: Data(train=(X, Y), test=(X, Y)),
        compile=lambda: {
            "optimizer": "sgd",
            "loss": "sparse_categorical_crossentropy",
            "metrics": ["accuracy"],
        },
        batch_size=16,
    ).with_(**changes)


def test_the_same_seed_gives_the_same_weights():
    one, two, other = (run(a_job(seed=seed)).model.get_weights()[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one, other)


def test_callbacks_of_the_job_are_made_inside_the_run():
    seen = []
    job = a_job(
        callbacks=(
            lambda: keras.callbacks.LambdaCallback(on_epoch_end=lambda e, logs: seen.append(e)),
        )
    )
    run(job.with_(epochs=3))
    assert seen == [0, 1, 2]


def test_history_and_evaluation_are_there():
    outcome = run(a_job(epochs=2))
    assert len(outcome.history["loss"]) == 2
    assert set(outcome.evaluation) == {"loss", "accuracy"}
    assert run(a_job(data=lambda: Data(train=(X, Y)))).evaluation is None


class Unbuilt(keras.Model):
    """As TensorFlow's tutorials write them: the first batch says what the shapes are."""

    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(4, "relu")
        self.top = keras.layers.Dense(2, "softmax")

    def call(self, inputs):
        x = inputs["x"] if isinstance(inputs, dict) else inputs
        return self.top(self.hidden(x))


def batches():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(16, drop_remainder=True)


def generated():
    for start in range(0, len(X), 16):
        yield X[start : start + 16], Y[start : start + 16]


class WithoutCall(keras.Model):
    def __init__(self):
        super().__init__()
        self.top = keras.layers.Dense(2, "softmax")


@pytest.mark.parametrize(
    "train",
    [
        lambda: (X, Y),
        lambda: ({"x": X}, Y),
        lambda: (X, Y, np.ones(len(Y))),
        batches,
        lambda: generated,
    ],
    ids=["arrays", "named", "weighted", "dataset", "generator"],
)
def test_a_model_without_an_input_shape_is_built_by_its_data(train):
    def built():
        model = Unbuilt()
        model(X[:1])
        return model

    job = a_job(data=lambda: Data(train=train()))
    pairs = zip(
        run(job.with_(build=Unbuilt)).model.get_weights(),
        run(job.with_(build=built)).model.get_weights(),
        strict=True,
    )
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_so_it_is_for_every_transform_and_for_a_sequential_one():
    def sequential():
        return keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(2, "softmax")])

    for build in (Unbuilt, sequential):
        for transform in (tfopt.MixedPrecision("mixed_bfloat16"), tfopt.Accumulate(2)):
            outcome = run(chain(transform).apply(a_job(build=build)))
            assert np.isfinite(outcome.evaluation["loss"]), transform


def test_the_dtype_policy_is_as_it_was_after_success_and_failure():
    def changing():
        keras.config.set_dtype_policy("mixed_bfloat16")
        return classifier()

    run(a_job(build=changing))
    assert keras.config.dtype_policy().name == "float32"
    with pytest.raises(UserError):
        run(a_job(build=changing, data=lambda: Data(train=(X, Y + 5))))
    assert keras.config.dtype_policy().name == "float32"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": lambda: (X, Y)}, "Data"),
        ({"data": lambda: Data(train=(X[:0], Y[:0]))}, "nothing|no examples|empty"),
        ({"data": lambda: Data(train=(X, Y[:5]))}, "length|differ"),
        ({"data": lambda: Data(train=(np.where(X > 1, np.nan, X), Y))}, "NaN|nan"),
        ({"data": lambda: Data(train=(X, Y + 1))}, "label"),
        ({"data": lambda: Data(train=(X, Y), test=(X, Y - 1))}, "label"),
        ({"build": lambda: WithoutCall()}, "not built"),
        ({"build": lambda: "model"}, "Keras 3 model"),
    ],
)
def test_bad_input_is_one_clear_error(changes, words):
    with pytest.raises(UserError, match=words):
        run(a_job(**changes))


@pytest.mark.parametrize(
    ("given", "fix"),
    [
        (chain(Prune(0.5)), r"run\(chain\.apply\(job\)\)"),
        (Prune(0.5), r"run\(chain\.apply\(job\)\)"),
        (classifier(), r"Job\.from_model\(model, data\)"),
    ],
    ids=["a chain", "a transform", "a model"],
)
def test_what_is_no_job_is_refused_with_the_way_to_one(given, fix):
    with pytest.raises(UserError, match=rf"carries out a job(.|\n)*fix: .*{fix}"):
        run(given)


def test_saving_writes_model_and_artefacts(tmp_path):
    paths = run(a_job()).save(tmp_path / "new" / "folder")
    assert [path.name for path in paths] == ["model.keras"]
    loaded = keras.models.load_model(paths[0])
    assert loaded.optimizer is not None


def test_an_interrupted_write_leaves_the_old_file(tmp_path):
    target = tmp_path / "model.keras"
    target.write_text("old")

    def failing(path):
        with open(path, "w") as file:
            file.write("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match="No space left"):
        write_atomically(target, failing)
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["model.keras"]


def test_written_files_have_the_usual_permissions(tmp_path):
    ordinary = tmp_path / "a.txt"
    ordinary.write_text("a")
    written = write_atomically(tmp_path / "b.txt", "b")
    assert written.stat().st_mode == ordinary.stat().st_mode


def test_what_is_written_to_a_link_is_written_to_what_it_names(tmp_path):
    (tmp_path / "there").mkdir()
    real, link = tmp_path / "there" / "m.keras", tmp_path / "m.keras"
    link.symlink_to(real)
    for content in ("first", "second"):
        assert write_atomically(link, content) == link
        assert link.is_symlink()
        assert real.read_text() == content
    assert [path.name for path in real.parent.iterdir()] == ["m.keras"]


def test_a_folder_that_cannot_be_written_is_refused_first(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(UserError, match="cannot be written"):
        prepare_folder(blocked / "inside")
    if os.geteuid() != 0:
        (tmp_path / "locked").mkdir(mode=0o500)
        with pytest.raises(UserError, match="cannot be written"):
            prepare_folder(tmp_path / "locked")


def test_a_full_disk_is_told_and_nothing_is_left(tmp_path):
    """A real full disk: a tmpfs of 64 KiB, where this machine lets us mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        (disk / "model.keras").write_text("old")
        with pytest.raises(UserError, match="unharmed"):
            write_atomically(disk / "model.keras", b"x" * 200_000)
        assert (disk / "model.keras").read_text() == "old"
        assert len(list(disk.iterdir())) == 1
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_an_effect_tells_what_was_set():
    outcome = run(Execution(steps_per_execution=2).apply(a_job()))
    assert outcome.effects[0][1].note == "2 steps per execution"


def test_visible_devices_are_back_after_an_exception(fresh_python):
    printed = fresh_python("""
        import tensorflow as tf
        from tfopt import Job, run
        def hide():
            tf.config.set_visible_devices([])
            assert not tf.config.get_visible_devices()
            raise RuntimeError("boom")
        job = Job(build=dict, data=dict, compile=dict, setup=(hide,))
        try: run(job)
        except RuntimeError as error: print(error)
        print([device.device_type for device in tf.config.get_visible_devices()])
    """)
    assert printed.split() == ["boom", "['CPU']"]


def batches():
    for start in range(0, 64, 16):
        yield X[start : start + 16], Y[start : start + 16]


@pytest.mark.parametrize("source", [batches, (X, Y)])
def test_a_generator_function_serves_every_part_and_epoch(source):
    """A generator is used up after one epoch; the function behind it is called again."""
    outcome = run(
        a_job(data=lambda: Data(train=source, validation=batches, test=batches), epochs=3)
    )
    # Keras alone counts 15 steps, one too many an epoch, where it does not know the length.
    assert int(outcome.model.optimizer.iterations) == 12
    assert len(outcome.history["val_loss"]) == 3
    assert outcome.evaluation["accuracy"] >= 0


def late(x_change=None, y_change=None):
    """A job on a stream whose second batch has something wrong."""
    x, y = np.ones((64, 4), "float32"), np.zeros(64, "int64")
    if x_change is not None:
        x[50] = x_change
    if y_change is not None:
        y[50] = y_change
    return Job(
        build=lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "softmax")]),
        data=lambda: Data(train=tf.data.Dataset.from_tensor_slices((x, y)).batch(32)),
        compile=lambda: {"optimizer": "sgd", "loss": "sparse_categorical_crossentropy"},
    )


def test_nan_beyond_the_first_batch_is_told_by_the_loss():
    with pytest.raises(UserError, match="loss is nan in epoch 1"):
        run(late(x_change=np.nan))


def test_a_label_out_of_range_beyond_the_first_batch_is_told_as_one():
    with pytest.raises(UserError, match="beyond its first batch") as caught:
        run(late(y_change=7))
    assert "label 7" in str(caught.value)
    assert "from 0 to 2" in str(caught.value)
