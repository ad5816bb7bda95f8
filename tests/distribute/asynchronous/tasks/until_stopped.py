"""Trains until the test says stop."""

import os

import keras
from small import FOLDER, Noted, build, data, note

import tfopt

model, history = tfopt.train_asynchronously(
    (lambda: keras.Sequential(build().layers)) if os.environ.get("UNCOMPILED") else build,
    data,
    epochs=10_000,
    callbacks=[Noted()],
    checkpoint=FOLDER / "kept",
    patience_s=float(os.environ.get("PATIENCE_S", "60")),
)
note(iterations=int(model.optimizer.iterations.numpy()), epochs=len(history.history["loss"]))
