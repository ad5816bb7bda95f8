"""A block: one fresh process that measures the steps of one variant until there are enough.

Guarantees: the phases of a start (loading TensorFlow, building, tracing and compiling, warming
up) are told apart and never counted as steps; a window ends when Keras has read the step's
results back from the device; whatever the job does in its own callbacks is measured with it,
validation and what follows the training are not run.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

from tfopt.bench.memory import peak_gpu_mib, peak_host_mib
from tfopt.errors import UserError
from tfopt.job import Effect, Job, Transform
from tfopt.runner import Prepared, prepared

# More epochs than any block lasts: the clock ends the training.
_EPOCHS = 1_000_000


@dataclass(frozen=True)
class Span:
    """How long a block measures: how many windows, of what length, after which warm-up."""

    windows: int = 30
    window_ms: float = 250.0
    warm_up_s: float = 1.0


QUICK = Span(windows=8, window_ms=100.0, warm_up_s=0.5)


@dataclass(frozen=True)
class Block:
    """What a block measured; times of windows are per step."""

    start_s: float
    """Until Python, the job's modules and TensorFlow are loaded."""
    build_s: float
    """Data, model and compile()."""
    first_step_s: float
    warm_up_s: float
    windows_ms: tuple[float, ...]
    between_epochs_ms: tuple[float, ...]
    batch_size: int | None
    peak_host_mib: float | None
    peak_gpu_mib: float | None
    unavailable: dict[str, str]
    data: str

    @property
    def step_ms(self) -> float:
        """The median window: what the machine's other users do hardly moves it."""
        return statistics.median(self.windows_ms)


def block_from_dict(content: dict[str, Any]) -> Block:
    """Reads what ``asdict`` made of a block."""
    listed = {name: tuple(content[name]) for name in ("windows_ms", "between_epochs_ms")}
    return Block(**{**content, **listed})


def block_to_dict(block: Block) -> dict[str, Any]:
    """The block as plain JSON values."""
    return asdict(block)


def measure_block(
    job: Job, span: Span, *, skip_if_idle: Transform | None = None
) -> tuple[Block | None, tuple[tuple[Transform, Effect], ...]]:
    """Trains the job under the clock until the span is measured; the model is thrown away.

    ``skip_if_idle`` is the transform that the variant adds: where it changed nothing on this
    machine, there is no block.
    """
    start_s = _load_tensorflow()
    begun = time.perf_counter()
    with prepared(job.with_(epochs=_EPOCHS)) as ready:
        build_s = time.perf_counter() - begun
        if skip_if_idle is not None and ready.is_idle(skip_if_idle):
            return None, ready.effects
        return _block(ready, span, start_s, build_s), ready.effects


def _load_tensorflow() -> float:
    """Seconds from this process's start until TensorFlow and Keras are there."""
    import keras
    import psutil
    import tensorflow as tf

    # Both load most of themselves when they are first touched.
    keras.Model, tf.Variable  # noqa: B018
    created: float = psutil.Process().create_time()
    return time.time() - created


def _block(ready: Prepared, span: Span, start_s: float, build_s: float) -> Block:
    from tfopt.bench.clock import WindowClock

    clock = WindowClock(
        ready.facts.steps_per_epoch,
        windows=span.windows,
        window_ms=span.window_ms,
        warm_up_s=span.warm_up_s,
    )
    ready.train(callbacks=[clock], validate=False)
    if len(clock.windows_ms) < span.windows or clock.first_step_s is None:
        raise UserError(
            "The training ended before enough of it was measured.",
            expected=f"{span.windows} windows of {span.window_ms:g} ms",
            received=f"{len(clock.windows_ms)} windows",
            fix="leave out callbacks that stop the training, such as EarlyStopping",
        )
    unavailable: dict[str, str] = {}
    return Block(
        start_s=round(start_s, 4),
        build_s=round(build_s, 4),
        first_step_s=round(clock.first_step_s, 4),
        warm_up_s=round(clock.warm_up_s, 4),
        windows_ms=tuple(round(window, 4) for window in clock.windows_ms),
        between_epochs_ms=tuple(round(gap, 4) for gap in clock.between_epochs_ms),
        batch_size=ready.facts.batch_size,
        peak_host_mib=peak_host_mib(unavailable),
        peak_gpu_mib=peak_gpu_mib(unavailable),
        unavailable=unavailable,
        data=ready.data.told,
    )
