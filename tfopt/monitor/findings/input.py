"""Starved by its input: the training waits for batches."""

from __future__ import annotations

from tfopt.monitor.findings.finding import Finding, not_judged
from tfopt.monitor.findings.steps import LEAST_STEPS, steps_of
from tfopt.monitor.findings.traces import LEAST_SECONDS, GpuTrace, gpu_traces
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
    """The step's own wait for its batch, unless GPUs had work queued meanwhile."""
    steps = steps_of(recording)
    if steps is None:
        return [
            not_judged(
                "starved_by_input",
                f"fewer than {LEAST_STEPS} steps or {LEAST_SECONDS:.0f} s of them were marked "
                "(tfopt.Monitor marks them while fit runs)",
            )
        ]
    if steps.wait_share is None:
        return [not_judged("starved_by_input", "the steps' wait for input was not measured")]
    if steps.wait_share < WARNING_SHARE or _all_busy(gpu_traces(recording)):
        return []
    share = 100 * steps.wait_share
    evidence = [
        steps.evidence("input wait", share, "% of the step"),
        steps.evidence("step", steps.step_ms, "ms"),
    ]
    for gpu in gpu_traces(recording):
        busy = gpu.series("utilisation_percent")
        if busy.enough:
            evidence.append(busy.evidence(f"GPU {gpu.place} utilisation", busy.mean, "%"))
    return [
        Finding(
            "starved_by_input",
            "serious" if steps.wait_share >= SERIOUS_SHARE else "warning",
            f"Steps spent {share:.0f} % of their time waiting for their batches.",
            tuple(evidence),
            f"measured inside the compiled step, over {steps.count} steps",
            "read and prepare batches in parallel and ahead of the step; cache what fits",
            'tfopt.Pipeline(cache="memory")',
        )
    ]


def _all_busy(gpus: tuple[GpuTrace, ...]) -> bool:
    busy = [gpu.series("utilisation_percent") for gpu in gpus]
    return bool(busy) and all(s.enough and s.mean >= NOT_STARVED_PERCENT for s in busy)
