"""What errors say about memory: messages of GPUs from public reports, those of the CPU as they come."""

import errno

import numpy as np
import pytest
import tensorflow as tf

from tfopt.train.out_of_memory import FailedAllocation, is_lack_of_memory, read

# Azure/MachineLearningNotebooks#880
BFC = """2 root error(s) found.
  (0) Resource exhausted: OOM when allocating tensor with shape[16,112,112,147] and type float on /job:localhost/replica:0/task:0/device:GPU:1 by allocator GPU_1_bfc
\t [[{{node resnet_v1_50/conv1/ExtractImagePatches}}]]
Hint: If you want to see a list of allocated tensors when OOM happens, add report_tensor_allocations_upon_oom"""
# tensorflow/tensorflow#4735
WITHOUT_A_TYPE = "OOM when allocating tensor with shape[256,112,112,64]"
# NVIDIA/DeepLearningExamples#405
XLA = """(0) Resource exhausted: Out of memory while trying to allocate 68852648264 bytes.
         [[{{node cluster_0_1/xla_run}}]]"""
# As TensorFlow 2.21 writes it.
XLA_NOW = """Graph execution error:

Detected at node StatefulPartitionedCall defined at (most recent call last):
Out of memory while trying to allocate 32.50TiB.
\t [[{{node StatefulPartitionedCall}}]]
 [Op:__inference_multi_step_on_iterator_978]"""
# EscVM/RAMS#13
COPY = (
    "Failed copying input tensor from /job:localhost/replica:0/task:0/device:CPU:0 to /job:localhost"
    "/replica:0/task:0/device:GPU:0 in order to run _EagerConst: Dst tensor is not initialized."
)
# tensorflow/tensorflow#60713
CUDNN = """No algorithm worked!  Error messages:
  Profiling failure on CUDNN engine eng11{}: UNKNOWN: CUDNN_STATUS_ALLOC_FAILED"""
# tensorflow/tensorflow#60783
SCRATCH = """Graph execution error:

Detected at node 'gradient_tape/model/conv3d_20/Conv3D/Conv3DBackpropFilterV2' defined at (most recent call last):
CUDNN failed to allocate the scratch space for the runner or to find a working no-scratch runner."""
# tensorflow/tensorflow#7272
CUDA = "failed call to cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY; total memory: 18"
# junxnone/tio#189
STATUS = "CUDA runtime implicit initialization on GPU:0 failed. Status: out of memory"
EAGER = "failed to allocate memory [Op:Mul]"


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (
            "ResourceExhausted",
            BFC,
            {"operation": "resnet_v1_50/conv1/ExtractImagePatches", "device": "GPU:1"},
        ),
        ("ResourceExhausted", WITHOUT_A_TYPE, {}),
        ("ResourceExhausted", XLA, {"operation": "cluster_0_1/xla_run"}),
        ("ResourceExhausted", XLA_NOW, {}),
        ("Internal", COPY, {"device": "GPU:0"}),
        ("NotFound", CUDNN, {}),
        (
            "Unknown",
            SCRATCH,
            {"operation": "gradient_tape/model/conv3d_20/Conv3D/Conv3DBackpropFilterV2"},
        ),
        ("Internal", CUDA, {}),
        ("Internal", STATUS, {"device": "GPU:0"}),
        ("ResourceExhausted", EAGER, {"operation": "Mul"}),
    ],
)
def test_what_devices_report_is_read(kind, text, expected):
    asked = read(getattr(tf.errors, f"{kind}Error")(None, None, text))
    assert asked == FailedAllocation(**{"line": asked.line, **expected})
    assert asked.line in text
    assert is_lack_of_memory(text)


def test_what_the_host_says_is_read():
    with pytest.raises(MemoryError) as array:
        np.zeros((1 << 24, 1 << 24))
    asked = read(array.value)
    assert (asked.line, asked.device) == (str(array.value), "CPU:0")
    assert read(MemoryError()).line == "MemoryError"
    assert read(OSError(errno.ENOMEM, "Cannot allocate memory")).device == "CPU:0"


@pytest.mark.parametrize(
    "error",
    [
        ValueError("OOM when allocating tensor with shape[2,2] and type float"),
        OSError(errno.ENOSPC, "No space left on device"),
        tf.errors.ResourceExhaustedError(None, None, "/data/x.tfrecord; Too many open files"),
        tf.errors.ResourceExhaustedError(None, None, "Received message larger than max (9 vs. 4)"),
        tf.errors.InternalError(None, None, "cudaGetDevice() failed. Status: invalid device"),
        tf.errors.NotFoundError(None, None, "No algorithm worked! CUDNN_STATUS_INTERNAL_ERROR"),
    ],
)
def test_anything_else_is_no_lack_of_memory(error):
    assert read(error) is None
