"""Keep host memory that a step frees for the next one, instead of giving it back to the system.

glibc returns large freed blocks to the kernel. A training step on the CPU frees and takes again the
same megabytes of activations, and each time the kernel hands them out page by page and zeroes them.
glibc learns the sizes that come again and keeps most of them. TensorFlow 2.21 takes that from it:
once a process has made a dataset from a Python generator (``Dataset.from_generator``; ``fit`` on a
generator or a ``PyDataset``), every block above 128 KiB goes back at once, against a leak under
Python 3.11 (tensorflow/tensorflow#65675).
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from tfopt.errors import UserError, keep_plain, require_count
from tfopt.job.job import Job, Transform
from tfopt.job.parts import Effect, Facts

if TYPE_CHECKING:
    import keras

# Parameters of mallopt(3), as malloc.h numbers them; its values are C ints.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_LARGEST_INT = 2**31 - 1
_MIB = 1024**2
# A thread's heap is this long. Padded by as much, a heap that falls empty is kept.
_HEAP_MIB = 64
# glibc before 2.35 refuses a larger threshold.
_OLD_LIMIT_MIB = 32
_MOST_MIB = 2047


def keep_host_memory(largest_mib: int = 1024) -> Effect:
    """Let the allocator keep freed memory, in the whole process and until it ends.

    Call it after ``tfopt.place`` or whatever else chooses devices, since TensorFlow runs for it.
    Only glibc's own allocator is set; generator datasets made later change nothing of it.

    Args:
        largest_mib: Blocks up to this size are kept; larger ones, such as whole data sets, go
            back to the system when they are freed. In threads beside the main one, so do blocks
            above 64 MiB, the length of their heaps.

    Returns:
        What was done, in words; ``acted`` is False where another allocator is in charge.

    Example:
        print(tfopt.keep_host_memory().note)
    """
    _validate(largest_mib)
    library = ctypes.CDLL(None)
    other = _other_allocator(library)
    if other is not None:
        return Effect(False, f"the host's memory is left as it is: {other}")
    _let_tensorflow_set_its_own()
    kept_mib = _set_threshold(library, largest_mib)
    library.mallopt(_TRIM_THRESHOLD, _LARGEST_INT)
    library.mallopt(_TOP_PAD, _HEAP_MIB * _MIB)
    return Effect(
        True,
        f"freed host memory is kept, in blocks of up to {kept_mib} MiB "
        f"({min(kept_mib, _HEAP_MIB)} MiB in threads beside the main one)",
    )


@dataclass(frozen=True, repr=False)
class KeepHostMemory(Transform):
    """Keep freed host memory in the job's process, in blocks of up to ``largest_mib``."""

    largest_mib: int = 1024

    changes: ClassVar[frozenset[str]] = frozenset({"attachments"})
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        keep_plain(self)
        _validate(self.largest_mib)

    def edit(self, job: Job) -> Job:
        return replace(job, attachments=(*job.attachments, self.set_allocator))

    def set_allocator(self, model: keras.Model, facts: Facts) -> Effect:
        """Set the allocator once the devices are chosen, before the first step."""
        return keep_host_memory(self.largest_mib)


def _let_tensorflow_set_its_own() -> None:
    """Make a generator dataset: TensorFlow sets the threshold at the first one, and only then."""
    import tensorflow as tf

    with tf.device("CPU:0"):
        spec = tf.TensorSpec((), tf.int32)
        for _ in tf.data.Dataset.from_generator(lambda: iter([0]), output_signature=spec):
            pass


def _validate(largest_mib: object) -> None:
    if require_count("largest_mib", largest_mib) > _MOST_MIB:
        raise UserError(
            "largest_mib is more than the allocator takes.",
            expected=f"at most {_MOST_MIB}",
            received=str(largest_mib),
        )


def _other_allocator(library: Any) -> str | None:
    """Return why mallopt would change nothing here; None where glibc's allocator is in charge."""
    if not hasattr(library, "gnu_get_libc_version"):
        return "this system's C library is not glibc"
    # jemalloc, tcmalloc and mimalloc all come this way.
    preloaded = os.environ.get("LD_PRELOAD", "")
    return f"{preloaded} serves it" if "malloc" in preloaded else None


def _set_threshold(library: Any, largest_mib: int) -> int:
    """Set the size from which on blocks go back to the system; return what glibc accepted."""
    # One byte more, since a block of exactly the threshold goes back.
    if library.mallopt(_MMAP_THRESHOLD, min(largest_mib * _MIB + 1, _LARGEST_INT)):
        return largest_mib
    library.mallopt(_MMAP_THRESHOLD, _OLD_LIMIT_MIB * _MIB)
    return _OLD_LIMIT_MIB
