"""The board and its link: PCIe below what it could be, and memory errors that grow in number."""

from __future__ import annotations

from itertools import pairwise

from tfopt.monitor.findings.finding import Evidence, Finding, not_judged
from tfopt.monitor.findings.traces import LEAST_SAMPLES, GpuTrace, Series, boards, is_busy
from tfopt.monitor.readings import GpuReading, Recording

# An idle GPU lowers its link to save power, so only loaded moments count.
LOADED_PERCENT = 50.0
# Of those moments: a link that changes now and then is saving power.
BELOW_SHARE = 0.80
# GB/s of one lane in one direction after encoding, by generation (PCI-SIG).
_LANE_GB_PER_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
# Of what the link can carry; with less traffic a wider one would change nothing.
MUCH_TRAFFIC = 0.30


def pcie_below(recording: Recording) -> list[Finding]:
    """Fewer lanes, or a lower generation, than this GPU has in this machine, under load."""
    return [found for gpu in boards(recording) if (found := _pcie(gpu))]


def _pcie(gpu: GpuTrace) -> Finding | None:
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
            "pcie_below", f"{gpu.label}: its link tells nothing while the GPU rests", gpu.place
        )
    below = [(at, link) for at, link in known if _speed(*link[0::2]) < _speed(*link[1::2])]
    if len(below) < BELOW_SHARE * len(known):
        return None
    generation, best_generation, width, best_width = below[-1][1]
    times = (below[0][0], below[-1][0])
    traffic = _traffic(gpu)
    used = None if traffic is None else traffic.mean * 2**20 / 1e9 / _speed(generation, width)
    evidence = [
        Evidence("link", _speed(generation, width), "GB/s", *times),
        Evidence("could be", _speed(best_generation, best_width), "GB/s", *times),
    ]
    if traffic is not None:
        evidence.append(traffic.evidence("traffic", traffic.mean, "MiB/s"))
    return Finding(
        "pcie_below",
        "hint" if used is not None and used < MUCH_TRAFFIC else "warning",
        f"{gpu.label} has {width:.0f} PCIe lanes of generation {generation:.0f} under load; it "
        f"could have {best_width:.0f} of generation {best_generation:.0f}.",
        tuple(evidence),
        f"told by the driver in {len(below)} of {len(known)} loaded samples"
        + ("" if used is None else f"; the traffic is {100 * used:.0f} % of the link"),
        "seat the board anew, look at the slot, riser and the BIOS's PCIe settings",
        None,
        gpu.place,
    )


def _speed(generation: float | None, width: float | None) -> float:
    """Of a link that is known. A generation newer than the table doubles, as each one did."""
    number = int(generation or 0)
    newest = max(_LANE_GB_PER_S)
    lane = _LANE_GB_PER_S[min(max(number, 1), newest)] * 2.0 ** max(0, number - newest)
    return lane * (width or 0)


def _traffic(gpu: GpuTrace) -> Series | None:
    """The busier direction, in loaded moments."""
    known = [
        (at, max(each.pcie_received_mib_per_s, each.pcie_sent_mib_per_s))
        for at, each in gpu.readings()
        if is_busy(each, LOADED_PERCENT)
        and each.pcie_received_mib_per_s is not None
        and each.pcie_sent_mib_per_s is not None
    ]
    return (
        Series(tuple(t for t, _ in known), tuple(v for _, v in known), len(known))
        if known
        else None
    )


def memory_errors(recording: Recording) -> list[Finding]:
    """ECC errors that were counted while it was watched; older ones are history."""
    found = []
    for gpu in boards(recording):
        counts = {name: _whole(gpu, name) for name in ("ecc_corrected", "ecc_uncorrected")}
        if all(len(series.values) < 2 for series in counts.values()):
            found.append(gpu.lacks("memory_errors", "ecc_uncorrected"))
            continue
        grown = {name: _growth(series) for name, series in counts.items()}
        if any(grown.values()):
            found.append(_errors(gpu, counts, grown))
    return found


def _whole(gpu: GpuTrace, metric: str) -> Series:
    """Of all samples, also those before the first step: an error then is one too."""
    known = [
        (each.at_s, value)
        for each in gpu.recording.samples
        if (value := _value(each.gpus[gpu.place], metric)) is not None
    ]
    return Series(tuple(t for t, _ in known), tuple(v for _, v in known), len(known))


def _value(reading: GpuReading, metric: str) -> float | None:
    value: float | None = getattr(reading, metric)
    return value


def _growth(series: Series) -> float:
    """What was added; a driver that starts anew counts from 0 again."""
    return sum(max(0.0, after - before) for before, after in pairwise(series.values))


def _errors(gpu: GpuTrace, counts: dict[str, Series], grown: dict[str, float]) -> Finding:
    beyond = grown["ecc_uncorrected"]
    told = (
        f"{beyond:.0f} memory errors beyond correction"
        if beyond
        else f"{grown['ecc_corrected']:.0f} corrected memory errors"
    )
    return Finding(
        "memory_errors",
        "serious" if beyond else "warning",
        f"{gpu.label} had {told} while it was watched.",
        tuple(
            counts[name].evidence(name.replace("ecc_", "errors "), grown[name], "")
            for name in counts
            if counts[name].values
        ),
        "counted by the GPU",
        "what was trained since may be wrong: go back to a checkpoint from before, and have the "
        "board looked at (nvidia-smi -q -d ECC,ROW_REMAPPER)"
        if beyond
        else "nothing was lost; if they go on, have the board looked at (nvidia-smi -q -d ECC)",
        None,
        gpu.place,
    )
