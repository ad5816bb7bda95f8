"""tfopt: makes a Keras 3 training faster and its model smaller, and measures each step.

Faster training: place, mixed_precision, distribute, pipeline, execution, compile_cache,
fused_attention, remat, accumulate, split, scaled_learning_rate, keep_host_memory. Smaller models:
prune, cluster, quantize_aware, quantize, remove_channels; footprint measures the gain, strip
leaves a plain model. Serving: export, optimize, load. Training that survives: resume,
train_asynchronously.
Each is also a transform (``Prune``, ``QuantizeAware`` …), a link of a measured chain:
``tfopt.run(job, tfopt.chain(tfopt.Prune(0.8)))``. ``help(tfopt.prune)`` explains one.

Importing this package loads neither TensorFlow nor NVML: names are loaded on first use, from the
places that ``__init__.pyi`` lists. Where Keras is loaded already, it learns to read files of models
that hold masks, clusters or ranges.
"""

from __future__ import annotations

import sys
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import lazy_loader

__version__ = "0.2.0"

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name in __all__:
        from tfopt.job.versions import require_supported

        require_supported()
        return _load(name)
    close = get_close_matches(name, __all__, n=1)
    hint = f". Did you mean {close[0]!r}?" if close else ""
    raise AttributeError(f"module 'tfopt' has no attribute {name!r}{hint}")


if "keras" in sys.modules and "tensorflow" in sys.modules:
    import_module("tfopt.compress.saved")
