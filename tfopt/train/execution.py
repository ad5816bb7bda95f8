"""Set how compiled steps are executed: by XLA, and how many per Python call."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tfopt.errors import UserError, keep_plain, require_count
from tfopt.job.model_checks import require_compiled
from tfopt.job.transform import Run, Transform
from tfopt.keras_internals import auto_jit_compile, compile_settings, layers_of
from tfopt.train.xla_cpu_max_pool import pools_tiles, tiled_max_pool
from tfopt.train.xla_flags import require_flags, set_xla_flags

if TYPE_CHECKING:
    import keras

JitCompile = bool | Literal["auto"] | None


def execution(
    model: keras.Model,
    *,
    jit_compile: JitCompile = None,
    steps_per_execution: int | None = None,
) -> keras.Model:
    """Change how a compiled model executes its steps, in place, and return that model.

    Optimizer state and metrics stay.

    Args:
        model: A compiled Keras 3 model.
        jit_compile: True, False or "auto" (Keras's choice); None keeps the current value.
        steps_per_execution: Training steps per call from Python. Batch callbacks are called
            once per execution. None keeps the current value.

    Raises:
        UserError: The model is not compiled, or a value is none of the above.

    Example:
        model.compile("adam", "mse")
        tfopt.execution(model, jit_compile=True, steps_per_execution=10)
    """
    _validate(jit_compile, steps_per_execution)
    require_compiled(model, "execution")
    settings = compile_settings(model)
    if jit_compile is not None:
        model.jit_compile = auto_jit_compile(model) if jit_compile == "auto" else jit_compile
        settings["jit_compile"] = model.jit_compile
    if steps_per_execution is not None:
        model.steps_per_execution = steps_per_execution
        settings["steps_per_execution"] = steps_per_execution
    # Traced functions hold the old settings.
    model.train_function = model.test_function = model.predict_function = None
    return model


@dataclass(frozen=True, repr=False)
class Execution(Transform):
    """XLA compilation, steps per execution, and XLA's own flags.

    Example:
        outcome = run(job, Execution(jit_compile=True, steps_per_execution=16))

    Attributes:
        jit_compile: Whether XLA compiles the step: True, False or "auto" (Keras's choice); None
            keeps the current value.
        steps_per_execution: Training steps per call from Python; None keeps the current value.
        xla: Flags such as ``--xla_gpu_enable_triton_gemm=false``, for the whole process. They
            change how XLA compiles, not whether it does.
    """

    jit_compile: JitCompile = None
    steps_per_execution: int | None = None
    xla: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        keep_plain(self)
        _validate(self.jit_compile, self.steps_per_execution)
        if self.xla is not None:
            flags = self.xla if isinstance(self.xla, list | tuple) else [self.xla]
            require_flags(flags)
            object.__setattr__(self, "xla", tuple(flags))

    def setup(self, run: Run) -> None:
        if not self.xla:
            return
        set_xla_flags(self.xla)
        import tensorflow as tf

        for_gpus = all(flag.startswith("--xla_gpu_") for flag in self.xla)
        if for_gpus and not tf.config.list_physical_devices("GPU"):
            run.note("the XLA flags are for GPUs, and there is none", acted=False)
        else:
            run.note(f"XLA with {' '.join(self.xla)}")

    @property
    def _mends_pooling(self) -> bool:
        """Return whether XLA's slow gradient of max pooling on a CPU is replaced."""
        import tensorflow as tf

        return self.jit_compile is True and not tf.config.get_visible_devices("GPU")

    def scope(self, run: Run) -> AbstractContextManager[None]:
        return tiled_max_pool() if self._mends_pooling else nullcontext()

    def attach(self, run: Run, model: keras.Model) -> None:
        if self._mends_pooling and any(map(pools_tiles, layers_of(model))):
            run.note("max pooling in a form that XLA runs fast on the CPU")

    def compile(self, run: Run, arguments: dict[str, Any]) -> dict[str, Any]:
        done, changed = [], dict(arguments)
        if self.jit_compile is not None:
            changed["jit_compile"] = self.jit_compile
            done.append(f"jit_compile={self.jit_compile}")
        if self.steps_per_execution is not None:
            changed["steps_per_execution"] = self.steps_per_execution
            done.append(f"{self.steps_per_execution} steps per execution")
        if done or not self.xla:
            run.note(", ".join(done) or "nothing to change", acted=bool(done))
        return changed


def _validate(jit_compile: object, steps_per_execution: object) -> None:
    if not (isinstance(jit_compile, bool) or jit_compile in (None, "auto")):
        raise UserError(
            "Invalid jit_compile.",
            expected='True, False, "auto" or None',
            received=repr(jit_compile),
        )
    if steps_per_execution is not None:
        require_count("steps_per_execution", steps_per_execution)
