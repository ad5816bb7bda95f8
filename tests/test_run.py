"""Jobs that are run: effects, process state, bad input, and what comes back."""

from contextlib import contextmanager
from dataclasses import dataclass

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfopt
from tfopt import Data, Execution, Job, Prune, UserError, chain, run
from tfopt.job import Artefact, Transform
from tfopt.run import prepared

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
            "jit_compile": False,
        },
        batch_size=16,
    ).with_(**changes)


def test_the_same_seed_gives_the_same_weights_and_progress_is_shown_as_by_fit(capsys):
    one, two, other = (run(a_job(seed=seed)).model.get_weights()[0] for seed in (1, 1, 2))
    assert "4/4" in capsys.readouterr().out
    run(a_job(), verbose=0)
    assert capsys.readouterr().out == ""
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one, other)


TRAINED = []


@dataclass(frozen=True, repr=False)
class EveryMoment(Transform):
    """Notes when each method was called; the model is a clone."""

    name: str = "first"

    def setup(self, run):
        run.note("setup")

    @contextmanager
    def scope(self, run):
        run.note("scope")
        yield

    def rebuild(self, run, model):
        run.note("rebuild")
        clone = keras.models.clone_model(model)
        clone.set_weights(model.get_weights())
        return clone

    def data(self, run, train):
        run.note(f"data in batches of {run.facts.batch_size}")
        return train

    def attach(self, run, model):
        run.note(f"attach for {run.facts.steps_per_epoch} steps")

    def compile(self, run, arguments):
        run.note("compile")
        return {**arguments, "metrics": ["accuracy", "sparse_categorical_crossentropy"]}

    def callbacks(self, run):
        run.note("callbacks")
        return [keras.callbacks.LambdaCallback(on_train_end=lambda logs: TRAINED.append(run))]

    def finish(self, run, model):
        run.note("finish")


class LeavesAFile(Transform):
    def finish(self, run, model):
        run.note("a file")
        run.add_file(Artefact("model.bin", b"x" * 7_000_000, {"accuracy": 0.5}))


def test_each_moment_of_a_run_is_handed_to_each_transform():
    class Other(EveryMoment):
        pass

    class Nothing(Transform):
        pass

    TRAINED.clear()
    outcome = run(a_job(), chain(EveryMoment(), Nothing(), Other("second")))
    assert [transform for transform, _ in outcome.effects] == [EveryMoment(), Other("second")]
    for _, effect in outcome.effects:
        assert effect.note == (
            "setup; scope; rebuild; data in batches of 16; attach for 4 steps; compile; "
            "callbacks; finish"
        )
    assert len(TRAINED) == 2
    assert "sparse_categorical_crossentropy" in outcome.evaluation


def test_an_outcome_prints_in_a_few_lines_and_is_saved(tmp_path):
    seen = []
    job = a_job(
        epochs=3,
        callbacks=(
            lambda: keras.callbacks.LambdaCallback(on_epoch_end=lambda e, logs: seen.append(e)),
        ),
        name="classifier",
    )
    outcome = run(job, chain(Execution(steps_per_execution=2), LeavesAFile()))
    assert seen == [0, 1, 2]
    assert len(outcome.history["loss"]) == 3
    assert set(outcome.evaluation) == {"loss", "accuracy"}
    assert outcome.effects[0][1].note == "2 steps per execution"
    lines = str(outcome).splitlines()
    assert lines[0] == "Outcome"
    assert lines[1].endswith("14 parameters")
    assert lines[2].startswith(
        f"  trained: 3 epochs, accuracy {outcome.history['accuracy'][-1]:.4g}"
    )
    assert lines[3].startswith("  evaluation: accuracy")
    assert lines[4:] == [
        "  file: model.bin (6,835.9 KiB, accuracy 0.5)",
        "  Execution(steps_per_execution=2): 2 steps per execution",
        "  LeavesAFile(): a file",
        "  data: data (64 examples of float32[6], int64[])",
    ]
    paths = outcome.save(tmp_path / "new" / "folder")
    assert [path.name for path in paths] == ["model.keras", "model.bin"]
    assert keras.models.load_model(paths[0]).optimizer is not None


def test_data_frames_are_described_as_the_arrays_they_hold():
    pd = pytest.importorskip("pandas")
    frames = pd.DataFrame(X), pd.Series(Y)
    outcome = run(a_job(data=lambda: Data(train=frames, test=frames)))
    assert "data (64 examples of float32[6], int64[])" in str(outcome)
    assert outcome.evaluation is not None


