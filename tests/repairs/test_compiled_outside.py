"""What is compiled, or built, on the wrong side of the scope."""

import json


def test_compile_enters_the_scope_of_its_model_and_refuses_what_was_made_elsewhere(fresh_python):
    printed = fresh_python(
        """
    import json, keras, numpy as np, tensorflow as tf, tfopt
    from tfopt.repairs import roster
    from tfopt.repairs.compiled_outside import probe
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
        each for each in roster.REPAIRS if each.module != "compiled_outside")
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
