"""Find a training that waits for its input.

The thresholds are tfopt's own, but where a comment names another source.
"""

from __future__ import annotations

from tfopt.monitor.findings.finding import (
    LEAST_SECONDS,
    LEAST_STEPS,
    Evidence,
    Finding,
    gpu_traces,
    not_judged,
    steps_of,
)
from tfopt.monitor.readings import Recording

# Shares of the step spent waiting. TensorFlow's profiler calls 5 % moderately and 20 % highly
# input-bound (op_stats_to_input_pipeline_analysis.cc), and XProf suggests something from 10 % on
# (input_bound_rule.h).
WARNING_SHARE = 0.10
SERIOUS_SHARE = 0.20
# A GPU that computes nearly all the time has work queued: Python then waits ahead of it, and for
# nothing that the GPU would have done.
NOT_STARVED_PERCENT = 95.0


def starved_by_input(recording: Recording) -> list[Finding]:
    """Find steps that wait for their batches while no GPU has work queued."""
    rule = "starved_by_input"
    steps = steps_of(recording)
    if steps is None:
        why = (
            f"fewer than {LEAST_STEPS} steps or {LEAST_SECONDS:.0f} s of them were marked "
            "(tfopt.Monitor marks them while fit runs)"
        )
        return [not_judged(rule, why)]
    if steps.wait_share is None:
        return [not_judged(rule, "the steps' wait for input was not measured")]
    busy = [gpu.series("utilisation_percent") for gpu in gpu_traces(recording)]
    queued = bool(busy) and all(s.enough and s.mean >= NOT_STARVED_PERCENT for s in busy)
    if steps.wait_share < WARNING_SHARE or queued:
        return []
    share = 100 * steps.wait_share
    return [
        Finding(
            rule,
            "serious" if steps.wait_share >= SERIOUS_SHARE else "warning",
            f"Steps spent {share:.0f} % of their time waiting for their batches.",
            (
                Evidence("input wait", share, "% of the step"),
                Evidence("step", steps.step_ms, "ms"),
                *(
                    Evidence(f"GPU {place} utilisation", series.mean, "%")
                    for place, series in enumerate(busy)
                    if series.enough
                ),
            ),
            f"measured inside the compiled step, over {steps.count} steps",
            "read and prepare batches in parallel and ahead of the step; cache what fits",
            'tfopt.Pipeline(cache="memory")',
        )
    ]
