"""Fused attention: Keras's numbers by the kernels' arithmetic, and Keras's own way elsewhere."""

import re
from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf
from attention_stand_in import on_a_stand_in

import tfopt
from tfopt import Data, FusedAttention, Job, MixedPrecision, UserError, chain, run
from tfopt.train import attention, fused_call
from tfopt.train.attention import FusedLayers, dot_product_attention

CUSTOM_CALL = fused_call.custom_call
L = keras.layers
RNG = np.random.default_rng(0)
HALF = ("float16", "bfloat16")


@pytest.fixture
def card():
    with on_a_stand_in():
        yield


def drawn(*shape, dtype="float32"):
    return tf.cast(tf.constant(RNG.normal(size=shape)), dtype)


def with_gradients(attend, inputs):
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        output = attend(*inputs)
        loss = tf.reduce_sum(tf.cast(output, tf.float32) ** 2)
    return [output, *tape.gradient(loss, inputs)]


MASK = np.arange(8)[None, None, None, :] < np.array([8, 5, 3])[:, None, None, None]
KINDS = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.7},
    "a mask for each example": {"mask": MASK},
    "a mask beside a causal one": {"mask": MASK, "is_causal": True},
    "lengths": {"lengths": np.array([8, 5, 3])},
    "lengths beside a causal mask": {"lengths": np.array([8, 5, 3]), "is_causal": True},
}


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("kind", KINDS)
def test_the_kernels_give_the_output_and_the_gradients_of_keras(card, kind, dtype):
    inputs = [drawn(3, 8, 2, 16, dtype=dtype) for _ in range(3)]
    settings = KINDS[kind]
    assert attention.refusal(*inputs, mask=settings.get("mask")) is None
    got = with_gradients(lambda *given: dot_product_attention(*given, **settings), inputs)
    in_float32 = [tf.cast(each, tf.float32) for each in inputs]
    assert "computes in float32" in attention.refusal(*in_float32)
    expected = with_gradients(lambda *given: dot_product_attention(*given, **settings), in_float32)
    for one, other in zip(got, expected, strict=True):
        error = tf.norm(tf.cast(one, tf.float32) - other) / tf.norm(other)
        assert error < {"float16": 2e-3, "bfloat16": 1.5e-2}[dtype]


def test_a_trained_bias_gets_its_gradient(card):
    inputs = [drawn(3, 8, 2, 16, dtype="float16") for _ in range(3)]
    inputs.append(drawn(1, 2, 8, 8, dtype="float16"))
    got = with_gradients(dot_product_attention, inputs)
    expected = with_gradients(dot_product_attention, [tf.cast(each, "float32") for each in inputs])
    for one, other in zip(got, expected, strict=True):
        assert tf.norm(tf.cast(one, tf.float32) - other) / tf.norm(other) < 2e-3


@pytest.mark.parametrize(
    ("target", "mask_type", "settings"),
    [
        ("Softmax", "CAUSAL", {"is_causal": True}),
        ("Softmax", "PADDING", {"lengths": np.array([8, 5, 3])}),
        ("ScaleBiasSoftmax", "NO_MASK", {"mask": MASK}),
        ("ScaleBiasSoftmax", "NO_MASK", {"bias": np.ones((1, 2, 8, 8))}),
    ],
)
def test_a_traced_step_calls_a_kernel_forward_and_one_backward(
    card, monkeypatch, target, mask_type, settings
):
    monkeypatch.setattr(fused_call, "custom_call", CUSTOM_CALL)
    step = tf.function(
        lambda *inputs: with_gradients(
            lambda *given: dot_product_attention(*given, **settings), [*inputs]
        )
    )
    traced = step.get_concrete_function(*[tf.TensorSpec((3, 8, 2, 16), tf.bfloat16)] * 3)
    nodes = [
        node for each in traced.graph.as_graph_def().library.function for node in each.node_def
    ]
    programs = [node.attr["module"].s.decode() for node in nodes if node.op == "XlaCallModule"]
    targets = sorted(re.search(r'custom_call @"(.*?)"', program)[1] for program in programs)
    assert targets == [f"__cudnn$fmha{target}", f"__cudnn$fmha{target}Backward"]
    assert all(rf"\22{mask_type}\22" in program for program in programs)


