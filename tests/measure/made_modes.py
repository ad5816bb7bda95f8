"""The modes of a step, made up."""

from tfopt.measure.job_facts import JobFacts
from tfopt.measure.turns import Circumstances, Modes, Swept, Windows

NOT = "not here"


def setting(**changes):
    plain = {
        "replicas": 1,
        "gpus": 0,
        "steps_per_execution": 1,
        "whole_executions": None,
        "jit_compile": False,
        "eager": False,
        "half": None,
        "source": "dataset",
        "endless": False,
        "generated": None,
        "own_input": False,
    }
    return Circumstances(**{**plain, **changes})


def job_facts(**changes):
    plain = {
        "batch_size": 32,
        "tuned_batch_size": 32,
        "steps_per_epoch": 7,
        "epochs": 1,
        "examples": 200,
        "epoch_examples": 200,
        "rebatch": False,
        "accumulate": 1,
        "optimizer": "Adam",
        "rate": 0.001,
        "tested": True,
        "data": "toy",
    }
    return JobFacts(**vars(setting()) | plain | changes)


def windows(step_ms, gaps=(), spread=0.0):
    turns = tuple((step_ms * (1 + part * spread),) for part in (-1, -0.5, 0.5, 1))
    return Windows(turns, tuple(gaps))


def modes(
    fit, resident, batch=0.1, host=0.0, *, spread=0.0, swept=True, gap=(), own_gap=(), **changes
):
    """``host`` is what a call costs on top of the rest of the resident step."""
    each = changes.get("steps_per_execution", 1)
    points = sorted({1, 4, 16, each})
    device = resident - host / each
    sweep = tuple(Swept(k, windows(device + host / k, spread=spread).turns_ms) for k in points)
    unavailable = {} if swept else {"sweep": NOT}
    if batch is None:
        unavailable["input"] = NOT
    return Modes(
        setting=setting(**changes),
        steps_per_epoch=100,
        fit=windows(fit, gap, spread),
        resident=windows(resident, own_gap, -spread),
        input=None if batch is None else windows(batch),
        sweep=sweep if swept else None,
        unavailable=unavailable,
    )


def turned(fit, resident, batch, host):
    """Modes by their turns, each of one window."""
    sweep = tuple(
        Swept(k, tuple((ms - h + h / k,) for (ms,), h in zip(resident, host, strict=True)))
        for k in (1, 4, 16)
    )
    return Modes(
        setting=setting(),
        steps_per_epoch=None,
        fit=Windows(fit, ()),
        resident=Windows(resident, ()),
        input=Windows(batch, ()),
        sweep=sweep,
        unavailable={},
    )
