"""Read an existing compiled Keras 3 model into a Job.

The given model is read, never changed. Its learning-rate schedule goes on where it was, and one
that a transform sets begins with the new training. Whatever cannot carry over is an error here,
not in the middle of a run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfopt.errors import UserError
from tfopt.job.parts import Data
from tfopt.job.rebuild import blueprint

if TYPE_CHECKING:
    import keras


def fields_of_model(model: keras.Model, data: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the Job that trains a copy of a compiled model; see Job.from_model."""
    import keras

    plan = blueprint(model)
    compile_arguments = compile_factory(model)
    if type(model).compile is not keras.Model.compile:
        raise UserError(
            f"{type(model).__name__} overrides compile(), so its arguments cannot be read back.",
            expected="Keras's own compile()",
            fix="use tfopt.Job(build=..., data=..., compile=lambda: {...}) with your arguments",
        )
    plan.build()  # found out now, not half-way through a run
    if "compile" in settings or "build" in settings:
        raise UserError(
            "Job.from_model takes build and compile from the model.",
            received=", ".join(sorted({"compile", "build"} & set(settings))),
            fix="use tfopt.Job(build=..., data=..., compile=...) to give your own",
        )
    if isinstance(data, Data):
        parts = data
    else:
        parts = Data(*data) if _is_train_and_test(data, model) else Data(train=data)
    return {
        "build": plan.build,
        "data": lambda: parts,
        "compile": compile_arguments,
        "restore": _OptimizerState.of(model),
        "name": model.name,
        **settings,
    }


def compile_factory(model: keras.Model) -> Callable[[], dict[str, Any]]:
    """Return a function that makes the model's compile arguments: new optimizer, new metrics.

    Optimizers and metrics are copied by their own configuration, so nothing needs to be
    registered; losses, functions and names pass as they are.
    """
    import keras

    if not getattr(model, "compiled", False):
        raise UserError(
            f"The model {model.name!r} is not compiled.",
            expected="a model on which compile(optimizer=..., loss=...) was called",
            received="compiled=False",
            fix="call model.compile(...) first, or use tfopt.Job(build=..., compile=...)",
        )
    _require_no_stand_in(model)
    arguments = dict(model._compile_config.config)
    if isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer):
        # compile() wrapped it by a policy that the rebuilt model need not have.
        arguments["optimizer"] = model.optimizer
    # compile() resolved "auto" for the scope the model was born in; elsewhere it may differ.
    if arguments.get("jit_compile") == model._resolve_auto_jit_compile():
        arguments["jit_compile"] = "auto"
    _copy(arguments)  # an object that cannot be copied is found out now
    return lambda: {key: _copy(value) for key, value in arguments.items()}


def carry_compile(
    source: keras.Model, target: keras.Model, *, loss_scaled: bool = False
) -> keras.Model:
    """Compile ``target`` as ``source`` is compiled, optimizer state included, and return it."""
    if getattr(source, "compiled", False):
        arguments = compile_factory(source)()
        if loss_scaled:
            arguments["optimizer"] = with_loss_scaling(arguments["optimizer"])
        target.compile(**arguments)
        _OptimizerState.of(source)(target)
    return target


def with_loss_scaling(optimizer: Any) -> keras.optimizers.Optimizer:
    """Return the optimizer inside a LossScaleOptimizer, as float16 needs it."""
    import keras

    optimizer = keras.optimizers.get(optimizer)
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return optimizer
    return keras.optimizers.LossScaleOptimizer(optimizer, name="loss_scale_optimizer")


@dataclass(frozen=True)
class _OptimizerState:
    """Put optimizer variables back, whether or not the optimizer is now loss-scaled."""

    values: tuple[Any, ...]
    rate: Any
    """The rate or schedule that the steps taken so far belong to."""
    loss_scale: tuple[Any, ...] = ()
    """Where dynamic loss scaling stood; empty without it."""

    @classmethod
    def of(cls, model: keras.Model) -> _OptimizerState:
        """Read the state of a model's optimizer; one that took no step has none."""
        optimizer = getattr(model, "optimizer", None)
        if optimizer is None or not optimizer.built:
            return cls((), None)
        values = tuple(variable.numpy() for variable in _state_variables(optimizer))
        scale = tuple(variable.numpy() for variable in _scale_variables(optimizer))
        return cls(values, _unscaled(optimizer)._learning_rate, scale)

    def __call__(self, model: keras.Model) -> None:
        if not self.values:
            return
        optimizer = model.optimizer
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        variables = _state_variables(optimizer)
        if len(variables) != len(self.values):
            raise UserError(
                "The optimizer's state does not fit the rebuilt model.",
                expected=f"{len(variables)} variables",
                received=f"{len(self.values)}",
                fix="give Job.from_model a model whose trainable layers have not changed "
                "since compile()",
            )
        for variable, value in zip(variables, self.values, strict=True):
            variable.assign(value)
        for variable, value in zip(_scale_variables(optimizer), self.loss_scale, strict=False):
            variable.assign(value)
        self._begin_new_schedule(_unscaled(optimizer))

    def _begin_new_schedule(self, optimizer: Any) -> None:
        """Move a schedule that LearningRate has set since to the steps ahead.

        The step count itself stays: Adam and its kin correct their moments by it.
        """
        import keras

        schedule = optimizer._learning_rate
        taken = int(optimizer.iterations)
        is_ours = type(schedule) is keras.optimizers.schedules.CosineDecay
        if is_ours and schedule is not self.rate and taken:
            optimizer.learning_rate = _starting_at(taken, schedule)