def test_xla_gets_results_that_lie_in_memory_as_layers_hold_them(card, monkeypatch):
    monkeypatch.setattr(fused_call, "custom_call", CUSTOM_CALL)
    inputs = [tf.zeros((3, 8, 2, 16), tf.bfloat16)] * 3
    step = tf.function(
        lambda *given: with_gradients(dot_product_attention, [*given]), jit_compile=True
    )
    program = step.experimental_get_compiler_ir(*inputs)(stage="hlo")
    calls = re.findall(r"= \((.*?), u8\[0\].*? custom-call\((.*?)\)", program)
    assert len(calls) == 2
    for results, operands in calls:
        assert not re.findall(r"bf16\[3,2,8,16\]\{3,2,1,0\}", results)
        assert re.findall(r"bf16\[3,2,8,16\]\{3,1,2,0\}", results)
        assert not re.findall(r"bf16\[3,2,8,16\]", operands)


@pytest.mark.parametrize("fuse", [None, {}])
def test_a_fused_layer_projects_the_tokens_of_all_examples_by_one_product(card, fuse):
    model, _ = trained(NETS["grouped"], fuse, jit_compile=False)
    step = tf.function(lambda x, y: model.train_step((x, y)))
    graph = step.get_concrete_function(
        tf.TensorSpec((16, 8), "int32"), tf.TensorSpec((16,), "int32")
    ).graph
    products = [node for node in graph.get_operations() if node.type.startswith("BatchMatMul")]
    by_example = [
        node
        for node in products
        if node.outputs[0].shape.rank == 3 and node.outputs[0].shape[0] == 16
    ]
    assert bool(by_example) == (fuse is None)


@pytest.mark.parametrize(
    ("shape", "dtype", "reason"),
    [
        ((3, 8, 2, 20), "float16", "heads of 20, and multiples of 8 up to 128"),
        ((3, 8, 2, 256), "float16", "heads of 256"),
        ((3, 8, 2, 16), "float32", "float32"),
        ((None, 8, 2, 16), "float16", "not known when the step is traced"),
        ((3, 4, 4, 2, 16), "float16", "one axis of tokens"),
        ((3, 1, 2, 16), "float16", "there is one token"),
    ],
)
def test_what_the_kernels_do_not_serve_is_named(card, shape, dtype, reason):
    given = tf.TensorSpec(shape, dtype)
    assert reason in attention.refusal(given, given, given)


@pytest.mark.parametrize(("capability", "most"), [((8, 9), 128), ((9, 0), 256), ((12, 0), 128)])
def test_heads_of_256_have_a_gradient_on_hopper_alone(monkeypatch, capability, most):
    monkeypatch.setattr(attention, "_capability", lambda: capability)
    assert attention.head_refusal(most) is None
    assert f"up to {most} are supported" in attention.head_refusal(most + 8)


def test_a_mask_needs_even_lengths(card):
    given = tf.TensorSpec((3, 7, 2, 16), tf.float16)
    assert attention.refusal(given, given, given) is None
    assert "7 by 7 tokens" in attention.refusal(given, given, given, mask=np.ones((1, 1, 7, 7)))


