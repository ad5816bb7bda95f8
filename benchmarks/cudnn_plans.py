"""Has cuDNN a kernel for every attention that tfopt fuses? Asked for cards that are not here.

    python -m benchmarks.cudnn_plans --python PYTHON

PYTHON has cuDNN (``cudnn_without_card.py``), which chooses an engine and compiles its kernel,
forward and backward. Nothing runs. It exits with 1 if cuDNN refuses what ``tfopt.train.attention``
takes, and lists what cuDNN would take beyond it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from benchmarks.figures import answer_of, save_figures
from tfopt.hooks import replaced
from tfopt.train import attention
from tfopt.train.fused_call import FusedCall

_FIELDS = ("deviceName", "deviceVer", "multiProcessorCount", "maxSharedMemoryPerBlockOptin")
_FIELDS += ("l2CacheSize", "maxThreadsPerSM", "maxCtasPerSM")
CARDS: list[dict[str, Any]] = [
    dict(zip(_FIELDS, card, strict=True))
    for card in (
        ("A100", 800, 108, 166912, 40 * 2**20, 2048, 32),
        ("L4", 890, 58, 101376, 48 * 2**20, 1536, 24),
        ("H100", 900, 132, 232448, 50 * 2**20, 2048, 32),
        ("B200", 1000, 148, 232448, 126 * 2**20, 2048, 32),
        ("RTX 5090", 1200, 170, 101376, 96 * 2**20, 1536, 24),
    )
]


def calls() -> Iterator[FusedCall]:
    """Yield attentions of every kind of mask, and of sizes at the edges of what is fused."""
    base = FusedCall(8, 12, 512, 512, 64, "bfloat16", 0.125)
    biases = None, (1, 1), (1, 12), (8, 1), (8, 12)
    for causal in (False, True):
        kind = replace(base, causal=causal)
        yield from (replace(kind, bias=bias) for bias in biases)
        yield from (replace(kind, has_lengths=True), replace(kind, dtype="float16"))
        odd = replace(kind, queries=77, keys=77)
        yield from (odd, replace(odd, has_lengths=True), replace(odd, bias=(8, 1)))
        yield from (replace(odd, bias=(1, 12)), replace(kind, keys=384))
    for size in (8, 20, 80, 128, 136, 256, 264):
        yield from (replace(base, head_size=size, bias=bias) for bias in (None, (1, 12), (8, 1)))
    for tokens in ((1, 1), (1, 512), (2, 2), (2048, 2048)):
        yield replace(base, queries=tokens[0], keys=tokens[1])
    yield replace(base, batch=1, heads=1)


def refused_by_tfopt(call: FusedCall, capability: tuple[int, int]) -> str | None:
    """Return why a card's attention is left to Keras, or None."""
    import tensorflow as tf

    query, key = (
        tf.TensorSpec((call.batch, tokens, call.heads, call.head_size), call.dtype)
        for tokens in (call.queries, call.keys)
    )
    bias = mask = None
    if call.bias is not None:
        given = tf.TensorSpec((*call.bias, call.queries, call.keys))
        bias, mask = (given, None) if call.bias == (1, call.heads) else (None, given)
    with replaced(attention, card_refusal=lambda: None, _capability=lambda: capability):
        return attention.refusal(query, key, key, bias, mask)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", required=True, help="a Python that has cuDNN's front end")
    options = parser.parse_args()
    kinds, rows, faults = list(calls()), {}, 0
    for card in CARDS:
        capability = divmod(card["deviceVer"] // 10, 10)
        given = json.dumps({"card": card, "calls": [asdict(kind) for kind in kinds]}).encode()
        answer = answer_of(options.python, "cudnn_without_card", given)
        ours = [refused_by_tfopt(kind, capability) for kind in kinds]
        both = [*zip(kinds, ours, answer["refused"], strict=True)]
        missing = [f"{kind}: {theirs}" for kind, own, theirs in both if own is None and theirs]
        beyond = Counter(own for _, own, theirs in both if own and theirs is None)
        fused = ours.count(None)
        rows[card["deviceName"]] = {"fused": fused, "missing": missing, "beyond": dict(beyond)}
        faults += len(missing)
        print(f"{card['deviceName']}: {fused} of {len(kinds)} kinds are fused", flush=True)
        for line in missing:
            print(f"  cuDNN refuses {line}")
        for why, number in beyond.items():
            print(f"  cuDNN would take {number}: {why}")
    save_figures("cudnn_plans", cudnn=answer["cudnn"], kinds=len(kinds), **rows)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
