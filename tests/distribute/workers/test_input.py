"""Over two workers of two replicas each example of an epoch is seen once, however it is shared."""

CODE = """
    import keras, logging, numpy as np, os, sys, tensorflow as tf, tfopt, time, warnings
    # Keras says that it does not shuffle datasets, and that data of unknown length have ended.
    warnings.filterwarnings("ignore", "`shuffle=True` was passed|Your input ran out of data")
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)

    with tfopt.distribute(logical_cpus=2, verify=False) as replicas:
        from tfopt.distribute.whole_batch import drop_padding

        class Sees(keras.Model):
            def __init__(self):
                super().__init__()
                self.dense, self.seen = keras.layers.Dense(1), []

            def call(self, x):
                return self.dense(x)

            def train_step(self, data):
                x = data[0] if isinstance(data, tuple) else data
                # A replica without examples is given another one's, which is not counted.
                tf.py_function(self.note, [drop_padding(x)], [])
                return super().train_step((x, x))

            def note(self, x):
                self.seen += [int(n) for n in np.asarray(x).ravel()]

        model = Sees()
        model.compile(keras.optimizers.SGD(0.0), "mse", jit_compile=False)

    def seen(name, *args, **kwargs):
        epochs = []
        note = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: model.seen.clear(),
            on_epoch_end=lambda epoch, logs: epochs.append(sorted(model.seen)),
        )
        model.fit(*args, epochs=2, verbose=0, callbacks=[note], **kwargs)
        say(**{name: epochs})

    def numbered(first, end):
        return tf.data.Dataset.range(first, end).map(lambda n: tf.cast(n, tf.float32)[..., None])

    def parsed(lines):
        return lines.map(lambda line: tf.strings.to_number(line)[..., None])

    x = np.arange(22, dtype="float32")[:, None]
    seen("arrays", x, x, batch_size=8, shuffle=False)
    seen("dataset", numbered(0, 22).shuffle(22).batch(8))

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 3
        def __getitem__(self, n):
            return x[8 * n : 8 * n + 8], x[8 * n : 8 * n + 8]

    seen("threads", Batches(workers=2), shuffle=False)
    seen("generator", (Batches()[n % 3] for n in range(6)), steps_per_epoch=3)

    off = tf.data.Options()
    off.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    mine = numbered(100 * rank, 100 * rank + 11 + 4 * rank).shuffle(100).batch(8)
    seen("own", mine.with_options(off))

    with tfopt.distribute(logical_cpus=2):
        proven = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        proven.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=False)
    pairs = mine.map(lambda x: (x, tf.cast(x, tf.int64)))
    proven.fit(pairs.with_options(off), verbose=0, shuffle=False)

    import pyarrow, pyarrow.parquet
    rows = pyarrow.array(np.arange(26, dtype="float32")[18 * rank : 18 + 8 * rank])
    rows = pyarrow.FixedSizeListArray.from_arrays(rows, 1)
    file = f"{folder}/{rank}.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"x": rows}), file, row_group_size=5)
    own = tfopt.data.PipelineOptions(autoshard="off")
    rows = tfopt.data.Parquet(file, features="x")
    seen("parquet", tfopt.pipeline(rows, batch_size=8, options=own))

    names = [f"{folder}/{n}.rec" for n in range(3)]
    if rank == 0:
        for n, name in enumerate(names):
            with tf.io.TFRecordWriter(f"{name}.new") as file:
                for each in range(7):
                    file.write(str(10 * n + each).encode())
            os.rename(f"{name}.new", name)
    while not all(os.path.exists(name) for name in names):
        time.sleep(0.05)
    seen("files", parsed(tf.data.TFRecordDataset(names)).batch(4))
    listed = tf.data.Dataset.list_files(f"{folder}/*.rec").interleave(tf.data.TFRecordDataset)
    seen("listed", parsed(listed.shuffle(50)).batch(4))

    strategy = model.distribute_strategy
    def tuned(dataset):
        dataset = strategy.experimental_distribute_dataset(dataset)
        return [each.options().autotune.enabled for each in dataset._cloned_datasets]
    chosen = tf.data.Options()
    chosen.autotune.enabled = True
    plain = numbered(0, 22).batch(8)
    say(tuned=[tuned(plain), tuned(plain.with_options(chosen))])

    try:
        with tfopt.distribute(verify=False): pass
    except tfopt.UserError as error: say(devices=str(error))
    tf.random.set_seed(None)
    unseeded = numbered(0, 22).shuffle(22).batch(8)
    try: model.fit(unseeded, verbose=0)
    except tfopt.UserError as error: say(unseeded=str(error))
    time.sleep(2)  # the chief keeps what the workers say to each other
"""


ALL = list(range(22))
IN_FILES = [*range(7), *range(10, 17), *range(20, 27)]


SEEN = {
    **dict.fromkeys(("arrays", "dataset", "threads", "generator"), ALL),
    "own": [*range(11), *range(100, 115)],
    "parquet": list(range(26)),
    "files": IN_FILES,
    "listed": IN_FILES,
}


def test_each_example_is_seen_once_in_each_epoch(workers):
    ended = workers.run(CODE)
    assert [each.code for each in ended] == [0, 0], ended[0].err[-4000:] + ended[1].err[-4000:]
    for name, expected in SEEN.items():
        for first, second in zip(*(each.said[name] for each in ended), strict=True):
            assert sorted(first + second) == expected, name
    # Files are read by one worker each.
    assert ended[1].said["parquet"][0] == list(range(18, 26))
    assert ended[1].said["files"][0] == list(range(10, 17))
    for each in ended:
        assert "equal: 2 steps on 4 replicas" in each.err  # of the chief's own data
        # No iterator waits for the autotuner unless it was asked for.
        assert each.said["tuned"] == [[False], [True]]
        assert "its share of every batch (AutoShardPolicy.DATA)" in each.err
        assert "each worker reads its share of 3 files (AutoShardPolicy.FILE)" in each.err
        assert "all of its dataset (AutoShardPolicy.OFF)" in each.err
        assert "shuffled by a different seed on each worker" in each.said["unseeded"]
        assert "already has a strategy over other devices" in each.said["devices"]
