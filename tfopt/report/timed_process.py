"""Hold what one process, which took turns with others, measured of one variant."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tfopt.report.strict import AboveZero, Count, FromZero, require_reasons


@dataclass(frozen=True)
class GpuState:
    """One GPU while the process had its turns; None where the driver does not say.

    Attributes:
        utilisation_percent: The mean; so is ``power_w``.
        sm_clock_mhz: The median; so is ``memory_clock_mhz``.
        temperature_c: The highest.
        energy_j: Over all turns.
        throttle_reasons: Why the driver held the clocks down, in words; idleness and a limit that
            somebody set on purpose are listed too.
        throttled: Whether one of the reasons is heat, power or hardware.
        notes: What the driver did not say, with its words, and where ``energy_j`` is power
            integrated over the samples instead of a counter's.
    """

    uuid: str
    name: str
    utilisation_percent: float | None
    sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    temperature_c: float | None
    power_w: float | None
    energy_j: float | None
    throttle_reasons: tuple[str, ...]
    throttled: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TimedProcess:
    """One process of a variant: its turns, its phases in seconds, its peaks in MiB.

    Attributes:
        build_s: Data, model and ``compile()``.
        first_step_s: The first execution, of ``first_steps`` steps, which traces and compiles.
        fill_s: How much longer the epoch takes that fills a cache; 0 without one.
        new_programs: How many programs the compile cache had more after the first execution, by
            this process or by others that started beside it; 0: all were in the cache before.
        rounds: The number of the round of each turn, ascending; turns of one round are compared.
        turns_ms: Mean time of a step in each turn.
        steps: How many steps were counted in each turn.
        batch_size: Examples in a full batch, over all replicas; None where that is not known.
        host_peak_mib: Resident memory of the process itself.
        gpu_peak_mib: What TensorFlow's allocators had handed out at most, over all GPUs.
        gpus: The state of each GPU in use; empty where there is none.
        unavailable: For each figure that is None, the reason.
        data: Name and note of the data, as the job gives them, and how much of what shape.
        shapes: Of the batches for which XLA compiles a step: a full one, a smaller last one.
    """

    build_s: FromZero
    first_step_s: FromZero
    first_steps: Count
    fill_s: FromZero
    rounds: tuple[int, ...]
    turns_ms: tuple[AboveZero, ...]
    steps: tuple[Count, ...]
    batch_size: Count | None
    replicas: Count
    host_peak_mib: FromZero | None
    gpu_peak_mib: FromZero | None
    energy_per_example_j: FromZero | None
    new_programs: int | None
    gpus: tuple[GpuState, ...]
    unavailable: Mapping[str, str]
    data: str
    shapes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert self.turns_ms, "at least one turn"
        numbers = {len(self.turns_ms), len(self.rounds), len(self.steps)}
        assert len(numbers) == 1, "a round and a number of steps for each turn"
        assert sorted(set(self.rounds)) == list(self.rounds), "rounds in ascending order"
        require_reasons(self, self.unavailable)

    @property
    def step_ms(self) -> float:
        """Return the median time of a step, which a rare long wait hardly moves."""
        return statistics.median(self.turns_ms)

    @property
    def example_ms(self) -> float:
        """Return the median time of an example, by which batches of any size can be compared."""
        return self.step_ms / (self.batch_size or 1)

    def training_s(self, steps: float, epoch_end_share: float = 0.0) -> float:
        """Return the time of a training of so many steps, with the ends of its epochs."""
        further = max(steps - self.first_steps, 0.0)
        further_s = further * self.step_ms / 1000 / (1 - epoch_end_share)
        return self.first_step_s + self.fill_s + further_s


def as_compiled(processes: Sequence[TimedProcess]) -> Sequence[TimedProcess]:
    """Return the processes, each with a first step that compiled.

    One whose programs were all in the cache gets the median of those that compiled, if any did.
    """
    compiled = [process.first_step_s for process in processes if process.new_programs != 0]
    if not compiled:
        return processes
    own_s = statistics.median(compiled)
    return [replace(p, first_step_s=own_s) if p.new_programs == 0 else p for p in processes]
