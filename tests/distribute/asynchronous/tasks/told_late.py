"""What the first step tells comes to the chief only when the test says that its worker has died."""

import time

from small import FOLDER, Noted, build, data, note
from tensorflow.python.distribute.coordinator.values import RemoteValueImpl

import tfopt

copy = RemoteValueImpl._copy_to_local


def late_copy(self):
    if isinstance(self._values, dict) and not (FOLDER / "killed").exists():
        (FOLDER / "worker").write_text(str(int(copy(self)["worker"])))
        while not (FOLDER / "killed").exists():
            time.sleep(0.05)
    return copy(self)


RemoteValueImpl._copy_to_local = late_copy
model, history = tfopt.train_asynchronously(build, data, epochs=3, callbacks=[Noted()])
note(iterations=int(model.optimizer.iterations.numpy()))