def _starting_at(step: int, schedule: Any) -> keras.optimizers.schedules.CosineDecay:
    """Return the same schedule begun at a later step, in Keras's own class: files load without us.

    Warm-up is a straight line, and is drawn from step 0 so as to pass its start at ``step``.
    Its rounding error grows with the steps taken: 1e-4 of the peak where they are a thousand
    warm-ups.
    """
    import keras

    config = schedule.get_config()
    start, rising = config["initial_learning_rate"], config["warmup_steps"]
    if rising:
        start -= (config["warmup_target"] - start) * step / rising
    else:
        config["warmup_target"] = start
    config.update(initial_learning_rate=start, warmup_steps=step + rising)
    return keras.optimizers.schedules.CosineDecay(**config)


def _unscaled(optimizer: Any) -> Any:
    """Return the optimizer that takes the steps, inside loss scaling if there is any."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def _scale_variables(optimizer: Any) -> list[Any]:
    import keras

    if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return []
    return [optimizer.step_counter, optimizer.dynamic_scale]


def _state_variables(optimizer: Any) -> list[Any]:
    """Return what the optimizer has learnt, without its rate, which a transform may change."""
    inner = _unscaled(optimizer)
    return [variable for variable in inner.variables if variable is not inner._learning_rate]


def _copy(value: Any) -> Any:
    import keras

    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copy(item) for item in value)
    if isinstance(value, keras.optimizers.Optimizer):
        return _copy_optimizer(value)
    if isinstance(value, keras.metrics.Metric):
        _require_whole_configuration(value)
        return _from_own_config(value)
    # Losses hold no state, and some (Huber) lose their arguments in get_config().
    return value


def _copy_optimizer(optimizer: Any) -> Any:
    import keras

    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return keras.optimizers.LossScaleOptimizer(
            _copy_optimizer(optimizer.inner_optimizer),
            initial_scale=optimizer.initial_scale,
            dynamic_growth_steps=optimizer.dynamic_growth_steps,
            name=optimizer.name,
        )
    copy = _with_own_schedule(optimizer)
    if getattr(optimizer, "_exclude_from_weight_decay", None):
        raise UserError(
            "The optimizer excludes variables of this very model from weight decay.",
            expected="exclude_from_weight_decay(var_names=[...]), which means any model's",
            fix="name them, or describe the training with tfopt.Job(build=..., compile=...)",
        )
    pattern = getattr(optimizer, "_exclude_from_weight_decay_pattern", None)
    if pattern is not None:
        copy.exclude_from_weight_decay(var_names=[pattern.pattern])
    return copy


def _with_own_schedule(optimizer: Any) -> Any:
    """Copy an optimizer but share its schedule: a pure function, whatever its class.

    Deserialising would ask for it to be registered, and all that it holds besides.
    """
    import keras

    schedules = keras.optimizers.schedules
    schedule = optimizer._learning_rate
    if not isinstance(schedule, schedules.LearningRateSchedule):
        return _from_own_config(optimizer)
    # Only an optimizer made with a schedule can be given another one without leaving a variable.
    stand_in = schedules.serialize(schedules.ExponentialDecay(0.0, 1, 1.0))
    copy = _from_own_config(optimizer, learning_rate=stand_in)
    copy.learning_rate = schedule
    return copy


def _from_own_config(value: Any, **changes: Any) -> Any:
    import keras

    custom = {type(value).__name__: type(value)}
    function = getattr(value, "fn", None) or getattr(value, "_fn", None)
    if function is not None and hasattr(function, "__name__"):
        custom[function.__name__] = function
    try:
        with keras.saving.custom_object_scope(custom):
            return type(value).from_config({**value.get_config(), **changes})
    except Exception as error:
        raise UserError(
            f"{type(value).__name__} in compile(...) cannot be copied: {error}",
            expected="get_config() and from_config() that round-trip",
            fix="define them on the class, or use tfopt.Job(compile=your_function, ...)",
        ) from error


def _require_whole_configuration(value: Any) -> None:
    """Refuse a user's class whose configuration leaves out a setting it takes.

    It would be copied with that setting's default, and nobody would notice.
    """
    if type(value).__module__.split(".")[0] == "keras":
        return
    taken = inspect.signature(type(value).__init__).parameters.values()
    named = [
        each.name for each in taken if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    missing = sorted({*named[1:]} - {*value.get_config()})
    if missing:
        raise UserError(
            f"{type(value).__name__} in compile(...) does not tell its whole configuration.",
            expected=f"get_config() with {', '.join(missing)}, which __init__ takes",
            received=", ".join(value.get_config()),
            fix="add it to get_config() of the class, or use tfopt.Job(compile=your_function, ...)",
        )


def _require_no_stand_in(model: keras.Model) -> None:
    """Refuse a ``compute_loss`` on the object itself: a model made after it would lack it."""
    if "compute_loss" in vars(model):
        raise UserError(
            f"{model.name!r} learns by a compute_loss that was put on it: a model made after it "
            "would learn without.",
            expected="a model that computes its loss as its class does",
            received=type(vars(model)["compute_loss"]).__name__,
            fix="define compute_loss in the class of the model",
        )


def _is_train_and_test(data: Any, model: keras.Model) -> bool:
    """Return whether this is what load_data() returns, and not two inputs with two targets."""
    is_pair_of_pairs = isinstance(data, tuple) and len(data) == 2 and all(map(_is_x_and_y, data))
    if not is_pair_of_pairs:
        return False
    # A subclassed model does not know its inputs; examples of one part are as many as each other.
    has_one_input = len(getattr(model, "inputs", None) or ()) == 1
    return has_one_input or data[0][0].shape[0] != data[1][0].shape[0]


def _is_x_and_y(part: Any) -> bool:
    if not isinstance(part, tuple) or len(part) != 2:
        return False
    return all(getattr(array, "shape", ()) for array in part) and (
        part[0].shape[0] == part[1].shape[0]
    )