def transformer(attend):
    """Return a small Transformer of which ``attend`` makes the attention of a block."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((8,), dtype="int32")
    tokens = keras.ops.not_equal(inputs, 0)
    x = L.Embedding(30, 16)(inputs)
    for number in range(2):
        x = L.LayerNormalization()(x + attend(f"attention_{number}", x, tokens))
    x = L.GlobalAveragePooling1D()(x, mask=tokens)
    return keras.Model(inputs, L.Dense(3, "softmax", dtype="float32")(x))


def padded(name, x, tokens, **named):
    # Given by hand, since a residual connection loses the mask of an embedding.
    return L.MultiHeadAttention(2, 8, name=name)(
        x, x, query_mask=tokens, value_mask=tokens, **named
    )


def grouped(name, x, tokens):
    return L.GroupQueryAttention(8, 4, 2, name=name)(x, x, use_causal_mask=True)


LENGTHS = RNG.integers(3, 9, 48)
TOKENS = np.where(np.arange(8) < LENGTHS[:, None], RNG.integers(1, 30, (48, 8)), 0)
LABELS = TOKENS[:, 0] % 3


def trained(build, fuse=None, **settings):
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = build()
    finally:
        keras.config.set_dtype_policy(policy)
    model.compile(keras.optimizers.SGD(0.02), "sparse_categorical_crossentropy", **settings)
    if fuse is not None:
        assert tfopt.fused_attention(model, **fuse) is model
    losses = model.fit(TOKENS, LABELS, batch_size=16, epochs=2, shuffle=False, verbose=0)
    return model, losses.history["loss"]


NETS = {
    "padded": partial(transformer, padded),
    "padded and causal": partial(transformer, partial(padded, use_causal_mask=True)),
    "grouped": partial(transformer, grouped),
}


@pytest.mark.parametrize(
    ("net", "padding", "jit_compile"),
    [
        ("padded", None, False),
        pytest.param("padded", "right", True, marks=pytest.mark.slow),
        ("padded and causal", None, False),
        ("padded and causal", "right", False),
        ("grouped", None, False),
    ],
)
def test_models_train_as_with_the_attention_of_keras(card, net, padding, jit_compile):
    _, expected = trained(NETS[net], jit_compile=jit_compile)
    model, losses = trained(NETS[net], {"padding": padding}, jit_compile=jit_compile)
    assert FusedLayers.of(model).summary() == (True, "attention fused in 2 layers")
    np.testing.assert_allclose(losses, expected, rtol=2e-3)


def test_an_attention_that_is_not_served_is_computed_as_keras_does(card):
    layer = L.MultiHeadAttention(2, 8, name="asked", dtype="mixed_bfloat16")
    inputs = keras.Input((8, 16), batch_size=4)
    model = keras.Model(inputs, layer(inputs, inputs))
    fused = FusedLayers.of(tfopt.fused_attention(model))
    x = drawn(4, 8, 16)
    output, scores = layer(x, x, return_attention_scores=True, training=True)
    assert scores.shape == (4, 2, 8, 8)
    assert fused.summary() == (False, "asked as Keras computes it: its scores are returned")
    np.testing.assert_allclose(
        tf.cast(layer(x, x, training=True), tf.float32), tf.cast(output, tf.float32), atol=0.02
    )
    assert fused.summary() == (True, "attention fused in 1 layer")


def test_a_refusal_leaves_the_attention_that_was_fused_before(card, monkeypatch):
    layer, inputs = L.MultiHeadAttention(2, 8, dtype="mixed_bfloat16"), keras.Input((8, 16), 4)
    model = keras.Model(inputs, layer(inputs, inputs))
    tfopt.fused_attention(model)
    fused = FusedLayers.of(tfopt.fused_attention(model, padding="right"))
    with monkeypatch.context() as patch:
        patch.setattr(attention, "card_refusal", lambda: "it is not computed on a GPU")
        with pytest.raises(UserError, match=r"can be fused: it is not computed on a GPU\."):
            tfopt.fused_attention(model)
    layer(drawn(4, 8, 16), drawn(4, 8, 16), training=True)
    assert FusedLayers.of(model) is fused
    assert fused.summary() == (True, "attention fused in 1 layer")


def test_a_chain_fuses_attention_and_takes_it_off_again(card):
    job = Job(
        build=NETS["padded"],
        data=lambda: Data(train=(TOKENS, LABELS), test=(TOKENS[:10], LABELS[:10])),
        compile=lambda: {"optimizer": "sgd", "loss": "sparse_categorical_crossentropy"},
        batch_size=16,
    )
    outcome = run(job, chain(FusedAttention(padding="right"), MixedPrecision("mixed_bfloat16")))
    (_, effect), _ = outcome.effects
    assert effect.acted
    assert effect.note == "attention fused in 2 layers"
    assert FusedLayers.of(outcome.model) is None
    assert not any("_compute_attention" in vars(layer) for layer in outcome.model.layers)
    (_, effect), *_ = run(job, FusedAttention()).effects
    assert not effect.acted
    assert "attention_0: it computes in float32" in effect.note


def test_a_smaller_last_batch_is_named_and_dropped_by_a_pipeline_of_the_chain(card):
    job = Job(
        build=NETS["padded"],
        data=lambda: Data(train=(TOKENS[:40], LABELS[:40])),
        compile=lambda: {"optimizer": "sgd", "loss": "sparse_categorical_crossentropy"},
        batch_size=16,
    )
    fused, half = FusedAttention(), MixedPrecision("mixed_bfloat16")
    (_, effect), _ = run(job, chain(fused, half)).effects
    assert not effect.acted
    assert "not known when the step is traced" in effect.note
    for parts in ((tfopt.Pipeline(), fused, half), (fused, half, tfopt.Pipeline())):
        notes = {each: effect.note for each, effect in run(job, chain(*parts)).effects}
        assert notes[fused] == "attention fused in 2 layers"
        assert notes[tfopt.Pipeline()].endswith("whole batches only")


def test_masks_of_two_axes_are_taken(card):
    layer = L.MultiHeadAttention(2, 8, dtype="mixed_float16")
    x, mask = drawn(3, 8, 16), np.tril(np.ones((8, 8), bool))
    layer.build(x.shape, x.shape)
    plain = layer(x, x, attention_mask=mask, training=True)
    inputs = keras.Input((8, 16), batch_size=3)
    fused = FusedLayers.of(tfopt.fused_attention(keras.Model(inputs, layer(inputs, inputs))))
    assert fused.summary()[1].endswith("it was not called in training")
    found = layer(x, x, attention_mask=mask, training=True)
    assert fused.summary() == (True, "attention fused in 1 layer")
    np.testing.assert_allclose(
        tf.cast(found, "float32"), tf.cast(plain, "float32"), rtol=0.02, atol=0.02
    )


class WithoutTraining(keras.Model):
    def __init__(self):
        super().__init__()
        self.attention = L.MultiHeadAttention(2, 8, dtype="mixed_float16")
        self.head = L.Dense(1, dtype="float32")

    def call(self, inputs):
        return self.head(self.attention(inputs, inputs))


def test_a_model_whose_call_takes_no_training_is_fused_too(card):
    x, model = np.ones((6, 8, 16), "float32"), WithoutTraining()
    model(x)
    model.compile("sgd", "mse", jit_compile=False)
    fused = FusedLayers.of(tfopt.fused_attention(model))
    model.fit(x[:4], x[:4, :, :1], batch_size=4, verbose=0)
    model.predict(x, batch_size=4, verbose=0)  # whose last batch is smaller
    assert fused.summary() == (True, "attention fused in 1 layer")


class OwnAttention(L.MultiHeadAttention):
    def _compute_attention(self, query, key, value, *given, **named):
        return super()._compute_attention(query, key, value, *given, **named)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (L.Identity(), "no attention layer"),
        (L.MultiHeadAttention(2, 20, dtype="mixed_float16"), "heads of 20"),
        (L.MultiHeadAttention(2, 8), "computes in float32"),
        (L.MultiHeadAttention(2, 8, dropout=0.1, dtype="mixed_float16"), "dropout on its scores"),
        (OwnAttention(2, 8, dtype="mixed_float16"), "OwnAttention overrides _compute_attention"),
    ],
)
def test_a_model_of_which_nothing_can_be_fused_is_refused_and_left(card, layer, reason):
    inputs = keras.Input((8, 16))
    attends = isinstance(layer, L.MultiHeadAttention)
    model = keras.Model(inputs, layer(inputs, inputs) if attends else layer(inputs))
    before = dict(vars(model)), dict(vars(layer))
    with pytest.raises(UserError, match=reason):
        tfopt.fused_attention(model)
    assert (dict(vars(model)), dict(vars(layer))) == before
    assert attention.serves(model) == (reason == "computes in float32")


def test_without_a_gpu_the_reasons_of_the_layers_are_told_first():
    inputs = x = keras.Input((8, 16))
    settings = ({}, {"dropout": 0.1, "dtype": "mixed_float16"}, {"dtype": "mixed_float16"})
    for place, setting in enumerate(settings):
        x = L.MultiHeadAttention(2, 8, name=f"layer_{place}", **setting)(x, x)
    with pytest.raises(UserError) as refused:
        tfopt.fused_attention(keras.Model(inputs, x, name="text"))
    assert refused.value.what == (
        "No attention of 'text' can be fused: layer_0: it computes in float32; layer_1: it has "
        "dropout on its scores (0.1); it is not computed on a GPU."
    )
    given = tf.TensorSpec((3, 8, 2, 16), "float32")
    assert attention.refusal(given, given, given) == "it computes in float32"


def test_without_a_gpu_that_serves_it_is_refused(monkeypatch):
    inputs = keras.Input((8, 16))
    layer = L.MultiHeadAttention(2, 8, dtype="mixed_float16")
    model = keras.Model(inputs, layer(inputs, inputs))
    with pytest.raises(UserError, match=r"left|right"):
        tfopt.fused_attention(model, padding="left")
    with pytest.raises(UserError, match=r"can be fused: it is not computed on a GPU\."):
        tfopt.fused_attention(model)
    assert not attention.serves(model)
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind=None: ["GPU:0"])
    details = {"compute_capability": (7, 5)}
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: details)
    with pytest.raises(UserError, match=r"compute capability 7\.5, and 8.0 is needed"):
        tfopt.fused_attention(model)
