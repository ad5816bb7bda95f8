"""Find what holds a training up: apply all rules to a recording.

A rule is a function of a ``Recording`` that returns a list of ``Finding``. None asks the machine
anything, so that a recording read from a file gives what it gave when it was taken.
"""

from __future__ import annotations

from tfopt.monitor.findings.finding import (
    LEAST_SAMPLES,
    LEAST_SECONDS,
    SEVERITIES,
    Evidence,
    Finding,
    Rule,
    not_judged,
)
from tfopt.monitor.findings.gpu_rules import low_clocks, throttled
from tfopt.monitor.findings.host_rules import cpu_held_back, host_memory
from tfopt.monitor.findings.input_rules import starved_by_input
from tfopt.monitor.findings.sharing_rules import another_process, out_of_balance
from tfopt.monitor.readings import Recording

__all__ = ["HOST_RULES", "RULES", "Evidence", "Finding", "findings"]

HOST_RULES: tuple[Rule, ...] = (starved_by_input, host_memory, cpu_held_back)
RULES: tuple[Rule, ...] = (*HOST_RULES, throttled, out_of_balance, another_process, low_clocks)


def findings(recording: Recording) -> list[Finding]:
    """Return what all rules find, the most serious first; last, in one finding, the not judged.

    An empty list is of a recording in which every rule had what it needs and found nothing.

    Example:
        >>> for finding in findings(monitor.recording):
        ...     print(finding, finding.action)
    """
    samples = recording.samples
    seconds = samples[-1].at_s - samples[0].at_s if samples else 0.0
    if len(samples) < LEAST_SAMPLES or seconds < LEAST_SECONDS:
        why = (
            f"{len(samples)} samples over {seconds:.1f} s are too few to judge: "
            f"{LEAST_SAMPLES} over {LEAST_SECONDS:.0f} s are needed."
        )
        return [not_judged("too_few_samples", why)]
    found = [each for rule in (RULES if recording.gpus else HOST_RULES) for each in rule(recording)]
    judged = [each for each in found if each.severity != "not judged"]
    # Sorting is stable: within a severity, the order of the rules.
    judged.sort(key=lambda each: SEVERITIES.index(each.severity))
    lacking = [f"{each.rule}: {each.message}" for each in found if each.severity == "not judged"]
    if not recording.gpus:
        lacking.append(f"the rules about GPUs: {recording.no_gpu_reason}")
    if lacking:
        judged.append(not_judged("not_judged", "Not judged: " + "; ".join(lacking) + "."))
    return judged