def test_without_a_test_part_nothing_is_evaluated():
    outcome = run(a_job(data=lambda: Data(train=(X, Y))))
    assert outcome.evaluation is None
    assert "evaluation: no test data" in str(outcome)


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
        lambda: ({"x": X}, Y),
        lambda: (X, Y, np.ones(len(Y))),
        batches,
        lambda: generated,
    ],
    ids=["named", "weighted", "dataset", "generator"],
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


def test_so_it_is_under_transforms_and_for_a_sequential_one():
    def sequential():
        return keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(2, "softmax")])

    mixed, accumulated = tfopt.MixedPrecision("mixed_bfloat16"), tfopt.Accumulate(2)
    for build, transform in ((Unbuilt, accumulated), (sequential, mixed)):
        outcome = run(a_job(build=build), chain(transform))
        assert np.isfinite(outcome.evaluation["loss"]), transform


class Adversaries(keras.Model):
    """Trains two models by optimizers of their own, as a GAN; it has no call()."""

    def __init__(self):
        super().__init__()
        self.both = [classifier(), classifier()]

    def compile(self, optimizers, loss_fn):
        super().compile()
        self.optimizers, self.loss_fn = optimizers, loss_fn

    def train_step(self, data):
        losses = {}
        for number, (model, optimizer) in enumerate(zip(self.both, self.optimizers, strict=True)):
            with tf.GradientTape() as tape:
                losses[f"loss_{number}"] = loss = self.loss_fn(data[1], model(data[0]))
            weights = model.trainable_weights
            optimizer.apply(tape.gradient(loss, weights), weights)
        return losses


def test_a_model_that_only_trains_others_by_a_compile_of_its_own_is_a_job():
    def arguments():
        optimizers = [keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.0)]
        return {"optimizers": optimizers, "loss_fn": keras.losses.SparseCategoricalCrossentropy()}

    job = a_job(build=Adversaries, data=lambda: Data(train=(X, Y)), compile=arguments)
    outcome = run(job, Prune(0.5))
    first, fixed = outcome.model.both
    assert (first.layers[0].kernel.numpy() == 0).mean() == 0.5
    np.testing.assert_array_equal(fixed.layers[0].bias, [0, 0])
    assert first.layers[0].bias.numpy().any()
    with pytest.raises(UserError, match=r"Adversaries.compile\(\) does not take(.|\n)*kwargs"):
        run(job, tfopt.LearningRate(0.1))


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
        (
            {"data": lambda: Data(train=tf.data.Dataset.from_tensor_slices((X, Y)))},
            "yields single examples",
        ),
        ({"data": lambda: Data(train=(X, Y + 1))}, "label"),
        ({"data": lambda: Data(train=(X, np.array(["no", "yes"])[Y]))}, "text as labels"),
        ({"data": lambda: Data(train=(X, Y), test=(X, Y - 1))}, "label"),
        ({"build": lambda: WithoutCall()}, "not built"),
        ({"build": lambda: "model"}, "Keras 3 model"),
        ({"compile": lambda: {"optimiser": "adam"}}, r"Sequential.compile\(\) does not take"),
        ({"build": lambda: None}, "Job.build\\(\\) must return a model"),
    ],
)
def test_bad_input_is_one_clear_error(changes, words):
    with pytest.raises(UserError, match=words):
        run(a_job(**changes))


@pytest.mark.parametrize("returned", [None, "adam", ["adam", "mse"]])
def test_compile_that_returns_no_arguments_is_refused_before_anything_is_built(returned):
    built = []
    job = a_job(build=lambda: built.append(1), compile=lambda: returned)
    with pytest.raises(
        UserError, match=r"must return the arguments(.|\n)* as a dict(.|\n)*fix: return them"
    ) as error:
        run(job)
    assert error.value.received == repr(returned)
    assert not built


def test_a_compile_that_draws_at_random_changes_no_weights():
    def drawing():
        keras.random.normal((2,))
        np.random.random()
        return {**a_job().compile(), "optimizer": keras.optimizers.SGD(0.0)}

    still = {**a_job().compile(), "optimizer": keras.optimizers.SGD(0.0)}
    one, other = (
        run(a_job(compile=compile)).model.get_weights() for compile in (lambda: still, drawing)
    )
    np.testing.assert_array_equal(one[0], other[0])


