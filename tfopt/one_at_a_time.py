"""The one lock of all that changes a model or the process for a while and puts it back.

Guarantees: under it layers, functions of Keras and TensorFlow, warnings and standard error are as
they were left to be, for one thread. Of two threads without it, each would put back what the other
had changed. It is reentrant, and is never waited for by a step that is being trained.
"""

from __future__ import annotations

import threading

ONE_AT_A_TIME = threading.RLock()
