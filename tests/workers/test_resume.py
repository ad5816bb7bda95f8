"""tfopt.resume on several workers: what is each one's own, what fails on one, and what is refused.

What is killed and started again is in ``tests/resuming/test_kills.py`` and ``tests/launch``.
"""

from pathlib import Path

CODE = """
    import keras, numpy as np, pathlib, tensorflow as tf, tfopt, time, warnings

    x = np.random.default_rng(1).normal(size=(48, 6)).astype("float32")

    def dataset(x=x):
        pairs = tf.data.Dataset.from_tensor_slices((x, x[:, :1]))
        return pairs.shuffle(48, seed=3).batch(8)

    def fit(epochs, where=None, data=None, **asked):
        with tfopt.distribute(logical_cpus=1, peer_timeout_s=30):
            keras.utils.set_random_seed(7)
            middle = [keras.layers.Dropout(0.3), keras.layers.BatchNormalization()]
            model = keras.Sequential([keras.Input((6,)), *middle, keras.layers.Dense(1)])
            model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"], jit_compile=False)
        np.random.seed(rank)  # of its own
        resuming = [] if where is None else [tfopt.resume(where, **{"every_steps": 1, **asked})]
        history = model.fit(
            data or dataset(), epochs=epochs, verbose=0, shuffle=False, callbacks=resuming
        )
        weights = [v.numpy().ravel().tolist() for v in [*model.variables, *model.optimizer.variables]]
        return weights, history.history

    undisturbed, history = fit(3)
    where = pathlib.Path(folder) / "kept"
    fit(2, where)
    drawn = float(np.random.uniform())
    newest = sorted(where.glob("checkpoint-*"))[-1].name
    own = where if rank == 0 else where / "of-worker-1"
    say(newest=newest, parts=sorted(path.name for path in own.glob("checkpoint-*")))
    if rank == 1:
        (own / newest / "arrays.bin").write_bytes(b"cut short")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        weights, after = fit(3, where)
    say(
        told=[str(each.message) for each in told if "cannot be used" in str(each.message)],
        off=[float(np.abs(np.subtract(a, b)).max()) for a, b in zip(weights, undisturbed)],
        same_history=after == history,
        own_random=float(np.random.uniform()) == drawn,
    )

    try: fit(1, f"{folder}/of{rank}")
    except tfopt.UserError as error: say(not_shared=str(error))

    # In the share of one worker there is an example that is none.
    broken = x.copy()
    broken[11] = np.nan
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        weights, after = fit(2, f"{folder}/broken", dataset(broken), on_nan="rollback")
    say(
        back=[str(each.message) for each in told if "back to" in str(each.message)],
        weights=weights,
        finite=all(np.isfinite(each).all() for each in weights),
    )
    try: fit(2, f"{folder}/stopped", dataset(broken))
    except tfopt.UserError as error: say(stopped=str(error))
"""


def test_parts_of_several_workers(workers):
    first, second = workers.all_well(CODE)
    for said in (first, second):
        assert said["parts"][-1] == said["newest"]
        assert len(said["told"]) == 1
        assert "worker 1: arrays.bin has 9 of" in said["told"][0]
        assert all(each == 0 for each in said["off"])
        assert said["same_history"]
        assert said["own_random"]
        assert "worker 1 does not see the checkpoints of worker 0" in said["not_shared"]
        assert len(said["back"]) == 2
        assert said["finite"]
        assert " at epoch 0, batch " in said["stopped"]
    assert first["weights"] == second["weights"]
    for name in ("back", "stopped"):
        one, other = (str(said[name]).partition(" at epoch ")[2][:11] for said in (first, second))
        assert one == other
    kept = Path(workers.folder) / "kept" / "of-worker-1"
    assert [path.name for path in kept.glob("unreadable-*")] == [
        first["newest"].replace("checkpoint", "unreadable")
    ]
