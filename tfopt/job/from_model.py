"""Read an existing compiled Keras 3 model into a Job.

The given model is read, never changed. Its optimizer and its learning-rate schedule go on where
they were; under a schedule that a transform sets the optimizer begins anew. Whatever cannot carry
over is an error here, not in the middle of a run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tfopt import keras_internals as internals
from tfopt.errors import UserError
from tfopt.job.parts import Data
from tfopt.job.rebuild import blueprint, require_compiled

if TYPE_CHECKING:
    import keras


def fields_of_model(model: keras.Model, data: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the Job that trains a copy of a compiled model; see Job.from_model."""
    import keras

    build = blueprint(model)
    compile_arguments = compile_factory(model)
    if type(model).compile is not keras.Model.compile:
        raise UserError(
            f"{type(model).__name__} overrides compile(), so its arguments cannot be read back.",
            expected="Keras's own compile()",
            fix="use tfopt.Job(build=..., data=..., compile=lambda: {...}) with your arguments",
        )
    build()  # found out now, not half-way through a run
    if isinstance(data, Data):
        parts = data
    else:
        parts = Data(*data) if _is_train_and_test(data, model) else Data(train=data)
    return dict(
        build=build,
        data=lambda: parts,
        compile=compile_arguments,
        restore=state_of(model),
        **{"name": model.name, **settings},
    )


def compile_factory(model: keras.Model) -> Callable[[], dict[str, Any]]:
    """Return a function that makes the model's compile arguments: new optimizer, new metrics.

    Optimizers and metrics are copied by their own configuration, so nothing needs to be
    registered; losses, functions and names pass as they are.
    """
    import keras

    require_compiled(model, "Job.from_model")
    arguments = dict(internals.compile_settings(model))
    if isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer):
        # compile() wrapped it by a policy that the rebuilt model need not have.
        arguments["optimizer"] = model.optimizer
    # compile() resolved "auto" for the scope the model was born in; elsewhere it may differ.
    if arguments.get("jit_compile") == internals.auto_jit_compile(model):
        arguments["jit_compile"] = "auto"

    def copied() -> dict[str, Any]:
        return dict(keras.tree.map_structure(_copy, arguments))

    copied()  # an object that cannot be copied is found out now
    return copied


def state_of(model: keras.Model) -> Callable[[keras.Model], None]:
    """Return a function that gives another model's optimizer the state of this one's."""
    import keras

    source = getattr(model, "optimizer", None)
    if source is None or not source.built:
        return lambda other: None  # it took no step
    learnt, scale = (tuple(each.numpy() for each in some) for some in _variables(source))
    rate = internals.learning_rate_of(_unscaled(source))

    def restore(other: keras.Model) -> None:
        optimizer = other.optimizer
        now = internals.learning_rate_of(_unscaled(optimizer))
        if isinstance(now, keras.optimizers.schedules.LearningRateSchedule) and now is not rate:
            return
        if not optimizer.built:
            optimizer.build(other.trainable_variables)
        variables, scaling = _variables(optimizer)
        if len(variables) != len(learnt):
            raise UserError(
                "The optimizer's state does not fit the rebuilt model.",
                expected=f"{len(variables)} variables",
                received=f"{len(learnt)}",
                fix="compile the model again where its trainable layers have changed",
            )
        # A policy that a transform sets may add loss scaling, or take it away.
        pairs = (*zip(variables, learnt, strict=True), *zip(scaling, scale, strict=False))
        for variable, value in pairs:
            variable.assign(value)

    return restore


def _unscaled(optimizer: Any) -> Any:
    """Return the optimizer that takes the steps, inside loss scaling if there is any."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def _variables(optimizer: Any) -> tuple[list[Any], list[Any]]:
    """Return what the optimizer has learnt, without its rate, and those of its loss scaling."""
    inner = _unscaled(optimizer)
    rate = internals.learning_rate_of(inner)
    learnt = [variable for variable in inner.variables if variable is not rate]
    scaled = inner is not optimizer
    return learnt, [optimizer.step_counter, optimizer.dynamic_scale] if scaled else []


def _copy(value: Any) -> Any:
    import keras

    if isinstance(value, keras.optimizers.LossScaleOptimizer):
        return keras.optimizers.LossScaleOptimizer(
            _copy(value.inner_optimizer),
            initial_scale=value.initial_scale,
            dynamic_growth_steps=value.dynamic_growth_steps,
            name=value.name,
        )
    if isinstance(value, keras.metrics.Metric):
        _require_whole_configuration(value)
        return _from_own_config(value)
    if not isinstance(value, keras.optimizers.Optimizer):
        # Losses hold no state, and some (Huber) lose their arguments in get_config().
        return value
    # A schedule is shared: a pure function, which would have to be registered to be copied.
    rate = internals.learning_rate_of(value)
    shares = isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)
    copy = _from_own_config(value, **({"learning_rate": rate} if shares else {}))
    # Of exclude_from_weight_decay the names go over; variables are this very model's.
    copy.exclude_from_weight_decay(var_names=internals.names_without_decay(value))
    return copy


def _from_own_config(value: Any, **changes: Any) -> Any:
    import keras

    custom = {type(value).__name__: type(value)}
    function = internals.function_of(value)
    if hasattr(function, "__name__"):
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


def _require_whole_configuration(metric: Any) -> None:
    """Refuse a user's class that would be copied with the default of a setting it leaves out."""
    if type(metric).__module__.partition(".")[0] == "keras":
        return
    taken = inspect.signature(metric.__init__).parameters.values()
    named = {
        each.name for each in taken if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    }
    if missing := sorted(named - set(metric.get_config())):
        raise UserError(
            f"{type(metric).__name__} in compile(...) does not tell its whole configuration.",
            expected=f"get_config() with {', '.join(missing)}, which __init__ takes",
            fix="add it to get_config() of the class, or use tfopt.Job(compile=your_function, ...)",
        )


def _is_train_and_test(data: Any, model: keras.Model) -> bool:
    """Return whether this is what load_data() returns, and not two inputs with two targets."""
    pairs = [data, *data] if isinstance(data, tuple) else [data]
    is_pair_of_pairs = all(isinstance(each, tuple) and len(each) == 2 for each in pairs)
    return is_pair_of_pairs and len(getattr(model, "inputs", None) or [None]) == 1
