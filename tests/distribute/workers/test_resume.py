"""tfopt.resume on several workers: what is each one's own, what fails on one, and what is refused.

What is killed and started again is in ``tests/resume/test_kills.py`` and ``tests/distribute/launch``.
"""

import pytest

CODE = """
    import keras, numpy as np, pathlib, tensorflow as tf, tfopt, time, warnings

    x = np.random.default_rng(1).normal(size=(48, 6)).astype("float32")

    def dataset(x=x):
        pairs = tf.data.Dataset.from_tensor_slices((x, x[:, :1]))
        return pairs.shuffle(48, seed=3).batch(8)

    class Stop(keras.callbacks.Callback):
        def __init__(self, step):
            super().__init__()
            self.left = step

        def on_train_batch_end(self, batch, logs=None):
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt

    def fit(epochs, where=None, data=None, stop=None, **asked):
        with tfopt.distribute(logical_cpus=1, verify=False, peer_timeout_s=30):
            keras.utils.set_random_seed(7)
            middle = [keras.layers.Dropout(0.3), keras.layers.BatchNormalization()]
            model = keras.Sequential([keras.Input((6,)), *middle, keras.layers.Dense(1)])
            model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"], jit_compile=False)
        np.random.seed(rank)  # of its own
        resuming = [] if where is None else [tfopt.resume(where, **{"every_steps": 1, **asked})]
        calls = resuming if stop is None else [*resuming, Stop(stop)]
        data = dataset() if data is None else data
        history = model.fit(data, epochs=epochs, verbose=0, shuffle=False, callbacks=calls)
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
        (own / newest).write_bytes(b"cut short")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        weights, after = fit(3, where)
    say(
        unusable=[str(each.message) for each in caught if "is skipped" in str(each.message)],
        off=[float(np.abs(np.subtract(a, b)).max()) for a, b in zip(weights, undisturbed)],
        same_history=after == history,
        own_random=float(np.random.uniform()) == drawn,
    )

    # Each worker reads a file of its own, one of 30 rows and one of 18: in the middle of an epoch.
    import pyarrow as pa, pyarrow.parquet
    column = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), 6)
    table = pa.table({"x": column, "y": x[:, 0]})
    table = table.slice(30 * rank, 30 - 12 * rank)
    pa.parquet.write_table(table, f"{folder}/{rank}.parquet", row_group_size=10)
    source = tfopt.data.Parquet(f"{folder}/{rank}.parquet", features="x", label="y")
    own = tfopt.data.PipelineOptions(autoshard="off")
    rows = lambda: tfopt.pipeline(source, batch_size=8, options=own)
    weights, _ = fit(3, data=rows())
    try: fit(3, f"{folder}/rows", rows(), stop=10)
    except KeyboardInterrupt: pass
    again, _ = fit(3, f"{folder}/rows", rows())
    say(rows_off=[float(np.abs(np.subtract(a, b)).max()) for a, b in zip(again, weights)])

    try: fit(1, f"{folder}/of{rank}")
    except tfopt.UserError as error: say(not_shared=str(error))

    # In the share of one worker there is an example that is none.
    broken = x.copy()
    broken[11] = np.nan
    try: fit(2, f"{folder}/stopped", dataset(broken))
    except tfopt.UserError as error: say(stopped=str(error))
"""


@pytest.mark.slow
def test_parts_of_several_workers(workers):
    first, second = workers.all_well(CODE)
    for said in (first, second):
        assert said["parts"][-1] == said["newest"]
        assert len(said["unusable"]) == 1
        assert "worker 1: damaged" in said["unusable"][0]
        assert all(each == 0 for each in said["off"])
        assert all(each == 0 for each in said["rows_off"])
        assert said["same_history"]
        assert said["own_random"]
        assert "worker 1 does not see the checkpoints of the chief" in said["not_shared"]
        assert " at epoch 0, batch " in said["stopped"]
    one, other = (said["stopped"].partition(" at epoch ")[2][:11] for said in (first, second))
    assert one == other
