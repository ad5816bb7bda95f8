"""The nets of ``nets.py`` in PyTorch, trained as PyTorch's users make them fast.

``torch.compile``, autocast to bfloat16, ``channels_last`` for images, fused Adam; a ResNet strides
in its first convolution and has biases, as Keras's does, so that all sides compute the same.
"""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks import nets
from benchmarks.peer_process import BATCHES, turns

_EPSILON = 1e-3  # of LayerNormalization


def convolution(inputs: int, filters: int, size: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution that is normalized by the batch."""
    layer = nn.Conv2d(inputs, filters, size, stride, padding=size // 2)
    return nn.Sequential(layer, nn.BatchNorm2d(filters, eps=1.001e-5, momentum=0.01))


class Residual(nn.Module):
    """A block of ResNet-50; the first one of a stage has a convolution in its shortcut."""

    def __init__(self, inputs: int, filters: int, stride: int) -> None:
        super().__init__()
        reduced = convolution(inputs, filters, 1, stride), nn.ReLU()
        body = convolution(filters, filters, 3), nn.ReLU(), convolution(filters, 4 * filters, 1)
        self.body = nn.Sequential(*reduced, *body)
        first = inputs != 4 * filters
        self.shortcut = convolution(inputs, 4 * filters, 1, stride) if first else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.shortcut(x))


def resnet50() -> nn.Module:
    """Return ResNet-50 without its softmax."""
    layers: list[nn.Module] = [convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for filters, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            stride = 2 if block == 0 and filters > 64 else 1
            layers.append(Residual(inputs, filters, stride))
            inputs = 4 * filters
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


class Block(nn.Module):
    """A block of a Transformer, normalized in front of its two parts or behind them."""

    def __init__(self, width: int, heads: int, *, in_front: bool) -> None:
        super().__init__()
        self.heads, self.in_front = heads, in_front
        self.projections, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width, _EPSILON) for _ in range(2))
        wide = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        self.dense = nn.Sequential(*wide)

    def attend(self, x: Tensor) -> Tensor:
        parts = self.projections(x).chunk(3, -1)
        query, key, value = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in parts)
        attended = functional.scaled_dot_product_attention(query, key, value)
        return self.output(attended.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        for norm, part in zip(self.norms, (self.attend, self.dense), strict=True):
            x = x + part(norm(x)) if self.in_front else norm(x + part(x))
        return x


class Encoder(nn.Module):
    """BERT's encoder on tokens, or a vision Transformer on images, without its softmax."""

    def __init__(
        self, blocks: int, width: int, heads: int, vocabulary: int = 0, pixels: int = 0, **_: int
    ) -> None:
        super().__init__()
        self.pixels = pixels
        if pixels:
            self.first: nn.Module = nn.Conv2d(3, width, nets.PATCH, nets.PATCH)
            where = torch.from_numpy(nets.positions((pixels // nets.PATCH) ** 2, width))
            self.register_buffer("positions", where)
            self.last: nn.Module = nn.LayerNorm(width, _EPSILON)
        else:
            self.first, self.last = nn.Embedding(vocabulary, width), nn.Identity()
        made = (Block(width, heads, in_front=bool(pixels)) for _ in range(blocks))
        self.blocks, self.classes = nn.Sequential(*made), nn.Linear(width, 1000 if pixels else 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.pixels:
            x = x.flatten(2).transpose(1, 2) + self.positions
        return self.classes(self.last(self.blocks(x)).mean(1))


def train(
    pipe: Connection, net: str, sizes: dict[str, Any], batch_size: int, on: str, **_: Any
) -> None:
    """Train a net until the parent ends this process."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if on == "gpu" and device == "cpu":
        pipe.send(("refused", "PyTorch sees no GPU"))
        return
    begun = time.perf_counter()
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = torch.backends.cudnn.allow_tf32 = True
    on_gpu, is_bert = device == "cuda", net == "bert"
    model = (resnet50() if net == "resnet50" else Encoder(**sizes)).to(device)
    model = model if is_bert else model.to(memory_format=torch.channels_last)
    optimizer: torch.optim.Optimizer
    if nets.OPTIMIZERS[net] == "adam":  # with Keras's defaults
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-7, fused=on_gpu)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    what = f"PyTorch {torch.__version__}, torch.compile"
    what += ", float32" if on == "cpu" else ", autocast to bfloat16"
    what += "" if is_bert else ", channels_last"
    parameters = sum(each.numel() for each in model.parameters())

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        if not is_bert:
            x = x.permute(0, 3, 1, 2).float() / 127.5 - 1  # channels stay last in memory
        with torch.autocast(device, torch.bfloat16, enabled=on != "cpu"):
            return functional.cross_entropy(model(x).float(), y)

    x, y = (torch.from_numpy(each) for each in nets.examples(net, sizes, BATCHES * batch_size))
    if on_gpu:
        x, y = x.pin_memory(), y.pin_memory()
    clock = turns(
        pipe,
        {"what": what, "parameters": parameters},
        time.perf_counter() - begun,
        lambda loss: torch.cuda.synchronize() if on_gpu else None,
        lambda: torch.cuda.max_memory_allocated() / 2**20 if on_gpu else None,
    )
    # It would compile for minutes.
    compiled = torch.compile(loss_of, backend="eager" if on == "rehearsal" else "inductor")
    next(clock)
    while True:
        for batch in zip(x.split(batch_size), y.split(batch_size), strict=True):
            optimizer.zero_grad(set_to_none=True)
            loss = compiled(*(each.to(device, non_blocking=True) for each in batch))
            loss.backward()
            optimizer.step()
            clock.send(loss)
