"""Describe an existing compiled Keras 3 model as a Job.

The model is not changed. Its optimizer state and learning-rate schedule carry over; under a
schedule that a transform sets, the optimizer starts anew. What cannot carry over is an error here,
not in the middle of a run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tfopt import keras_internals as internals
from tfopt.errors import UserError
from tfopt.job.model_checks import require_compiled
from tfopt.job.parts import Data
from tfopt.job.rebuild import blueprint

if TYPE_CHECKING:
    import keras


def fields_of_model(model: keras.Model, data: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a Job that trains copies of a compiled model; see Job.from_model."""
    build = blueprint(model)
    compile_arguments = compile_factory(model)
    _require_plain_compile(type(model))
    build()  # raises now, not in the middle of a run
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


def _require_plain_compile(kind: type[keras.Model]) -> None:
    """Raise if ``compile()`` of a class takes what Keras's own does not, which is not kept."""
    import keras

    plain, own = (inspect.signature(each.compile).parameters for each in (keras.Model, kind))
    # A KerasHub task has defaults of its own, and **kwargs.
    further = [p.name for p in own.values() if p.name not in plain and p.kind != p.VAR_KEYWORD]
    if further:
        raise UserError(
            f"{kind.__name__}.compile() takes {', '.join(further)}, which cannot be read back.",
            expected="the arguments of Keras's own compile()",
            fix="use tfopt.Job(build=..., data=..., compile=lambda: {...}) with your arguments",
        )


def compile_factory(model: keras.Model) -> Callable[[], dict[str, Any]]:
    """Return a function that returns the model's compile arguments: new optimizer, new metrics.

    Optimizers and metrics are copied by their configuration and need no registration; losses,
    functions and names are passed on.
    """
    import keras

    require_compiled(model, "Job.from_model")
    arguments = dict(internals.compile_settings(model))
    if isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer):
        # compile() wrapped it by the policy, which the rebuilt model need not have.
        arguments["optimizer"] = model.optimizer
    # compile() resolved "auto" for the scope of this model; elsewhere it may differ.
    if arguments.get("jit_compile") == internals.auto_jit_compile(model):
        arguments["jit_compile"] = "auto"

    def copied() -> dict[str, Any]:
        return dict(keras.tree.map_structure(_copy, arguments))

    copied()  # raises now for an object that cannot be copied
    return copied


def state_of(model: keras.Model) -> Callable[[keras.Model], None]:
    """Return a function that sets another model's optimizer to the state of this one's."""
    import keras

    source = getattr(model, "optimizer", None)
    if source is None or not source.built:
        return lambda other: None  # it has no state
    slots, scale = (tuple(variable.numpy() for variable in group) for group in _variables(source))
    rate = internals.learning_rate_of(internals.without_scaling(source))

    def restore(other: keras.Model) -> None:
        optimizer = other.optimizer
        now = internals.learning_rate_of(internals.without_scaling(optimizer))
        if isinstance(now, keras.optimizers.schedules.LearningRateSchedule) and now is not rate:
            return
        if not optimizer.built:
            optimizer.build(other.trainable_variables)
        variables, scaling = _variables(optimizer)
        if len(variables) != len(slots):
            raise UserError(
                "The optimizer's state does not fit the rebuilt model.",
                expected=f"{len(variables)} variables",
                received=f"{len(slots)}",
                fix="compile the model again if its trainable layers have changed",
            )
        # A transform's dtype policy may add loss scaling, or remove it.
        pairs = (*zip(variables, slots, strict=True), *zip(scaling, scale, strict=False))
        for variable, value in pairs:
            variable.assign(value)

    return restore


def _variables(optimizer: Any) -> tuple[list[Any], list[Any]]:
    """Return the optimizer's variables without its learning rate, and those of loss scaling."""
    inner = internals.without_scaling(optimizer)
    rate = internals.learning_rate_of(inner)
    slots = [variable for variable in inner.variables if variable is not rate]
    scaled = inner is not optimizer
    return slots, [optimizer.step_counter, optimizer.dynamic_scale] if scaled else []


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
        # Losses have no state, and some (Huber) lose their arguments in get_config().
        return value
    # A schedule is shared: it is a pure function, and a copy would need it registered.
    rate = internals.learning_rate_of(value)
    shares = isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)
    copy = _from_own_config(value, **({"learning_rate": rate} if shares else {}))
    # The names of exclude_from_weight_decay carry over; its variables are this model's.
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
    """Raise for a custom class whose get_config() lacks an argument of __init__."""
    if type(metric).__module__.partition(".")[0] == "keras":
        return
    parameters = inspect.signature(metric.__init__).parameters.values()
    named = {p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    if missing := sorted(named - set(metric.get_config())):
        raise UserError(
            f"{type(metric).__name__} in compile(...) has an incomplete get_config().",
            expected=f"get_config() with {', '.join(missing)}, which __init__ takes",
            fix="add it to get_config() of the class, or use tfopt.Job(compile=your_function, ...)",
        )


def _is_train_and_test(data: Any, model: keras.Model) -> bool:
    """Return whether ``data`` is what load_data() returns, and not two inputs with two targets."""
    if isinstance(data, tuple | list) and data and all(hasattr(x, "element_spec") for x in data):
        return len(data) == 2
    pairs = [data, *data] if isinstance(data, tuple) else [data]
    is_pair_of_pairs = all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs)
    return is_pair_of_pairs and len(getattr(model, "inputs", None) or [None]) == 1
