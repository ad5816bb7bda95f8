"""What is compiled, or built, on the wrong side of the scope."""

import keras
import numpy as np
import pytest

import tfopt
from tfopt.distribute.mends.compiled_outside import probe

from .replicas import without

x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")


def built(units=2):
    keras.utils.set_random_seed(units)
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(units)])


class Taught(keras.Model):
    def __init__(self, student, teacher, shown=()):
        super().__init__()
        self.student, self.teacher, self.shown = student, teacher, list(shown)

    def call(self, x):
        return self.student(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        mse = keras.losses.MeanSquaredError()
        return mse(y, y_pred) + mse(self.teacher(x), y_pred)


def on_top(part):
    inputs = keras.Input((4,))
    return keras.Model(inputs, keras.layers.Dense(2, kernel_initializer="ones")(part(inputs)))


def frozen(model):
    model.trainable = False
    return model


def compiled(model, optimizer="adam", metrics=("mae",)):
    model.compile(optimizer, "mse", metrics=list(metrics), jit_compile=False)
    return model


def trained(model):
    history = model.fit(x, x[:, :2], batch_size=16, shuffle=False, verbose=0).history
    told = model.evaluate(x, x[:, :2], batch_size=16, verbose=0)
    return [*model.get_weights(), np.asarray([*history.values()]), np.asarray(told)]


def told(*actions):
    """Return the error that each of the functions ends with, by its name."""
    found = {}
    for action in actions:
        try:
            action()
        except Exception as error:
            found[action.__name__] = f"{type(error).__name__}: {error}"
    return found


def scope():
    return tfopt.distribute(logical_cpus=2)


def inside(make):
    with scope():
        return make()


def compiled_late():
    """Compile models of the scope behind it, and some that it cannot take."""
    outside, alone, metric = built(), built(), keras.metrics.MeanSquaredError()
    optimizer = keras.optimizers.Adam()
    with scope() as replicas:
        within, again = built(), built()
        inner = keras.optimizers.Adam(), keras.metrics.MeanSquaredError()

    def model_outside():
        with scope():
            compiled(outside)

    def optimizer_outside():
        compiled(within, optimizer)

    def metric_outside():
        compiled(within, metrics=["mae", metric])

    found = told(model_outside, optimizer_outside, metric_outside)
    untouched = not within.compiled and not outside.compiled
    compiled(again, inner[0], metrics=[inner[1]])
    weights = [trained(each)[:2] for each in (compiled(within), again, compiled(alone))]
    gap = max(float(np.ptp(np.stack(each), axis=0).max()) for each in zip(*weights, strict=True))
    return found, untouched, gap, probe(replicas.strategy)


def test_compile_enters_the_scope_of_its_model_and_refuses_what_was_made_elsewhere(replicas):
    found, untouched, gap, probed = replicas(compiled_late)
    assert probed is False
    assert untouched is True
    assert gap < 1e-5
    assert "built outside" in found["model_outside"]
    assert "load_model" in found["model_outside"]
    assert "optimizer=Adam(...)" in found["optimizer_outside"]
    assert "metrics=MeanSquaredError(...)" in found["metric_outside"]


def fit_inside():
    model = compiled(built())
    with scope():
        trained(model)


def evaluated_inside():
    model = compiled(built())
    with scope():
        model.evaluate(x, x[:, :2], verbose=0)


def metric_outside():
    mean = keras.metrics.Mean(name="shown")
    compiled(Taught(inside(built), inside(lambda: built(2)), [mean]))


def part_outside():
    part = built(3)
    trained(inside(lambda: compiled(on_top(part))))


def teacher_outside():
    trained(compiled(Taught(inside(built), built())))


def wrapped():
    student, teacher = inside(built), inside(built)
    return trained(compiled(Taught(student, teacher)))


MISTAKES = (fit_inside, evaluated_inside, part_outside, teacher_outside, metric_outside)


def unmended():
    without("compiled_outside")
    inside(lambda: None)
    return told(*MISTAKES, wrapped)


@pytest.mark.slow
def test_without_the_mend_models_of_parts_from_both_sides_end_in_errors_of_tensorflow(alone):
    found = alone(unmended)
    assert "Mixing different tf.distribute.Strategy" in found["fit_inside"]
    assert "colocate_vars_with" in found["part_outside"]
    assert "Placeholder" in found["evaluated_inside"]
    assert "tuple indices must be integers" in found["wrapped"]


def put_together():
    one_device = trained(compiled(Taught(built(), frozen(built()))))

    def gap(several, alone):
        return max(float(np.abs(a - b).max()) for a, b in zip(several, alone, strict=True))

    gaps = {
        "wrapped outside": gap(wrapped(), trained(compiled(Taught(built(), built())))),
        "teacher outside": gap(
            trained(compiled(Taught(inside(built), frozen(built())))), one_device
        ),
    }
    outer = frozen(built(3))
    several = inside(lambda: compiled(on_top(outer)))
    gaps["frozen part"] = gap(trained(several), trained(compiled(on_top(frozen(built(3))))))
    return told(*MISTAKES), gaps


def test_what_is_put_together_outside_trains_in_the_scope_of_its_parts_or_is_refused(replicas):
    found, gaps = replicas(put_together)
    assert max(gaps.values()) < 1e-5, gaps
    assert all(error.startswith("UserError") for error in found.values()), found
    assert "built outside: 'sequential" in found["fit_inside"]
    assert "built outside" in found["evaluated_inside"]
    for name in ("part_outside", "teacher_outside"):
        assert "weights that it would train outside" in found[name]
        assert "/dense" in found[name]
    assert "Taught with shown" in found["metric_outside"]
