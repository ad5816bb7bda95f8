"""Reading a recording: rules that turn samples into findings with evidence and what to try.

Each rule is a function of a ``Recording`` that returns a list of ``Finding``. Guarantees: no rule
asks the machine anything, so that a recording read from a file gives what it gave when it was
taken; GPUs that are not there leave the rules about the host as they are.
"""

from __future__ import annotations

from collections.abc import Callable

from tfopt.monitor.findings.finding import (
    LEAST_SAMPLES,
    LEAST_SECONDS,
    SEVERITIES,
    Evidence,
    Finding,
    not_judged,
)
from tfopt.monitor.findings.gpu_rules import (
    compute_bound,
    host_bound,
    low_clocks,
    memory_bound,
    memory_errors,
    pcie_below,
    starved_by_input,
    throttled,
)
from tfopt.monitor.findings.host_rules import (
    cpu_bound,
    cpu_held_back,
    gpu_memory_ahead,
    host_memory,
)
from tfopt.monitor.findings.sharing_rules import another_process, out_of_balance, power_cap
from tfopt.monitor.readings import Recording

__all__ = ["HOST_RULES", "RULES", "Evidence", "Finding", "findings"]

Rule = Callable[[Recording], list[Finding]]

HOST_RULES: tuple[Rule, ...] = (starved_by_input, host_memory, cpu_bound, cpu_held_back)
RULES: tuple[Rule, ...] = (
    *HOST_RULES,
    gpu_memory_ahead,
    memory_errors,
    throttled,
    out_of_balance,
    another_process,
    host_bound,
    low_clocks,
    pcie_below,
    memory_bound,
    compute_bound,
    power_cap,
)


def findings(recording: Recording) -> list[Finding]:
    """What all rules find, the most serious first; last, in one finding, what was not judged.

    An empty list is a recording in which every rule had what it needs and found nothing.
    """
    samples = recording.samples
    seconds = samples[-1].at_s - samples[0].at_s if samples else 0.0
    if len(samples) < LEAST_SAMPLES or seconds < LEAST_SECONDS:
        told = (
            f"{len(samples)} samples over {seconds:.1f} s are too few to judge: "
            f"{LEAST_SAMPLES} over {LEAST_SECONDS:.0f} s are needed."
        )
        return [not_judged("too_few_samples", told)]
    found = [each for rule in (RULES if recording.gpus else HOST_RULES) for each in rule(recording)]
    judged = [each for each in found if each.severity != "not judged"]
    # Sorting is stable: within a severity, the order of the rules.
    judged.sort(key=lambda each: SEVERITIES.index(each.severity))
    return judged + _not_judged(
        [each for each in found if each.severity == "not judged"], recording
    )


def _not_judged(found: list[Finding], recording: Recording) -> list[Finding]:
    """One finding for all of them."""
    told = [f"{each.rule}: {each.told}" for each in found]
    if not recording.gpus:
        told.append(f"the rules about GPUs: {recording.no_gpu_reason}")
    return [not_judged("not_judged", "Not judged: " + "; ".join(told) + ".")] if told else []
