"""What callbacks write is written once, by the chief."""

import csv
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent

import pytest

CODE = """
    import keras, numpy as np, os, tfopt
    from tfopt.distribute.mends.in_force import mends_in_force
    x = np.arange(16, dtype="float32")[:, None]
    with tfopt.distribute(logical_cpus=1, verify=False) as replicas:
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((1,)), *layers])
        model.compile(keras.optimizers.SGD(0.001), "mse", jit_compile=False)
    k = keras.callbacks
    def fit(epochs):
        callbacks = [
            k.ModelCheckpoint(f"{folder}/{{epoch}}.weights.h5", save_weights_only=True),
            k.ModelCheckpoint(f"{folder}/whole.keras"),
            k.CSVLogger(f"{folder}/log.csv"),
        ]
        return model.fit(x, x, batch_size=8, epochs=epochs, verbose=0, callbacks=callbacks)

    # The package that it writes by is not among tfopt's.
    board = k.TensorBoard(f"{folder}/board", write_graph=False)
    with mends_in_force(replicas.strategy):
        k.CallbackList([board], model=model)
    say(board=board.log_dir)

    fit(3)
    say(weights=[w.numpy().ravel().tolist() for w in model.trainable_weights])
    try: model.fit(x, x, batch_size=8, verbose=0, callbacks=[k.BackupAndRestore(folder)])
    except tfopt.UserError as error: say(backup=str(error))
"""


def test_callbacks_write_once_and_a_backup_is_refused(workers):
    first, second = workers.all_well(CODE)
    folder = workers.folder
    assert first["weights"] == second["weights"]
    with (folder / "log.csv").open() as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["0", "1", "2"]
    assert sorted(path.name for path in folder.glob("*.weights.h5")) == [
        f"{epoch}.weights.h5" for epoch in range(1, 4)
    ]
    assert (folder / "whole.keras").is_file()
    assert first["board"] == str(folder / "board") != second["board"]
    for each in (first, second):
        assert "tfopt.resume(folder)" in each["backup"]


SAVED = """
    import keras, numpy as np, pathlib, tensorflow as tf, tfopt

    def built():
        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(2000)])
        model.compile("sgd", "mse", jit_compile=False)
        return model

    with tfopt.distribute(logical_cpus=1, verify=False, peer_timeout_s=60) as replicas:
        keras.utils.set_random_seed(rank)
        model = built()
    kernel = model.weights[0].numpy()
    torn = []
    whole = f"{folder}/whole.keras"
    weights = f"{folder}/only.weights.h5"
    for _ in range(5):
        model.save(whole)
        model.save_weights(weights)
        with_others = pathlib.Path(folder) / "served"
        model.export(with_others, verbose=False)
        try:
            same = np.array_equal(keras.saving.load_model(whole).weights[0].numpy(), kernel)
            model.load_weights(weights)
            exported = tf.saved_model.load(str(with_others))
            served = exported.serve(np.eye(64, dtype="float32"))
            assert same and np.allclose(served, kernel + model.weights[1].numpy())
        except Exception as error:
            torn.append(repr(error)[:200])
    say(torn=torn, chief=replicas.is_chief)

    # The chief alone; the others read it once it is there.
    alone = pathlib.Path(folder) / "alone.keras"
    if replicas.is_chief:
        model.save(alone)
    replicas.wait_for_all()
    say(alone=np.array_equal(keras.saving.load_model(alone).weights[0].numpy(), kernel))
    try:
        if replicas.is_chief: replicas.wait_for_all()
        else: model.predict(np.ones((4, 64)), verbose=0)
    except tfopt.UserError as error: say(other=str(error))

    keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]).save(f"{folder}/of{rank}.keras")
    replicas.wait_for_all()
"""


def test_all_workers_may_save_to_one_path_and_the_chief_alone(workers):
    first, second = workers.all_well(SAVED)
    for said in (first, second):
        assert said["torn"] == []
        assert said["alone"] is True
        assert "worker 1 has another call than worker 0" in said["other"]
        assert '"wait_for_all()"' in said["other"]
    assert (first["chief"], second["chief"]) == (True, False)
    folder = workers.folder
    assert not [path for path in folder.rglob(".*") if path.is_dir()]
    assert (folder / "of0.keras").is_file()
    assert (folder / "of1.keras").is_file()


LINKED = """
    import keras, numpy as np, pathlib, tfopt

    with tfopt.distribute(logical_cpus=1, verify=False, peer_timeout_s=60) as replicas:
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse", jit_compile=False)
    place, elsewhere = pathlib.Path(folder) / "linked", pathlib.Path(elsewhere)
    if replicas.is_chief:
        place.mkdir()
        for name, target in {
            "latest.keras": "kept-1", "latest.weights.h5": "none-yet", "served": "served-1"
        }.items():
            (place / name).symlink_to(elsewhere / target)
        (elsewhere / "kept-1").write_bytes(b"old")
        (elsewhere / "served-1").mkdir()
    replicas.wait_for_all()
    model.save(place / "latest.keras")
    model.save_weights(place / "latest.weights.h5")
    model.export(place / "served", verbose=False)
    replicas.wait_for_all()
    kernel = keras.saving.load_model(place / "latest.keras").weights[0].numpy()
    say(
        links=sorted(each.name for each in place.iterdir() if each.is_symlink()),
        same=np.array_equal(kernel, model.weights[0].numpy()),
        new=[(elsewhere / name).stat().st_size > 100 for name in ("kept-1", "none-yet")],
        served=(elsewhere / "served-1" / "saved_model.pb").is_file(),
        left=[str(each) for root in (place, elsewhere) for each in root.glob(".*")],
    )
"""


def test_what_a_link_names_is_what_changes(workers, other_disk):
    for said in workers.all_well(f"elsewhere = {str(other_disk)!r}\n" + dedent(LINKED)):
        assert said == {
            "links": ["latest.keras", "latest.weights.h5", "served"],
            "same": True,
            "new": [True, True],
            "served": True,
            "left": [],
        }


@pytest.fixture
def other_disk(tmp_path):
    """A folder on another file system than the workers', where there is one in memory."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        yield tmp_path
        return
    with TemporaryDirectory(dir=shared) as folder:
        yield Path(folder)
