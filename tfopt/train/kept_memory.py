"""Keep host memory that a step frees for the next step, instead of returning it to the system.

glibc returns large freed blocks to the kernel. A training step on the CPU frees and allocates the
same megabytes of activations, and the kernel zeroes them page by page each time. glibc adapts its
threshold to recurring sizes, but TensorFlow 2.21 turns that off: after the first dataset from a
Python generator (``Dataset.from_generator``; ``fit`` on a generator or a ``PyDataset``), blocks
above 128 KiB are returned at once, against a leak under Python 3.11 (tensorflow/tensorflow#65675).
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from typing import Any

from tfopt.data.host_memory import MIB
from tfopt.job.parts import Effect
from tfopt.job.transform import Run, Transform

# Parameters of mallopt(3), as malloc.h numbers them; its values are C ints.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3


def keep_host_memory() -> Effect:
    """Make the allocator keep freed memory, in the whole process and until it ends.

    Call it after ``tfopt.place`` and other choices of devices, since it runs TensorFlow. It sets
    glibc's allocator only. Blocks above a GiB, such as whole datasets, are still returned to the
    system when they are freed; so are those above 64 MiB in threads other than the main one.

    Example:
        print(tfopt.keep_host_memory().note)
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return Effect(False, "this system's C library is not glibc")
    if "malloc" in os.environ.get("LD_PRELOAD", ""):  # jemalloc, tcmalloc and mimalloc come so
        return Effect(False, f"{os.environ['LD_PRELOAD']} allocates the host's memory")
    import tensorflow as tf

    with tf.device("CPU:0"):  # TensorFlow sets the threshold at the first generator dataset only
        spec = tf.TensorSpec((), tf.int32)
        list(tf.data.Dataset.from_generator(lambda: iter([0]), output_signature=spec))
    # glibc before 2.35 accepts at most 32 MiB.
    library.mallopt(_MMAP_THRESHOLD, 1024 * MIB) or library.mallopt(_MMAP_THRESHOLD, 32 * MIB)
    library.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    library.mallopt(_TOP_PAD, 64 * MIB)  # the size of a thread's heap, so that an empty one stays
    return Effect(True, "freed host memory is kept for the next step")


@dataclass(frozen=True, repr=False)
class KeepHostMemory(Transform):
    """Keep freed host memory in the job's process.

    Example:
        outcome = run(job, KeepHostMemory())
    """

    def attach(self, run: Run, model: Any) -> None:
        # After the choice of devices, before the first step.
        effect = keep_host_memory()
        run.note(effect.note, acted=effect.acted)
