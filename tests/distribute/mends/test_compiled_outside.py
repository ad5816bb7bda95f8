"""What is compiled, or built, on the wrong side of the scope."""

import json


def test_compile_enters_the_scope_of_its_model_and_refuses_what_was_made_elsewhere(fresh_python):
    printed = fresh_python(
        """
    import json, keras, numpy as np, tensorflow as tf, tfopt
    from tfopt.distribute.mends import repairs_roster as roster
    from tfopt.distribute.mends.compiled_outside import probe
    x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")

    def built():
        keras.utils.set_random_seed(0)
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])

    def trained(model):
        model.fit(x, x[:, :2], batch_size=16, shuffle=False, verbose=0)
        return model.get_weights()

    def told(name, action):
        try:
            action()
        except (ValueError, RuntimeError) as error:
            found[name] = f"{type(error).__name__}: {error}"

    found = {}
    mended, roster.REPAIRS = roster.REPAIRS, tuple(
        each for each in roster.REPAIRS if each.name != "compiled outside")
    with tfopt.distribute(logical_cpus=2) as scope:
        defect = built()
    strategy = scope.strategy
    found["probe"] = probe(strategy)
    defect.compile("adam", "mse", jit_compile=False)
    told("defect", lambda: trained(defect))
    roster.REPAIRS = mended
    roster.mend_all(strategy)
    found["mended"] = not probe(strategy)

    outside, alone, metric = built(), built(), keras.metrics.MeanSquaredError()
    with tfopt.distribute(logical_cpus=2):
        inside, again = built(), built()
        inner = keras.optimizers.Adam(), keras.metrics.MeanSquaredError()
        told("model outside", lambda: outside.compile("adam", "mse"))
    told("optimizer outside", lambda: inside.compile(keras.optimizers.Adam(), "mse"))
    told("metric outside", lambda: inside.compile("adam", "mse", metrics=["mae", metric]))
    found["untouched"] = not inside.compiled and not outside.compiled
    for model in (inside, alone):
        model.compile("adam", "mse", metrics=["mae"], jit_compile=False)
    again.compile(inner[0], "mse", metrics=[inner[1]], jit_compile=False)
    gaps = zip(trained(inside), trained(again), trained(alone), strict=True)
    found["gap"] = float(np.max([np.ptp(np.stack(each), axis=0).max() for each in gaps]))
    print(json.dumps(found))
    """
    )
    found = json.loads(printed)
    assert found["probe"] is True
    assert "Mixing different tf.distribute.Strategy" in found["defect"]
    assert found["mended"] is True
    assert found["untouched"] is True
    assert found["gap"] < 1e-5
    assert "built outside" in found["model outside"]
    assert "load_model" in found["model outside"]
    assert "optimizer=Adam(...)" in found["optimizer outside"]
    assert "metrics=MeanSquaredError(...)" in found["metric outside"]


PARTS = """
    import json, keras, numpy as np, tensorflow as tf, tfopt
    from tfopt.distribute.mends import repairs_roster as roster
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

    def compiled(model):
        model.compile("adam", "mse", metrics=["mae"], jit_compile=False)
        return model

    def trained(model):
        history = model.fit(x, x[:, :2], batch_size=16, shuffle=False, verbose=0).history
        told = model.evaluate(x, x[:, :2], batch_size=16, verbose=0)
        return [*model.get_weights(), np.asarray([*history.values()]), np.asarray(told)]

    found = {}
    def told(name, action):
        try:
            action()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"

    def without_the_mend():
        roster.REPAIRS = tuple(
            each for each in roster.REPAIRS if each.name != "compiled outside")

    def scope():
        return tfopt.distribute(logical_cpus=2)
    def inside(make):
        with scope():
            return make()
    inside(lambda: None) if WITH else (without_the_mend(), inside(lambda: None))
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
    def head_outside():
        part = built(3)
        trained(inside(lambda: compiled(on_top(part))))
    told("fit inside", fit_inside)
    told("evaluate inside", evaluated_inside)
    told("part outside", head_outside)
    told("teacher outside", lambda: trained(compiled(Taught(inside(built), built()))))
    told("metric outside", metric_outside)
    def wrapped():
        student, teacher = inside(built), inside(built)
        return trained(compiled(Taught(student, teacher)))
"""


def test_without_the_mend_models_of_parts_from_both_sides_end_in_errors_of_tensorflow(fresh_python):
    printed = fresh_python(
        PARTS.replace("WITH", "False")
        + """
    told("wrapped outside", wrapped)
    print(json.dumps(found))
    """
    )
    found = json.loads(printed)
    assert "Mixing different tf.distribute.Strategy" in found["fit inside"]
    assert "colocate_vars_with" in found["part outside"]
    assert "Placeholder" in found["evaluate inside"]
    assert "tuple indices must be integers" in found["wrapped outside"]


def test_what_is_put_together_outside_trains_in_the_scope_of_its_parts_or_is_refused(fresh_python):
    printed = fresh_python(
        PARTS.replace("WITH", "True")
        + """
    one_device = trained(compiled(Taught(built(), frozen(built()))))
    def gap(several, alone):
        return max(float(np.abs(a - b).max()) for a, b in zip(several, alone, strict=True))
    gaps = {
        "wrapped outside": gap(wrapped(), trained(compiled(Taught(built(), built())))),
        "teacher outside": gap(trained(compiled(Taught(inside(built), frozen(built())))), one_device),
    }
    outer = frozen(built(3))
    several = inside(lambda: compiled(on_top(outer)))
    gaps["frozen part"] = gap(trained(several), trained(compiled(on_top(frozen(built(3))))))
    print(json.dumps([found, gaps]))
    """
    )
    found, gaps = json.loads(printed)
    assert max(gaps.values()) < 1e-5, gaps
    assert all(error.startswith("UserError") for error in found.values()), found
    assert "built outside: 'sequential'" in found["fit inside"]
    assert "built outside" in found["evaluate inside"]
    for name in ("part outside", "teacher outside"):
        assert "weights that it would train outside" in found[name]
        assert "/dense" in found[name]
    assert "Taught with shown" in found["metric outside"]
