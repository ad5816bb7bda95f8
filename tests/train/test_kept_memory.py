"""Freed host memory is kept in glibc's heap, and other allocators are left alone."""

import os

import pytest

from tfopt import keep_host_memory

# Whether a block of one MiB, in a thread as TensorFlow's steps run in, is mapped by itself: it
# then goes back to the system when it is freed. glibc keeps that in a bit before the block.
MAPPED = """
import ctypes, threading
import numpy as np, tensorflow as tf
import tfopt

np.ones(2**22, "uint8")  # freed at once: from now on glibc itself keeps blocks of this size
if {keep}:
    tfopt.keep_host_memory()
if {generator}:
    spec = tf.TensorSpec((), tf.int32)
    list(tf.data.Dataset.from_generator(lambda: iter([1]), output_signature=spec))
list(tfopt.pipeline((np.arange(64),), batch_size=16, shuffle=True))

library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p

def look():
    block = library.malloc(ctypes.c_size_t(2**20))
    print(bool(ctypes.c_size_t.from_address(block - 8).value & 2))

thread = threading.Thread(target=look)
thread.start()
thread.join()
"""


@pytest.mark.parametrize(
    ("generator", "keep", "mapped"),
    [
        (True, True, False),
        pytest.param(True, False, True, marks=pytest.mark.slow),
        pytest.param(False, False, False, marks=pytest.mark.slow),
    ],
)
def test_a_generator_dataset_changes_the_allocator_unless_memory_is_kept(
    fresh_python, generator, keep, mapped
):
    """The second case is TensorFlow's defect; the last shows that our own pipelines avoid it."""
    printed = fresh_python(MAPPED.format(generator=generator, keep=keep), own_memory=True)
    assert printed.split() == [str(mapped)]


def test_it_says_what_it_did_and_leaves_another_allocator_alone(monkeypatch):
    effect = keep_host_memory()
    glibc = hasattr(os, "confstr") and "glibc" in (os.confstr("CS_GNU_LIBC_VERSION") or "")
    assert effect.acted is glibc
    assert ("is kept" in effect.note) is glibc
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libjemalloc.so.2")
    effect = keep_host_memory()
    assert not effect.acted
    assert "jemalloc" in effect.note
