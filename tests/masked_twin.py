"""A model that still has the channels which another has lost, and does not use them."""

import numpy as np

from tfopt.compress.remove_channels import choose
from tfopt.job.rebuild import rebuild


def masked_twin(model, fraction=0.5):
    """The kernels that take a removed channel have zeros for it.

    The channel itself is computed: a bias behind it would make it nonzero.
    """
    selection, _ = choose(model, fraction, "channels", "norm", None, None, None)
    weights = []
    for variable in model.weights:
        values = np.array(variable.numpy())
        for axis in range(values.ndim):
            cut = selection.analysis.cuts.get((id(variable), axis))
            if cut is not None and cut.role == "takes":
                values[(slice(None),) * axis + (~selection.mask(cut.labels),)] = 0
        weights.append(values)
    return rebuild(model, weights=weights)


def difference(one, other):
    """The largest difference of two models' outputs, relative to the largest output."""
    example = [values_for(tensor) for tensor in other.inputs]
    results = []
    for model in (one, other):
        outputs = model(example if len(example) > 1 else example[0], training=False)
        results.append(
            [np.asarray(each) for each in (outputs if isinstance(outputs, list) else [outputs])]
        )
    return max(
        np.abs(first - second).max() / np.abs(second).max()
        for first, second in zip(*results, strict=True)
    )


def values_for(tensor):
    """Random values in the shape of an input, with 32 for a size that is open."""
    generator = np.random.default_rng(0)
    shape = [size or 32 for size in tensor.shape]
    # 0 and 1 are indices of words.
    is_index = "int" in tensor.dtype
    values = generator.integers(0, 2, shape) if is_index else generator.normal(size=shape)
    return values.astype(tensor.dtype)
