"""The GPUs that are sampled, in a session with NVML that is opened anew when it is lost.

Guarantees: nothing here raises; the GPUs and their order stay those of the beginning; a GPU that
is gone has empty readings while the others go on, and is looked for every few seconds, by its UUID
or, where it was lost before it told one, by its place;
when all are gone the session itself is opened anew, so that a driver may go and come back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, Literal

from tfopt.monitor.asking import Asking, NotYet, Rate, Shared, Trouble
from tfopt.monitor.nvml import (
    MIB,
    ListedGpu,
    UnavailableError,
    listed_gpus,
    name_of_place,
    order_is_known,
    session,
    text,
    visible_gpus,
)
from tfopt.monitor.readings import ClockReason, GpuProcess, GpuReading, SampledGpu

# What NVML is asked of one GPU: a question for each metric of the table, and two more.
#
# Guarantees: of a part of a GPU (MIG), memory, processes and utilisation are those of the part,
# or not told; clocks, power, temperatures, links and errors are those of the whole GPU, which a
# part shares with its neighbours. A question raises what NVML raises.

# What NVML calls each reason, what it means, and whether heat, power or hardware holds the clocks.
_REASONS: Mapping[str, tuple[str, bool]] = {
    "GpuIdle": ("nothing to do", False),
    "ApplicationsClocksSetting": ("clocks set by somebody", False),
    "SwPowerCap": ("the power limit", True),
    "HwSlowdown": ("a slowdown by the hardware", True),
    "SyncBoost": ("in step with another GPU", False),
    "SwThermalSlowdown": ("heat, seen by the driver", True),
    "HwThermalSlowdown": ("heat, seen by the hardware", True),
    "HwPowerBrakeSlowdown": ("a power brake from outside", True),
    "DisplayClockSetting": ("the display's clocks", False),
    "BoardLimit": ("the board's limit", True),
    "Reliability": ("the voltage's limit", False),
}

# Names of one question, the newest first: drivers and pynvml drop the old ones.
_PROCESSES = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetComputeRunningProcesses_v2",
)
_HELD_DOWN = (
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
)
_TEMPERATURE = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature")

# NVML sums a counter over all links where the link is this one.
_ALL_LINKS = 2**32 - 1


def questions(
    nvml: Any, gpu: ListedGpu, process_id: int, clock: Callable[[], float]
) -> dict[str, Callable[[], Any]]:
    """By metric, with ``clock_reasons`` and ``processes``; answers are in the source's unit."""
    handle = gpu.handle
    board = handle if gpu.whole is None else gpu.whole.handle
    processes = _NewestWay(nvml, _PROCESSES, handle)
    # One answer of NVML's serves two metrics: it is asked for the first one.
    memory = Shared(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    busy = Shared(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
    listed = Shared(processes)
    names = _ProcessNames(nvml)
    reasons = _known_reasons(nvml)
    held_down = _NewestWay(nvml, _HELD_DOWN, board)
    temperature = _NewestWay(nvml, _TEMPERATURE, board, nvml.NVML_TEMPERATURE_GPU)

    def field(name: str, *scope: int) -> Any:
        return _field(nvml, board, getattr(nvml, f"NVML_FI_DEV_{name}"), *scope)

    def ecc(kind: int) -> Any:
        return nvml.nvmlDeviceGetTotalEccErrors(board, kind, nvml.NVML_VOLATILE_ECC)

    return {
        "device_mib": lambda: memory.new().used,
        "total_mib": lambda: memory.last().total,
        "process_mib": lambda: _held(listed.new(), process_id),
        "utilisation_percent": lambda: busy.new().gpu,
        "memory_utilisation_percent": lambda: busy.last().memory,
        "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(board, nvml.NVML_CLOCK_SM),
        "max_sm_clock_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(board, nvml.NVML_CLOCK_SM),
        "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(board, nvml.NVML_CLOCK_MEM),
        "temperature_c": temperature,
        "memory_temperature_c": lambda: field("MEMORY_TEMP"),
        "slowdown_temperature_c": lambda: nvml.nvmlDeviceGetTemperatureThreshold(
            board, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        ),
        "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(board),
        "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(board),
        "energy_j": lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(board),
        "pcie_generation": lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(board),
        "pcie_max_generation": lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(board),
        "pcie_width": lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(board),
        "pcie_max_width": lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(board),
        "pcie_received_mib_per_s": lambda: nvml.nvmlDeviceGetPcieThroughput(
            board, nvml.NVML_PCIE_UTIL_RX_BYTES
        ),
        "pcie_sent_mib_per_s": lambda: nvml.nvmlDeviceGetPcieThroughput(
            board, nvml.NVML_PCIE_UTIL_TX_BYTES
        ),
        "nvlinks": lambda: _active_links(nvml, board),
        "nvlink_received_mib_per_s": Rate(
            lambda: field("NVLINK_THROUGHPUT_DATA_RX", _ALL_LINKS), clock
        ),
        "nvlink_sent_mib_per_s": Rate(
            lambda: field("NVLINK_THROUGHPUT_DATA_TX", _ALL_LINKS), clock
        ),
        "ecc_corrected": lambda: ecc(nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        "ecc_uncorrected": lambda: ecc(nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        "fan_percent": lambda: nvml.nvmlDeviceGetFanSpeed(board),
        "clock_reasons": lambda: _named(held_down(), reasons),
        "processes": lambda: names.told(listed.last()),
    }


class _NewestWay:
    """Asks by the newest of several names that this driver, and this pynvml, knows."""

    def __init__(self, nvml: Any, names: Sequence[str], *arguments: Any) -> None:
        self._names = names
        self._ways = [getattr(nvml, name) for name in names if hasattr(nvml, name)]
        self._arguments = arguments
        self._unknown = nvml.NVMLError_FunctionNotFound

    def __call__(self) -> Any:
        for way in tuple(self._ways):
            try:
                return way(*self._arguments)
            except self._unknown:
                self._ways.remove(way)
        raise UnavailableError(f"NVML: this driver has no {' or '.join(self._names)}")


class _ProcessNames:
    """Names of processes as the driver tells them, asked once for each."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._names: dict[int, str | None] = {}

    def told(self, listed: Sequence[Any]) -> tuple[GpuProcess, ...]:
        self._names = {each.pid: self._name(each.pid) for each in listed}
        told = [
            GpuProcess(each.pid, self._names[each.pid], _mib(each.usedGpuMemory)) for each in listed
        ]
        return tuple(sorted(told, key=lambda process: (-(process.mib or 0), process.pid)))

    def _name(self, process_id: int) -> str | None:
        if process_id in self._names:
            return self._names[process_id]
        try:
            told = text(self._nvml.nvmlSystemGetProcessName(process_id))
        except self._nvml.NVMLError:
            return None  # gone again, or somebody else's
        return PurePosixPath(told).name or None


def _mib(held: int | None) -> float | None:
    return None if held is None else held / MIB


def _held(processes: Sequence[Any], process_id: int) -> int:
    own = [process.usedGpuMemory for process in processes if process.pid == process_id]
    if processes and not own:
        # Zero would be a claim: the driver's numbers are those of outside of a container.
        raise UnavailableError(
            f"NVML lists {len(processes)} process{'es' if len(processes) > 1 else ''} here and not "
            "this one, which has not used this GPU yet or is in a container that counts anew"
        )
    if any(held is None for held in own):
        raise UnavailableError("NVML: the driver does not tell the memory of single processes")
    return sum(own)


def _field(nvml: Any, handle: Any, number: int, *scope: int) -> Any:
    (value,) = nvml.nvmlDeviceGetFieldValues(handle, [(number, *scope) if scope else number])
    if value.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(value.nvmlReturn)
    members = {
        nvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
        nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
        nvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    }
    return getattr(value.value, members[value.valueType])


def _active_links(nvml: Any, handle: Any) -> int:
    active = 0
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            active += nvml.nvmlDeviceGetNvLinkState(handle, link) == nvml.NVML_FEATURE_ENABLED
        except nvml.NVMLError as error:
            # NVML has no call for how many links a GPU has: it refuses the first that is not there.
            over = (nvml.NVML_ERROR_INVALID_ARGUMENT, nvml.NVML_ERROR_NOT_SUPPORTED)
            if link == 0 or error.value not in over:
                raise
            break
    return active


def _known_reasons(nvml: Any) -> list[tuple[int, ClockReason]]:
    """The reasons that this NVML has a constant for, whose names changed once."""
    known = []
    for name, (meaning, throttles) in _REASONS.items():
        bit = getattr(nvml, f"nvmlClocksEventReason{name}", None)
        bit = bit or getattr(nvml, f"nvmlClocksThrottleReason{name}", None)
        if bit is not None:
            known.append((bit, ClockReason(f"{meaning} ({name})", throttles)))
    return known


def _named(mask: int, known: list[tuple[int, ClockReason]]) -> tuple[ClockReason, ...]:
    found = [reason for bit, reason in known if mask & bit]
    for bit, _ in known:
        mask &= ~bit
    if mask:
        found.append(ClockReason(f"a reason unknown to tfopt (0x{mask:x})", throttles=False))
    return tuple(found)


# One GPU asked again and again inside an open NVML session.
#
# Guarantees: a reading never raises; what this GPU, its driver or a part of a GPU (MIG) does not
# tell is None, with NVML's words in ``missing``; what it can never tell is asked only once. A GPU
# that fell off the bus, or whose driver went away, tells nothing at all until ``begin`` is called
# with a handle that works again.

# Not of this GPU, this driver, or this user: it is the same the next time.
_NEVER = (
    "NVML_ERROR_NOT_SUPPORTED",
    "NVML_ERROR_NO_PERMISSION",
    "NVML_ERROR_FUNCTION_NOT_FOUND",
    "NVML_ERROR_INVALID_ARGUMENT",
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
    "NVML_ERROR_VGPU_ECC_NOT_SUPPORTED",
    "NVML_ERROR_DEPRECATED",
)
# The handle is worth nothing any more, or the whole session.
_GONE = (
    "NVML_ERROR_GPU_IS_LOST",
    "NVML_ERROR_RESET_REQUIRED",
    "NVML_ERROR_GPU_NOT_FOUND",
    "NVML_ERROR_UNINITIALIZED",
    "NVML_ERROR_DRIVER_NOT_LOADED",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH",
)


class WatchedGpu:
    """A GPU with the metrics that are asked of it; ``missing`` grows as it refuses some."""

    def __init__(
        self, nvml: Any, gpu: ListedGpu, process_id: int, clock: Callable[[], float]
    ) -> None:
        self.uuid = gpu.uuid
        self.part_of = None if gpu.whole is None else gpu.whole.uuid
        self.missing: dict[str, str] = {}
        self._nvml = nvml
        self._process_id = process_id
        self._clock = clock
        self._never = _codes(nvml, _NEVER)
        self._gone = _codes(nvml, _GONE)
        self.begin(gpu)

    def begin(self, gpu: ListedGpu) -> None:
        """Asks by this handle from now on, everything anew.

        Its UUID stays: what was told of it before is under that one.
        """
        asked = questions(self._nvml, gpu, self._process_id, self._clock)
        self._asking = Asking(asked, self.missing, self._explain)
        self.name = gpu.name
        if gpu.lost is not None:
            self._asking.give_up(gpu.lost)

    @property
    def gone(self) -> bool:
        """Whether it tells nothing any more."""
        return self._asking.gone

    def read(self) -> GpuReading:
        """Everything that this GPU tells now."""
        return GpuReading(**self._asking.answers(self._clock()))

    def ask_slow(self) -> bool:
        """Asks one of the questions that take long, if it is time for one; whether it did."""
        return self._asking.ask_slow(self._clock())

    def _explain(self, error: Exception) -> tuple[str, Trouble]:
        if isinstance(error, UnavailableError | NotYet):
            return str(error), Trouble.NOT_NOW
        told = f"NVML: {error}"
        if not isinstance(error, self._nvml.NVMLError):
            return told, Trouble.NEVER  # a pynvml that does not know the question
        if error.value in self._gone:
            return told, Trouble.GONE
        return told, Trouble.NEVER if error.value in self._never else Trouble.NOT_NOW


def _codes(nvml: Any, names: tuple[str, ...]) -> frozenset[int]:
    """The numbers of these errors, as far as this pynvml knows them."""
    return frozenset(getattr(nvml, name) for name in names if hasattr(nvml, name))


# Seldom: a GPU that is lost comes back when somebody resets it, and each try costs some time.
_LOOK_AGAIN_S = 5.0

Wanted = Mapping[int, str] | Literal["visible", "all"]


class GpuWatch:
    """The GPUs of one sampler; ``no_gpu_reason`` is there where there are none."""

    def __init__(self, process_id: int, wanted: Wanted, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._stack = ExitStack()
        self._nvml: Any = None
        self._abandoned = False
        self._gpus: list[WatchedGpu] = []
        self._slow_order: list[WatchedGpu] = []
        self._looked_at = clock()
        self.no_gpu_reason: str | None = None
        if not isinstance(wanted, str) and not wanted:
            self.no_gpu_reason = "no GPU is in use"
            return
        try:
            self._nvml = self._stack.enter_context(session())
            chosen = _chosen(self._nvml, wanted)
            self._gpus = [WatchedGpu(self._nvml, gpu, process_id, clock) for gpu in chosen]
            self._slow_order = list(self._gpus)
        except UnavailableError as error:
            self.no_gpu_reason = str(error)
            self.close()
        except Exception as error:  # a library that is none, or no driver's
            self.no_gpu_reason = f"NVML: {error}"
            self.close()

    def read(self) -> tuple[GpuReading, ...]:
        """Each GPU now."""
        readings = tuple(gpu.read() for gpu in self._gpus)
        if any(gpu.gone for gpu in self._gpus) and self._is_time_to_look():
            with suppress(Exception):  # it is still away
                self._look_for_the_gone()
        return readings

    def ask_slow(self) -> None:
        """Asks one question that takes long, of one GPU: its answer is in the next reading."""
        asked = next((gpu for gpu in self._slow_order if gpu.ask_slow()), None)
        if asked is not None:
            # The others first, the next time.
            self._slow_order.remove(asked)
            self._slow_order.append(asked)

    def told(self) -> tuple[SampledGpu, ...]:
        """Which they are, and what each does not tell."""
        return tuple(
            SampledGpu(gpu.uuid, gpu.name, dict(gpu.missing), gpu.part_of) for gpu in self._gpus
        )

    def close(self) -> None:
        """Ends the session."""
        if not self._abandoned:
            with suppress(Exception):  # a driver that went away cannot be left in good order
                self._stack.close()

    def abandon(self) -> None:
        """No word to NVML any more: the session is another process's, or hangs."""
        self._abandoned = True

    def _is_time_to_look(self) -> bool:
        now_s = self._clock()
        if now_s - self._looked_at < _LOOK_AGAIN_S:
            return False
        self._looked_at = now_s
        return True

    def _look_for_the_gone(self) -> None:
        if all(gpu.gone for gpu in self._gpus):
            self.close()
            self._nvml = self._stack.enter_context(session())
        there = {gpu.uuid: gpu for gpu in self._listed_now() if gpu.lost is None}
        for gpu in self._gpus:
            if gpu.gone and gpu.uuid in there:
                gpu.begin(there[gpu.uuid])

    def _listed_now(self) -> Iterator[ListedGpu]:
        watched = {gpu.uuid for gpu in self._gpus}
        for place, gpu in enumerate(listed_gpus(self._nvml)):
            yield gpu
            # Of a GPU that is watched already, the place is another one's that went.
            if gpu.whole is None and gpu.uuid not in watched:
                yield replace(gpu, uuid=name_of_place(place))


def _chosen(nvml: Any, wanted: Wanted) -> list[ListedGpu]:
    """The GPUs that are meant; an UnavailableError where that cannot be told for certain."""
    listed = listed_gpus(nvml)
    if wanted == "all":
        chosen = listed
    else:
        chosen = visible_gpus(nvml)
        if not isinstance(wanted, str):
            chosen = [_at(place, name, chosen, listed) for place, name in wanted.items()]
        elif not order_is_known(listed):
            raise UnavailableError(
                "CUDA_VISIBLE_DEVICES names GPUs of several kinds by their places, which CUDA "
                "counts from the fastest and NVML along the bus: set CUDA_DEVICE_ORDER=PCI_BUS_ID"
            )
    if not chosen:
        raise UnavailableError("NVML lists no visible GPU")
    return chosen


def _at(
    place: int, name: str, visible: Sequence[ListedGpu], listed: Sequence[ListedGpu]
) -> ListedGpu:
    """CUDA's GPU at this place, which it knows by this name."""
    if place >= len(visible):
        raise UnavailableError(f"NVML lists {len(visible)} visible GPU(s), and not number {place}")
    called = [gpu for gpu in listed if gpu.name == name]
    # A name that no board has is another spelling, not another board.
    if visible[place].name == name or not called:
        return visible[place]
    if len(called) == 1:
        return called[0]  # counted in another order, and only this one is called so
    raise UnavailableError(
        f"NVML's GPU {place} is a {visible[place].name} and CUDA's a {name}: "
        "set CUDA_DEVICE_ORDER=PCI_BUS_ID for the same order in both"
    )
