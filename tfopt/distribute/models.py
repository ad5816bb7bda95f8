"""Attach ``Step`` to the models that are created inside ``tfopt.distribute()``.

Such a model gets ``fit``, ``evaluate``, ``compile`` and other methods on the instance, which wrap
those of Keras. ``keras.Model`` is patched while the scope is open, to see which models are created.

Importing this module imports TensorFlow and Keras.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from tfopt.distribute.model_parts import (
    metrics_of,
    overrides,
    require_built_parts,
    unbuilt_parts,
)
from tfopt.distribute.shards import check_divisible, with_unknown_length
from tfopt.distribute.step import Step, split
from tfopt.distribute.verify import prove
from tfopt.distribute.whole_batch import padded, replicas_of
from tfopt.distribute.worker_files import redirect_callbacks, save_on_chief
from tfopt.distribute.workers import coordinated
from tfopt.errors import UserError
from tfopt.hooks import Shared, named_arguments, replaced
from tfopt.keras_internals import BUILD, dataset_of, stored, without_scaling
from tfopt.report.format import few
from tfopt.resume.peers import exchange_of

_CALLS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch")
_SAVES = ("save", "save_weights", "export")
_OWN = ("compile", "make_predict_function", "predict_on_batch", "predict_step")
_NAME = "_distributed"  # the attribute of a model, which Keras does not track


class DistributedModel:
    """The methods of one model that trains on several replicas.

    ``global_batch``: the default ``batch_size`` of ``fit`` for arrays.
    """

    def __init__(
        self, model: Any, strategy: Any, own_losses: str | None, verify: bool, global_batch: Any
    ) -> None:
        self.strategy = strategy
        self.verifies = verify
        self.global_batch = global_batch
        self.exchange = exchange_of(strategy)
        self.step = Step(model, own_losses, self.exchange)
        self.proof: Any = None
        """The verdict of ``verify``; None before ``fit``."""
        self._model = model

    def attach(self) -> None:
        """Set the methods on the model."""
        for name in _CALLS:
            self._put(name, functools.partial(self._call, name))
        if self.exchange is not None:  # all workers write to one path
            for name in _SAVES:
                self._put(name, functools.partial(self._save, name))
        for name in _OWN:
            self._put(name, getattr(self, f"_{name}"))
        for kind in ("train", "test"):
            self._put(f"make_{kind}_function", functools.partial(self._make_function, kind))
        self._put(BUILD, self._build)
        object.__setattr__(self._model, _NAME, self)

    def _put(self, name: str, method: Callable[..., Any]) -> None:
        @functools.wraps(getattr(self._model, name))
        def own(*args: Any, **kwargs: Any) -> Any:
            return method(*args, **kwargs)

        object.__setattr__(self._model, name, own)

    def plain(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call the method of the model's class."""
        return getattr(type(self._model), name)(self._model, *args, **kwargs)

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the model's class, with workers coordinated and ``fit`` verified."""
        plain = functools.partial(self.plain, name)
        with _numbers():
            if name.endswith("_on_batch"):
                return plain(*args, **kwargs)
            arguments = named_arguments(self._model, name, *args, **kwargs)
            workers: AbstractContextManager[None] = nullcontext()
            if self.exchange is not None:
                workers = coordinated(self.exchange, name, self._model, arguments)
            with workers:
                if name == "fit":
                    self._check_divisible(arguments)
                if self.exchange is not None:
                    self._prepare_for_workers(arguments)
                is_unproven = self.verifies and self.proof is None and self._model.compiled
                if name == "fit" and is_unproven:
                    self.proof = prove(self.step, arguments)
                return plain(**arguments)

    def _prepare_for_workers(self, arguments: dict[str, Any]) -> None:
        """Adapt the datasets and callbacks of a call to several workers."""
        redirect_callbacks(arguments.get("callbacks"), self.exchange)
        of_x = arguments.get("steps_per_epoch") or arguments.get("steps")
        for name, steps in (("x", of_x), ("validation_data", arguments.get("validation_steps"))):
            data = arguments.get(name)
            if isinstance(data, tf.data.Dataset) and not steps:
                arguments[name] = with_unknown_length(data, self.exchange.place.workers)

    def _check_divisible(self, arguments: dict[str, Any]) -> None:
        """Set the scope's batch in a call of ``fit``, and refuse what replicas cannot divide."""
        declared, given = self.global_batch, arguments.get("batch_size")
        optimizer = without_scaling(self._model.optimizer)
        # How many batches of ``fit`` an update takes, as ``tfopt.accumulate`` sets it.
        accumulated = getattr(optimizer, "gradient_accumulation_steps", None) or 1
        if given is None:
            if all(hasattr(leaf, "shape") for leaf in tree.flatten(arguments.get("x"))):  # arrays
                arguments["batch_size"] = declared
        elif declared not in (None, given, given * accumulated):
            raise UserError(
                "`fit` trains with another batch than `distribute` was given.",
                expected=f"batch_size={declared}, the global batch, or none",
                received=f"batch_size={given}",
                fix="leave batch_size out of fit, or give distribute no batch",
            )
        check_divisible(arguments, replicas_of(self.strategy))

    def _save(self, name: str, *args: Any, **kwargs: Any) -> Any:
        plain = functools.partial(getattr(type(self._model), name), self._model)
        return save_on_chief(plain, self.exchange, *args, **kwargs)

    def _compile(self, *args: Any, **kwargs: Any) -> None:
        bound = inspect.signature(keras.Model.compile).bind(self._model, *args, **kwargs)
        _require_compiled_inside(self._model, bound.arguments)
        with self.strategy.scope():
            self.plain("compile", *args, **kwargs)
        self.proof = None

    def _make_function(self, kind: str, force: bool = False) -> Any:
        name = f"{kind}_function"
        if force or getattr(self._model, name) is None:
            setattr(self._model, name, self.step.function(f"{kind}_step"))
        return getattr(self._model, name)

    def _make_predict_function(self, force: bool = False) -> Any:
        model = self._model
        if force or model.predict_function is None:
            self.plain("make_predict_function", True)
            model.predict_function = self.step.limited(model.predict_function)
        return model.predict_function

    def _predict_on_batch(self, x: Any) -> Any:
        """Return each output once, where Keras gives every replica the whole batch."""
        return self.plain("predict_on_batch", split(self.strategy, x)[0])

    def _predict_step(self, data: Any) -> Any:
        """Predict on a row of zeros where this replica has no examples, and drop its output."""
        first = next(leaf for leaf in tree.flatten(data) if leaf is not None)
        if first.shape[0] or not isinstance(first, tf.Tensor):
            return self.plain("predict_step", data)
        not_empty = tf.cast(tf.shape(first)[0] > 0, tf.int32)
        outputs = self.plain("predict_step", padded(data, 1 - not_empty))
        return tree.map_structure(lambda v: v[: tf.shape(v)[0] * not_empty], outputs)

    def _build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Build the model by the spec of the data, without reading them (keras#20585)."""
        model = self._model
        _require_trained_inside(model)
        if type(model).call is keras.Model.call:  # layers and a train_step, as in Keras's VAE
            require_built_parts(model, "inside the scope")
            return
        if iterator is not None:
            data_batch = _spec_of_a_part(iterator)
        inputs = {"iterator": iterator} if data_batch is None else {"data_batch": data_batch}
        try:
            self.plain(BUILD, **inputs)
        except UserError:
            raise
        except Exception:
            # A custom train_step may call the model with other arguments than Keras.
            are_built = all(getattr(metric, "built", True) for metric in metrics_of(model))
            if not overrides(model, "train_step") or unbuilt_parts(model) or not are_built:
                raise


def distributed(model: Any) -> DistributedModel | None:
    """Return the ``DistributedModel`` of a model; None if it was created outside a scope."""
    attached: DistributedModel | None = vars(model).get(_NAME)
    return attached


def skip_verification(model: Any) -> None:
    """Let ``fit`` begin without ``verify``, such as to measure a few steps."""
    attached = distributed(model)
    if attached is not None:
        attached.verifies = False


_open: list[tuple[Any, tuple[Any, ...]]] = []


@contextmanager
def attach_models(strategy: Any, *settings: Any) -> Iterator[None]:
    """Attach every model that is created under this strategy inside the block.

    ``settings``: the further arguments of ``DistributedModel``.
    """
    entry = (strategy, settings)
    with _models_watched(), _numbers():
        _open.append(entry)
        try:
            yield
        finally:
            _open.remove(entry)


@contextmanager
def _watch_models() -> Iterator[None]:
    """Patch Keras's classes to see which models are created and used."""
    kind = keras.Model
    # The class that defines compile(): Keras checks whether a model overrides it.
    trainer = next(base for base in kind.__mro__ if "compile" in vars(base))
    initialise, compile, build = kind.__init__, trainer.compile, getattr(kind, BUILD)

    @functools.wraps(initialise)
    def initialise_attached(self: Any, *args: Any, **kwargs: Any) -> None:
        initialise(self, *args, **kwargs)
        for strategy, settings in reversed(_open):
            if self.distribute_strategy is strategy and distributed(self) is None:
                DistributedModel(self, strategy, *settings).attach()
                break

    def checked(plain: Callable[..., Any], call: str) -> Callable[..., Any]:
        @functools.wraps(plain)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            _refuse_built_outside(self, call)
            return plain(self, *args, **kwargs)

        return method

    with (
        replaced(kind, __init__=initialise_attached),
        replaced(kind, **{BUILD: checked(build, "fit() or evaluate()")}),
        replaced(trainer, compile=checked(compile, "compile()")),
        # The default graph keeps this thread's scopes, and clear_session() would reset it.
        replaced(tf.compat.v1, reset_default_graph=lambda: None),
    ):
        yield


_models_watched = Shared(_watch_models)


def _variables_as_numbers() -> AbstractContextManager[None]:
    """Add ``float()`` and ``int()`` to variables of several devices, for callbacks.

    They often write ``float(optimizer.learning_rate)``; TensorFlow has only ``numpy()`` there.
    """

    def reader(number: type) -> Callable[[Any], Any]:
        return lambda variable: number(variable.numpy())

    return replaced(tf.distribute.DistributedValues, __float__=reader(float), __int__=reader(int))


_numbers = Shared(_variables_as_numbers)


def _refuse_built_outside(model: Any, call: str) -> None:
    if distributed(model) is not None or tf.distribute.get_strategy() not in [s for s, _ in _open]:
        return
    raise UserError(
        f"{call} inside tfopt.distribute(), but {model.name!r} was built outside and would train "
        "on one device.",
        expected="a model that is built inside the scope",
        received=f"{type(model).__name__} built before or after it",
        fix="with tfopt.distribute(): model = build(), or keras.models.load_model(path), and then "
        "model.compile(...)",
    )


def _require_compiled_inside(model: Any, arguments: dict[str, Any]) -> None:
    """Refuse optimizers and metrics that were created outside the scope."""
    kinds = keras.optimizers.Optimizer | keras.metrics.Metric
    outside = [
        f"{name}={type(value).__name__}(...)"
        for name in ("optimizer", "metrics", "weighted_metrics")
        for value in tree.flatten(arguments.get(name))
        if isinstance(value, kinds) and not all(map(_is_mirrored, value.variables))
    ]
    if outside:
        raise UserError(
            f"compile() of {model.name!r}, which trains under tfopt.distribute(), got objects "
            "from outside the scope.",
            expected="optimizers and metrics that are created inside the scope, or their names",
            received=", ".join(outside),
            fix='give them by name ("adam"), or create them in the scope: with '
            "replicas.strategy.scope(): model.compile(keras.optimizers.Adam(1e-4), ...)",
        )


def _is_mirrored(variable: Any) -> bool:
    return isinstance(stored(variable), tf.distribute.DistributedValues)


def _require_trained_inside(model: Any) -> None:
    """Refuse trainable weights that were created outside the scope."""
    outside = [v.path for v in model.trainable_variables if not _is_mirrored(v)]
    if outside:
        raise UserError(
            f"{model.name!r} was created inside tfopt.distribute(), but some of its trainable "
            "weights outside.",
            expected="a model with all trained layers created inside with tfopt.distribute():",
            received=f"{few(outside)}, created outside",
            fix="build or load these layers inside the scope; layers that are not trained (a "
            "teacher, a frozen base) may come from outside: layer.trainable = False",
        )


def _spec_of_a_part(epochs: Any) -> Any:
    """Return the spec of one replica's part of a batch; None if it is unknown."""

    def of_a_part(spec: Any) -> Any:
        spec = getattr(spec, "_value_specs", [spec])[0]
        # Keras's spec of a missing part, such as a generator's sample weights.
        return None if isinstance(spec, tf.OptionalSpec) else spec

    specs = tree.map_structure(of_a_part, dataset_of(epochs).element_spec)
    known = [spec for spec in tree.flatten(specs) if spec is not None]
    return specs if all(spec.shape.rank is not None for spec in known) else None
