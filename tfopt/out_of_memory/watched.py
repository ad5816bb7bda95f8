"""Where a training is: told by a callback that a watched model's own ``fit`` is given.

Guarantees: the model trains as without it; when the watch ends it has its own ``fit`` and
``evaluate`` again. An optimizer's count would not do: after an allocation that failed inside a
compiled step, TensorFlow 2.21 may leave anything in it.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from tfopt.compression.hooks import Hooks

if TYPE_CHECKING:
    import keras


class Watched:
    """What is happening, in words, and what ``fit`` was given."""

    def __init__(self) -> None:
        self.model: Any = None
        self.given: dict[str, Any] = {}
        self._steps = 0
        self._fitting = self._evaluating = False
        self._hooks = Hooks()

    def watch(self, model: keras.Model, batch_size: int | None = None) -> None:
        """Looks at what this model does, until :meth:`leave`.

        ``batch_size`` is that of batches whose size ``fit`` is not told.
        """
        self.model = model
        fit, evaluate = model.fit, model.evaluate

        def watched_fit(*args: Any, **kwargs: Any) -> Any:
            bound = inspect.signature(fit).bind(*args, **kwargs)
            self.given = {"batch_size": batch_size, **bound.arguments}
            self._steps, self._fitting = 0, True
            result = fit(**{**bound.arguments, "callbacks": self._counting(bound.arguments)})
            self._fitting = False
            return result

        def watched_evaluate(*args: Any, **kwargs: Any) -> Any:
            self._evaluating = True
            result = evaluate(*args, **kwargs)
            self._evaluating = False
            return result

        self._hooks.replace(model, "fit", watched_fit)
        self._hooks.replace(model, "evaluate", watched_evaluate)

    def leave(self) -> None:
        """The model has its own functions again."""
        self._hooks.take_off()

    @property
    def phase(self) -> str | None:
        """What the model was doing; None where it was none of this."""
        if self._evaluating:
            return "the validation" if self._fitting else "the evaluation"
        if not self._fitting:
            return None
        if not self._steps:
            return "the start of fit, before its first step"
        return "the first training step" if self._steps == 1 else f"training step {self._steps:,}"

    def _counting(self, given: dict[str, Any]) -> Any:
        import keras

        def count(batch: int, logs: object) -> None:
            self._steps += 1

        # At the begin: a function for a step's end would make Keras wait for each step's results.
        counting = keras.callbacks.LambdaCallback(on_train_batch_begin=count)
        others = given.get("callbacks")
        if isinstance(others, keras.callbacks.CallbackList):
            others.append(counting)
            return others
        return [*(others if isinstance(others, list | tuple) else filter(None, [others])), counting]
