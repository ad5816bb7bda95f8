"""What a broken stack answers in the process that the doctor starts; without TensorFlow, so at once."""

import os
import sys


def compute(asked):
    """Abort in the convolution, fail in attention, and be right elsewhere."""
    yield "importing TensorFlow"
    for what in asked["trials"]:
        yield what
        if what == "convolution with bias":
            print("no engine", file=sys.stderr, flush=True)
            os.abort()
        if what == "fused attention":
            yield {"what": what, "failed": "no kernel image"}
        else:
            yield {"what": what, "error": 0.0, "seconds": 0.0}


def no_import(asked):
    """Abort as a CPU without AVX does."""
    yield "importing TensorFlow"
    os.abort()
