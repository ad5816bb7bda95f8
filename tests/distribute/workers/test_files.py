"""What callbacks and models write is written once, by the chief."""

import csv

CODE = """
    import keras, numpy as np, os, pathlib, tensorflow as tf, tfopt
    x = np.arange(16, dtype="float32")[:, None]
    with tfopt.distribute(logical_cpus=1, verify=False, peer_timeout_s=60) as replicas:
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((1,)), *layers])
        model.compile(keras.optimizers.SGD(0.001), "mse", jit_compile=False)
    k = keras.callbacks
    callbacks = [
        k.ModelCheckpoint(f"{folder}/{{epoch}}.weights.h5", save_weights_only=True),
        k.ModelCheckpoint(f"{folder}/whole.keras"),
        k.CSVLogger(f"{folder}/log.csv"),
    ]
    model.fit(x, x, batch_size=8, epochs=3, verbose=0, callbacks=callbacks)
    say(weights=[w.numpy().ravel().tolist() for w in model.trainable_weights])
    # Written by what is not among tfopt's packages.
    board = k.TensorBoard(f"{folder}/board", write_graph=False)
    from tfopt.distribute.worker_files import redirect_callbacks
    redirect_callbacks([board], replicas.strategy._tfopt_exchange)
    say(board=board.log_dir)
    try: model.fit(x, x, batch_size=8, verbose=0, callbacks=[k.BackupAndRestore(folder)])
    except tfopt.UserError as error: say(backup=str(error))

    kernel = model.weights[0].numpy()
    model.save(f"{folder}/saved.keras")
    model.save_weights(f"{folder}/only.weights.h5")
    model.export(pathlib.Path(folder) / "served", verbose=False)
    if replicas.is_chief:  # alone
        model.save(pathlib.Path(folder) / "alone.keras")
    replicas.wait_for_all()
    for name in ("saved", "alone"):
        read = keras.saving.load_model(f"{folder}/{name}.keras")
        say(**{name: np.array_equal(read.weights[0].numpy(), kernel)})
    model.load_weights(f"{folder}/only.weights.h5")
    exported = tf.saved_model.load(f"{folder}/served")
    served = exported.serve(x)
    say(served=np.allclose(served, model.predict(x, verbose=0), atol=1e-5), chief=replicas.is_chief)
"""


def test_the_chief_writes_and_a_backup_is_refused(workers):
    first, second = workers.all_well(CODE)
    folder = workers.folder
    assert first["weights"] == second["weights"]
    with (folder / "log.csv").open() as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["0", "1", "2"]
    assert len(list(folder.glob("[1-3].weights.h5"))) == 3
    assert (folder / "whole.keras").is_file()
    assert first["board"] == str(folder / "board") != second["board"]
    assert (first["chief"], second["chief"]) == (True, False)
    for said in (first, second):
        assert "tfopt.resume(folder)" in said["backup"]
        assert said["saved"]
        assert said["alone"]
        assert said["served"]
