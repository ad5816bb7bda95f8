"""Find faults of a board: a PCIe link below what it could be, and new memory errors.

The thresholds are tfopt's own.
"""

from __future__ import annotations

from itertools import pairwise

from tfopt.monitor.findings.finding import (
    LEAST_SAMPLES,
    Evidence,
    Finding,
    GpuTrace,
    Series,
    boards,
    for_each,
    is_busy,
    not_judged,
    series_of,
)
from tfopt.monitor.readings import GpuReading

# An idle GPU lowers its link to save power, so only loaded moments count.
LOADED_PERCENT = 50.0
# Of those moments: a link that changes now and then is saving power.
BELOW_SHARE = 0.80
# GB/s of one lane in one direction after encoding, by generation (PCI-SIG).
_LANE_GB_PER_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
# Of what the link can carry; with less traffic a wider one would change nothing.
MUCH_TRAFFIC = 0.30


@for_each(boards)
def pcie_below(gpu: GpuTrace) -> Finding | None:
    """Find a link with fewer lanes, or a lower generation, than the machine allows, under load."""
    loaded = [
        (at, (each.pcie_generation, each.pcie_max_generation, each.pcie_width, each.pcie_max_width))
        for at, each in gpu.readings()
        if is_busy(each, LOADED_PERCENT)
    ]
    known = [(at, link) for at, link in loaded if None not in link]
    if len(known) < LEAST_SAMPLES:
        for metric in ("pcie_generation", "pcie_max_width"):
            if not gpu.series(metric).values:
                return gpu.lacks("pcie_below", metric)
        return not_judged(
            "pcie_below", f"{gpu.label}: its link says nothing while the GPU rests", gpu.place
        )
    below = [(at, link) for at, link in known if _speed(*link[0::2]) < _speed(*link[1::2])]
    if len(below) < BELOW_SHARE * len(known):
        return None
    generation, best_generation, width, best_width = below[-1][1]
    times = (below[0][0], below[-1][0])
    evidence = [
        Evidence("link", _speed(generation, width), "GB/s", *times),
        Evidence("could be", _speed(best_generation, best_width), "GB/s", *times),
    ]
    sure = f"reported by the driver in {len(below)} of {len(known)} loaded samples"
    traffic, used = gpu.of(_loaded_traffic), None
    if traffic.values:
        used = traffic.mean * 2**20 / 1e9 / _speed(generation, width)
        evidence.append(traffic.evidence("traffic", traffic.mean, "MiB/s"))
        sure += f"; the traffic is {100 * used:.0f} % of the link"
    return Finding(
        "pcie_below",
        "hint" if used is not None and used < MUCH_TRAFFIC else "warning",
        f"{gpu.label} has {width:.0f} PCIe lanes of generation {generation:.0f} under load; it "
        f"could have {best_width:.0f} of generation {best_generation:.0f}.",
        tuple(evidence),
        sure,
        "seat the board anew, look at the slot, riser and the BIOS's PCIe settings",
        gpu=gpu.place,
    )


def _speed(generation: float | None, width: float | None) -> float:
    """Return GB/s of a known link; a generation newer than the table doubles, as each one did."""
    number = int(generation or 0)
    newest = max(_LANE_GB_PER_S)
    lane = _LANE_GB_PER_S[min(max(number, 1), newest)] * 2.0 ** max(0, number - newest)
    return lane * (width or 0)


def _loaded_traffic(reading: GpuReading) -> float | None:
    """Return MiB/s in the busier direction, in a loaded moment."""
    received, sent = reading.pcie_received_mib_per_s, reading.pcie_sent_mib_per_s
    if received is None or sent is None or not is_busy(reading, LOADED_PERCENT):
        return None
    return max(received, sent)


@for_each(boards)
def memory_errors(gpu: GpuTrace) -> Finding | None:
    """Find ECC errors that were counted while the GPU was watched; older ones are history."""
    counts = {name: _count(gpu, name) for name in ("ecc_corrected", "ecc_uncorrected")}
    if all(len(series.values) < 2 for series in counts.values()):
        return gpu.lacks("memory_errors", "ecc_uncorrected")
    grown = {name: _growth(series) for name, series in counts.items()}
    if not any(grown.values()):
        return None
    if beyond := grown["ecc_uncorrected"]:
        errors = f"{beyond:.0f} memory errors beyond correction"
        action = (
            "what was trained since may be wrong: go back to a checkpoint from before, and have "
            "the board looked at (nvidia-smi -q -d ECC,ROW_REMAPPER)"
        )
    else:
        errors = f"{grown['ecc_corrected']:.0f} corrected memory errors"
        action = "nothing was lost; if they go on, have the board looked at (nvidia-smi -q -d ECC)"
    return Finding(
        "memory_errors",
        "serious" if beyond else "warning",
        f"{gpu.label} had {errors} while it was watched.",
        tuple(
            series.evidence(name.replace("ecc_", "errors "), grown[name], "")
            for name, series in counts.items()
            if series.values
        ),
        "counted by the GPU",
        action,
        gpu=gpu.place,
    )


def _count(gpu: GpuTrace, metric: str) -> Series:
    """Return a counter in all samples: an error before the first step is one too."""
    return series_of(gpu.recording.samples, lambda each: getattr(each.gpus[gpu.place], metric))


def _growth(series: Series) -> float:
    """Return what was added; a driver that is loaded anew counts from 0 again."""
    return sum(max(0.0, after - before) for before, after in pairwise(series.values))
