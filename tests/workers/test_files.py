"""What callbacks write is written once, by the chief, and a backup is taken up by all."""

import csv
from pathlib import Path

CODE = """
    import keras, numpy as np, os, tfopt
    x = np.arange(16, dtype="float32")[:, None]
    with tfopt.distribute(logical_cpus=1):
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((1,)), *layers])
        model.compile(keras.optimizers.SGD(0.001), "mse", jit_compile=False)
    k = keras.callbacks
    def fit(epochs, **backup):
        backup = k.BackupAndRestore(f"{folder}/backup", **backup)
        callbacks = [
            k.ModelCheckpoint(f"{folder}/{{epoch}}.weights.h5", save_weights_only=True),
            k.ModelCheckpoint(f"{folder}/whole.keras"),
            k.CSVLogger(f"{folder}/log.csv"),
            backup,
        ]
        return model.fit(x, x, batch_size=8, epochs=epochs, verbose=0, callbacks=callbacks)

    # The package that it writes by is not among tfopt's.
    board = k.TensorBoard(f"{folder}/board", write_graph=False)
    k.CallbackList([board], model=model)
    say(board=board.log_dir)

    fit(2, delete_checkpoint=False)
    say(weights=[w.numpy().ravel().tolist() for w in model.trainable_weights])
    # Another training, which goes on from the backup.
    history = fit(5)
    say(epochs=history.epoch, again=[w.numpy().ravel().tolist() for w in model.trainable_weights])

    # The chief alone has a backup: what a folder that is not shared looks like.
    alone = f"{folder}/of{rank}"
    os.makedirs(alone)
    if rank == 0:
        with open(f"{alone}/training_metadata.json", "w") as file:
            file.write('{"epoch": 1, "batch": 0}')
    try: model.fit(x, x, batch_size=8, epochs=2, verbose=0, callbacks=[k.BackupAndRestore(alone)])
    except tfopt.UserError as error: say(alone=str(error))
"""


def test_callbacks_write_once_and_backups_are_taken_up_alike(workers):
    first, second = workers.all_well(CODE)
    folder = Path(workers.folder)
    for name in ("weights", "again"):
        assert first[name] == second[name]
    assert first["epochs"] == second["epochs"] == [2, 3, 4]
    with (folder / "log.csv").open() as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["2", "3", "4"]
    assert sorted(path.name for path in folder.glob("*.weights.h5")) == [
        f"{epoch}.weights.h5" for epoch in range(1, 6)
    ]
    assert (folder / "whole.keras").is_file()
    assert first["board"] == str(folder / "board") != second["board"]
    assert not (folder / "backup").exists()
    for each in (first, second):
        assert "worker 1 has another backup than worker 0" in each["alone"]


def test_without_the_mend_all_would_write(workers):
    for said in workers.all_well("""
        import tfopt
        with tfopt.distribute(logical_cpus=1) as replicas:
            pass
        from tfopt.repairs import worker_files
        say(mended=not worker_files.probe(replicas.strategy))
        worker_files._mended._strategies.clear()
        say(probe=worker_files.probe(replicas.strategy))
    """):
        assert said["probe"] is True
