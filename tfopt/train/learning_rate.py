"""Set the learning rate that a larger batch needs: scaling, warm-up and decay."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from tfopt.errors import UserError, keep_plain, require_count, require_one_of, within
from tfopt.job.parts import Facts
from tfopt.job.transform import Run, Transform
from tfopt.keras_internals import learning_rate_of, without_scaling

Rule = Literal["linear", "sqrt"]
_RULES: tuple[Rule, ...] = get_args(Rule)


def scaled_learning_rate(rate: float, *, tuned_batch: int, batch: int, rule: Rule) -> float:
    """Scale a rate tuned for ``tuned_batch`` to ``batch``, by the linear or square-root rule.

    Args:
        rate: The learning rate that was tuned.
        tuned_batch: The batch size for which it was tuned.
        batch: The batch size of the training.
        rule: "linear" for SGD, "sqrt" for Adam and the like.

    Raises:
        UserError: A batch is not a count, or the rule is unknown.

    Example:
        scaled_learning_rate(0.1, tuned_batch=32, batch=128, rule="linear")  # 0.4
    """
    require_count("scaled_learning_rate(tuned_batch)", tuned_batch)
    require_count("scaled_learning_rate(batch)", batch)
    require_one_of("rule", rule, _RULES)
    ratio = batch / tuned_batch
    return rate * (ratio if rule == "linear" else math.sqrt(ratio))


@dataclass(frozen=True, repr=False)
class LearningRate(Transform):
    """Set the peak learning rate, with linear warm-up and a decay to zero.

    A job that has a schedule itself raises an error.

    Example:
        outcome = run(job, chain(LearningRate("sqrt", warmup=0.1), Pipeline(batch_size=256)))

    Attributes:
        peak: A rate, or the rule that scales the job's own rate with its batch: "linear"
            (SGD), "sqrt" (Adam and the like), or None for the job's own rate.
        warmup: Fraction of the training over which the rate rises from zero.
        decay: "cosine": the rate falls to zero afterwards; None: it is constant.
    """

    peak: float | Rule | None = None
    warmup: float = 0.0
    decay: Literal["cosine"] | None = None

    exact: ClassVar[bool] = False
    aim: ClassVar[Literal["speed", "size", "accuracy"]] = "accuracy"

    def __post_init__(self) -> None:
        keep_plain(self)
        if isinstance(self.peak, str):
            require_one_of("LearningRate.peak", self.peak, _RULES)
        elif self.peak is not None and not (within(self.peak, 0, math.inf) and self.peak):
            expected = 'a finite rate above 0, "linear", "sqrt" or None'
            raise _invalid("peak", expected, self.peak)
        if not within(self.warmup, 0, 1):
            raise _invalid("warmup", "a fraction of the training, 0 <= warmup < 1", self.warmup)
        if self.decay is not None:
            require_one_of("LearningRate.decay", self.decay, ("cosine",))

    def compile(self, run: Run, arguments: dict[str, Any]) -> dict[str, Any]:
        import keras

        optimizer = keras.optimizers.get(arguments.get("optimizer", "rmsprop"))
        own = learning_rate_of(without_scaling(optimizer))
        if isinstance(own, keras.optimizers.schedules.LearningRateSchedule):
            raise UserError(
                "LearningRate would overwrite the schedule that the job's optimizer has.",
                received=type(own).__name__,
                fix="drop LearningRate from the chain, or compile with a plain rate",
            )
        base = float(optimizer.learning_rate)
        peak, varies = self._peak(base, run.facts), self.warmup > 0 or self.decay is not None
        optimizer.learning_rate = self._schedule(peak, run.facts) if varies else peak
        run.note(self._note(base, peak), acted=varies or peak != base)
        return {**arguments, "optimizer": optimizer}

    def _peak(self, base: float, facts: Facts) -> float:
        if self.peak is None:
            return base
        if not isinstance(self.peak, str):
            return float(self.peak)
        batch = facts.update_batch
        if batch is None or facts.tuned_batch_size is None:
            raise UserError(
                f"LearningRate({self.peak!r}) needs the job's batch size.",
                expected="a batch_size and a tuned_batch_size, of the job or its data",
                received=f"batch_size={batch}, tuned for {facts.tuned_batch_size}",
                fix="set them on the job, or give the rate as a number",
            )
        return scaled_learning_rate(
            base, tuned_batch=facts.tuned_batch_size, batch=batch, rule=self.peak
        )

    def _schedule(self, peak: float, facts: Facts) -> Any:
        import keras

        if facts.steps_per_epoch is None:
            raise UserError(
                "Warm-up and decay need the length of the training.",
                expected="a dataset of known length, or Job.steps_per_epoch",
                received="a dataset of unknown length",
                fix="set Job.steps_per_epoch, or Pipeline(examples=...)",
            )
        total = facts.steps_per_epoch * facts.epochs // facts.accumulate
        rising = round(self.warmup * total)
        # A Keras schedule, so that a saved model loads without tfopt; alpha=1 keeps the peak.
        return keras.optimizers.schedules.CosineDecay(
            initial_learning_rate=0.0 if rising else peak,
            decay_steps=max(total - rising, 1),
            alpha=0.0 if self.decay else 1.0,
            warmup_target=peak if rising else None,
            warmup_steps=rising,
        )

    def _note(self, base: float, peak: float) -> str:
        rule = f" by the {self.peak} rule" if isinstance(self.peak, str) else ""
        shape = [f"peak {peak:.3g}{rule} (the job's own is {base:.3g})"]
        if self.warmup:
            shape.append(f"warm-up over {self.warmup:.0%} of the training")
        if self.decay:
            shape.append(f"{self.decay} decay to 0")
        return "learning rate: " + ", ".join(shape)


def _invalid(field: str, expected: str, value: object) -> UserError:
    return UserError(f"Invalid LearningRate.{field}.", expected=expected, received=repr(value))
