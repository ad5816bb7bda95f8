"""Which kinds of attention cuDNN is asked for; cuDNN itself needs a Python that has it."""

import pytest

from benchmarks import cudnn_plans
from benchmarks.cudnn_plans import refused_by_tfopt


@pytest.mark.parametrize(("capability", "most"), [((8, 0), 128), ((9, 0), 256)])
def test_what_tfopt_fuses_and_what_it_refuses_is_asked_for(capability, most):
    kinds = list(cudnn_plans.calls())
    refused = {kind: refused_by_tfopt(kind, capability) for kind in kinds}
    fused = [kind for kind, reason in refused.items() if reason is None]
    assert max(kind.head_size for kind in fused) == most
    assert {kind.mask_type for kind in fused} == {"NO_MASK", "CAUSAL", "PADDING", "PADDING_CAUSAL"}
    assert {kind.bias for kind in fused} == {None, (1, 1), (1, 12), (8, 1), (8, 12)}
    for reason in ("one token", "must be even", "multiples of 8"):
        assert any(reason in (each or "") for each in refused.values())