@pytest.mark.parametrize(
    ("given", "fix"),
    [
        (chain(Prune(0.5)), r"run\(job, chain\)"),
        (Prune(0.5), r"run\(job, chain\)"),
        (classifier(), r"run\(Job\.from_model\(model"),
        (a_job, r"run\(job\(\)\)"),
    ],
    ids=["a chain", "a transform", "a model", "a function"],
)
def test_what_is_no_job_is_refused_with_the_way_to_one(given, fix):
    with pytest.raises(UserError, match=rf"run\(\) takes a job(.|\n)*fix: .*{fix}"):
        run(given)


def test_what_is_no_chain_is_refused():
    with pytest.raises(UserError, match="The chain is not a transform"):
        run(a_job(), [Prune(0.5)])


@pytest.mark.parametrize("source", [generated, (X, Y)])
def test_a_generator_function_serves_every_part_and_epoch(source):
    """A generator is used up after one epoch; its function is called again."""
    outcome = run(
        a_job(data=lambda: Data(train=source, validation=generated, test=generated), epochs=3)
    )
    # Keras alone counts 15 steps, one too many an epoch, where it does not know the length.
    assert int(outcome.model.optimizer.iterations) == 12
    assert len(outcome.history["val_loss"]) == 3
    assert outcome.evaluation["accuracy"] >= 0


def late(values, wrong):
    """Return a job on a stream whose second batch has something wrong."""
    data = {"x": np.ones((64, 6), "float32"), "y": np.zeros(64, "int64")}
    data[values][50] = wrong
    stream = tf.data.Dataset.from_tensor_slices((data["x"], data["y"])).batch(32)
    return a_job(data=lambda: Data(train=stream), batch_size=None)


def test_mistakes_beyond_the_first_batch_are_refused():
    with pytest.raises(UserError, match="loss is nan in epoch 1"):
        run(late("x", np.nan))
    with pytest.raises(UserError, match="beyond its first batch") as caught:
        run(late("y", 7))
    assert "label 7" in str(caught.value)
    assert "from 0 to 1" in str(caught.value)


@pytest.mark.parametrize(("steps", "examples", "last"), [(2, 32, 16), (None, 40, 8)])
def test_an_epoch_has_the_examples_of_its_steps(steps, examples, last):
    data = lambda: Data(train=(np.zeros((40, 6), "float32"), np.zeros(40, "int64")))  # noqa: E731
    with prepared(a_job(data=data, batch_size=16, steps_per_epoch=steps)) as ready:
        assert (ready.epoch_examples, ready.last_batch) == (examples, last)


@pytest.mark.parametrize(
    ("examples", "says"),
    [(40, ["float32[16x6], int64[16] and the last one float32[8x6], int64[8]"]), (32, [])],
)
def test_a_smaller_last_batch_under_xla_is_said_before_the_training(examples, says, caplog):
    compiled = {"loss": "sparse_categorical_crossentropy", "jit_compile": True}
    data = Data(train=(X[:examples], Y[:examples]))
    run(a_job(data=lambda: data, compile=lambda: compiled))
    found = [line for line in caplog.messages if "compiles the step a second time" in line]
    assert len(found) == len(says)
    assert all(word in line for word, line in zip(says, found, strict=True))


@pytest.mark.parametrize("jit_compile", [True, False])
def test_batches_of_many_lengths_under_xla_are_said_before_the_training(jit_compile, caplog):
    def build():
        mean = keras.layers.GlobalAveragePooling1D()
        layers = [keras.layers.Embedding(9, 2), mean, keras.layers.Dense(1)]
        return keras.Sequential([keras.Input((None,), dtype="int32"), *layers])

    rows = tf.ragged.constant([[1] * (n % 5 + 1) for n in range(32)], dtype=tf.int32)
    texts = tf.data.Dataset.from_tensor_slices(rows).map(lambda row: (row, row[0] % 2))
    settings = {"loss": "mse", "jit_compile": jit_compile}
    data = Data(train=texts.padded_batch(16, drop_remainder=True))
    run(a_job(build=build, data=lambda: data, compile=lambda: settings, batch_size=None))
    found = [line for line in caplog.messages if "again for each new shape" in line]
    assert len(found) == jit_compile
    assert all("batches are int32[16x?], int32[16]. Pad them" in line for line in found)
