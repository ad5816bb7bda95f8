"""What XLA makes of a training step on an H100: its kernels and their traffic, without the card.

    python -m benchmarks.gpu_program --blocks 3 --python PYTHON

PYTHON has ``jax[cuda12]``, whose XLA compiles what TensorFlow here has traced
(``gpu_compiler.py``). The figures are counts and XLA's own estimates; none is a time.
"""

from __future__ import annotations

import argparse

import tfopt
from benchmarks import nets
from benchmarks.figures import answer_of, save_figures
from benchmarks.peers import net_of
from tfopt.hooks import replaced
from tfopt.train import attention


def traced_step(blocks: int, fused: bool) -> bytes:
    """Return the program of a training step of BERT-base's size, before XLA optimizes it."""
    import keras
    import tensorflow as tf

    net = net_of("bert", blocks=blocks)
    keras.backend.clear_session()
    model = tfopt.mixed_precision(nets.build(net.net, net.sizes), "mixed_bfloat16")
    model.compile(nets.OPTIMIZERS[net.net], "sparse_categorical_crossentropy")
    model.optimizer.build(model.trainable_variables)
    if fused:
        tfopt.fused_attention(model)
    tokens = tf.zeros((net.batch_size, net.sizes["tokens"]), tf.int32)
    labels = tf.zeros((net.batch_size,), tf.int64)
    step = tf.function(lambda *batch: model.train_step(batch), jit_compile=True)
    program: bytes = step.experimental_get_compiler_ir(tokens, labels)(stage="hlo_serialized")
    return program


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--blocks", type=int, default=3, help="of BERT-base, which has 12")
    parser.add_argument("--python", required=True, help="a Python that has jax[cuda12]")
    options = parser.parse_args()
    found = {}
    for name, fused in (("attention of Keras", False), ("fused attention", True)):
        with replaced(attention, card_refusal=lambda: None, _capability=lambda: (9, 0)):
            program = traced_step(options.blocks, fused)  # as where the card is
        row = found[name] = answer_of(options.python, "gpu_compiler", program)
        kernels = sum(row["kernels"].values())
        print(f"{name}: {kernels} kernels, {row['gigabytes']:.1f} GB, {row['memory_mib']} MiB")
        print(f"    {row['kernels']}")
    save_figures("gpu_program", blocks=options.blocks, card="H100, not present", **found)


if __name__ == "__main__":
    main()
