"""Two workers train the weights of one device, and show the same numbers.

Each cluster goes through all cases in one run; the expected figures come from the same code in a
process without a cluster.
"""

import numpy as np

CASES = """
    import contextlib, keras, numpy as np, tensorflow as tf, tfopt
    RNG = np.random.default_rng(0)
    X = RNG.normal(size=(48, 6)).astype("float32")
    Y = X.sum(axis=1, keepdims=True)
    WEIGHTS = RNG.uniform(0.5, 1.5, 48).astype("float32")

    def built(**settings):
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((6,)), *layers])
        model.compile(jit_compile=False, **settings)
        return model

    def plain():
        model = built(optimizer=keras.optimizers.Adam(0.05), loss="mse", metrics=["mae"])
        return model, dict(x=X, y=Y, sample_weight=WEIGHTS, batch_size=16, epochs=2, shuffle=False,
                           validation_data=(X[:21], Y[:21]), validation_freq=2)

    def decided():
        model = built(optimizer=keras.optimizers.SGD(0.3), loss="mse")
        plateau = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=0, min_delta=0.3)
        early = keras.callbacks.EarlyStopping("loss", patience=2, min_delta=0.2, restore_best_weights=True)
        return model, dict(x=X, y=Y, batch_size=16, epochs=30, shuffle=False, callbacks=[plateau, early])

    def job():
        data = lambda: tfopt.Data(train=(X, Y), test=(X[:37], Y[:37]))
        job = tfopt.Job(build=lambda: keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)]),
                        data=data, compile=lambda: {"optimizer": "adam", "loss": "mse"},
                        batch_size=16, epochs=2)
        links = tfopt.Distribute(logical_cpus=1), tfopt.Pipeline(shuffle=False)
        outcome = tfopt.run(job, tfopt.chain(*links))
        say(note=outcome.effects[0][1].note, job={
            "weights": [w.ravel().tolist() for w in outcome.model.get_weights()],
            "loss": outcome.evaluation["loss"]})

    def trained(scope, cases):
        for case in cases:
            with scope():
                model, arguments = case()
            history = model.fit(verbose=0, **arguments).history
            facts = {"history": history, "iterations": int(model.optimizer.iterations.numpy())}
            facts["weights"] = [w.ravel().tolist() for w in model.get_weights()]
            if case is plain:
                facts["predicted"] = model.predict(X[:29], batch_size=8, verbose=0).ravel().tolist()
                facts["on_batch"] = model.predict_on_batch(X[:5]).ravel().tolist()
                facts["evaluated"] = model.evaluate(X[:37], Y[:37], batch_size=8, verbose=0)
            if case is decided:
                facts["rate"] = float(model.optimizer.learning_rate.numpy())
            say(**{case.__name__: facts})
"""


def flat(facts):
    if isinstance(facts, dict):
        return [number for key in sorted(facts) for number in flat(facts[key])]
    if isinstance(facts, list):
        return [number for each in facts for number in flat(each)]
    return [facts]


ON_WORKERS = """
    def scope(**how):
        return tfopt.distribute(logical_cpus=1, verify=False, global_batch=16, **how)
    with scope() as first, contextlib.nullcontext():
        say(count=first.count, workers=first.workers, ranks=first.rank)
    with scope() as again:
        say(same=again.strategy is first.strategy)
"""


def test_all_is_as_on_one_device(workers):
    # The job comes first: on one device it divides the CPU, which must not have been used.
    train = "    job()\n    trained(scope, (plain, decided))\n"
    alone = "    scope = lambda **_: contextlib.nullcontext()\n" + train
    (expected,) = workers.all_well(CASES + alone, count=1, env={"TF_CONFIG": "{}"})
    first, second = workers.all_well(CASES + ON_WORKERS + train)

    for case in ("plain", "decided", "job"):
        assert first[case] == second[case], case
        got, wanted = flat(first[case]), flat(expected[case])
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5, err_msg=case)
    # The cases do something.
    assert len(expected["plain"]["history"]["val_loss"]) == 1
    assert 3 < len(expected["decided"]["history"]["loss"]) < 30
    assert expected["decided"]["rate"] < 0.3
    assert "MultiWorkerMirroredStrategy over 2 replicas of 2 workers" in first["note"]
    # The scope says who is there, and is taken up again.
    assert first["count"] == second["count"] == 2
    assert (first["workers"], first["ranks"], second["ranks"]) == (2, 0, 1)
    assert first["same"] is second["same"] is True
