"""What the GPUs did while a block was measured: samples over time, and what sums them up."""

from __future__ import annotations

from dataclasses import dataclass

from tfopt.report.strict import ReportError, require_number


@dataclass(frozen=True)
class GpuState:
    """One GPU during the steady state of a block; None where the driver does not tell.

    Attributes:
        utilisation_percent: The mean; so is ``power_w``.
        sm_clock_mhz: The median; so is ``memory_clock_mhz``.
        temperature_c: The highest.
        energy_j: Over the whole steady state.
        throttle_reasons: Why the driver held the clocks down, in words; idleness and a limit that
            somebody set on purpose are told, and do not make a block invalid by themselves.
        throttled: Whether one of the reasons is heat, power or hardware.
        notes: What the driver did not tell, with its words, and where ``energy_j`` is power
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

    def __post_init__(self) -> None:
        if self.throttled and not self.throttle_reasons:
            raise ReportError("throttle_reasons", expected="the reason", received="none")


@dataclass(frozen=True)
class Timeline:
    """What was sampled during a block: lists of one length, times from the first sample on.

    ``gpu_*`` are sums (memory, power) or means (utilisation) over the GPUs in use, and empty
    where there is none to ask.
    """

    at_s: tuple[float, ...]
    host_mib: tuple[float, ...]
    gpu_mib: tuple[float, ...]
    gpu_utilisation_percent: tuple[float, ...]
    gpu_power_w: tuple[float, ...]
    gpu_temperature_c: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("gpu_mib", "gpu_utilisation_percent", "gpu_power_w", "gpu_temperature_c"):
            if len(getattr(self, name)) not in (0, len(self.at_s)):
                self._refuse(name)
        if len(self.host_mib) not in (0, len(self.at_s)):
            self._refuse("host_mib")
        for number, moment in enumerate(self.at_s):
            require_number(f"at_s[{number}]", moment, least=0)

    def _refuse(self, name: str) -> None:
        length = len(getattr(self, name))
        raise ReportError(
            name, expected=f"{len(self.at_s)} samples or none", received=f"{length} samples"
        )
