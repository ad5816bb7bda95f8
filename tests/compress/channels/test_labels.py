"""Labels and flows: what is united stays so, what is pinned too."""

import numpy as np

from tfopt.compress.channels.each_channel import acts_on_each_channel
from tfopt.compress.channels.labels import NONE, Flow, Labels


def test_united_labels_have_one_root_however_they_came_together():
    labels = Labels()
    a, b, c = (labels.new(4) for _ in range(3))
    labels.unite(a, b, "")
    labels.unite(c, a[::-1], "")
    roots = labels.roots(np.stack([a, b, c[::-1]]))
    assert (roots == roots[0]).all()
    assert len(set(roots[0])) == 4


def test_a_pin_reaches_what_was_united_before_and_after():
    labels = Labels()
    a, b, c = (labels.new(3) for _ in range(3))
    labels.unite(a, b, "")
    labels.pin(b[:1], "first")
    labels.pin(b[:1], "second")
    labels.unite(c, a, "")
    for each in (a, b, c):
        assert [labels.reason(root) for root in labels.roots(each)] == ["first", None, None]


def test_beside_what_has_no_label_a_channel_stays():
    labels = Labels()
    a = labels.new(3)
    labels.unite(a, np.array([NONE, a[1], NONE]), "beside an input")
    reason = "beside an input"
    assert [labels.reason(root) for root in labels.roots(a)] == [reason, None, reason]


def test_a_lone_channel_has_no_label():
    labels = Labels()
    assert list(labels.new(1)) == [NONE]
    assert len(labels) == 0


def test_a_flow_is_as_small_as_its_labels_allow():
    flow = Flow.of((None, 8, 8, 4), np.broadcast_to(np.arange(4), (1, 8, 8, 4)))
    assert flow.labels.shape == (1, 1, 1, 4)
    assert flow.varying == (3,)
    assert flow.spread().shape == (1, 8, 8, 4)


def test_acting_on_each_channel_is_found_by_trying():
    import keras

    ops = keras.ops
    alone = (ops.relu, keras.activations.gelu, keras.activations.linear, lambda x: x / 3)
    mixing = (
        keras.activations.softmax,
        keras.activations.glu,
        lambda x: x - ops.mean(x, axis=-1, keepdims=True),
        lambda x: x + ops.cast(ops.any(x != 0, axis=-1, keepdims=True), x.dtype),
        lambda x: ops.flip(x, axis=-1),
        lambda x: x * ops.ones((16,)),
    )
    assert all(map(acts_on_each_channel, alone))
    assert not any(map(acts_on_each_channel, mixing))
