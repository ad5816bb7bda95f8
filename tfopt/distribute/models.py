"""Let the models that are made under a strategy train by ``Step``, through methods of their own.

A model made inside ``tfopt.distribute()`` has its own ``fit``, ``evaluate``, ``compile`` and so on,
on the instance: they call Keras's with what its step needs. ``keras.Model`` is changed while the
scope is open, to see which models are made in it, and is left as it was.

Importing this module imports TensorFlow and Keras.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

import keras
import tensorflow as tf
from keras import tree

from tfopt.distribute.shards import refuse_what_cannot_be_split, until_all_have_ended
from tfopt.distribute.step import (
    Step,
    has_own,
    metrics_of,
    require_built_parts,
    split,
    unbuilt_parts,
)
from tfopt.distribute.verify import prove
from tfopt.distribute.whole_batch import padded, replicas_of
from tfopt.distribute.worker_files import divided, saved
from tfopt.distribute.workers import together
from tfopt.errors import UserError
from tfopt.hooks import Shared, replaced
from tfopt.keras_internals import BUILD, dataset_of, stored
from tfopt.resume.peers import exchange_of

_CALLS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch")
_SAVES = ("save", "save_weights", "export")
_OWN = ("compile", "make_predict_function", "predict_on_batch", "predict_step")
_NAME = "_distributed"  # among a model's attributes, unseen by Keras


@dataclass(frozen=True)
class Declared:
    """What a user has said of the models made in a scope."""

    own_losses: Literal["mean", "sum"] | None = None
    verify: bool = True
    global_batch: int | None = None
    """The batches that ``fit`` makes of arrays, where it is not given a size."""


class DistributedModel:
    """The methods of one model that trains on several replicas."""

    def __init__(self, model: Any, strategy: Any, declared: Declared) -> None:
        self.strategy = strategy
        self.declared = declared
        self.exchange = exchange_of(strategy)
        self.step = Step(model, declared.own_losses, self.exchange)
        self.proof: Any = None
        """The verdict of ``verify``, once it was asked."""
        self._model = model

    def attach(self) -> None:
        """Put the methods on the model."""
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
        """Call the method that the model's class has."""
        return getattr(type(self._model), name)(self._model, *args, **kwargs)

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call the model's own method, with what it needs in force and its errors named."""
        plain = functools.partial(getattr(type(self._model), name), self._model)
        with _numbers():
            if name.endswith("_on_batch"):
                return plain(*args, **kwargs)
            given = inspect.signature(plain).bind(*args, **kwargs)
            given.apply_defaults()
            workers: AbstractContextManager[None] = nullcontext()
            if self.exchange is not None:
                workers = together(self.exchange, name, self._model, given.arguments)
            with workers:
                if name == "fit":
                    self._refuse_to_split(given.arguments)
                if self.exchange is not None:
                    self._share_out(given.arguments)
                if name == "fit" and self._is_unproven():
                    self.proof = prove(self.step, given.arguments)
                return plain(*given.args, **given.kwargs)

    def _share_out(self, arguments: dict[str, Any]) -> None:
        """Replace the datasets and callbacks of a call by those for several workers."""
        divided(arguments.get("callbacks"), self.exchange)
        of_x = arguments.get("steps_per_epoch") or arguments.get("steps")
        for name, steps in (("x", of_x), ("validation_data", arguments.get("validation_steps"))):
            data = arguments.get(name)
            if isinstance(data, tf.data.Dataset) and not steps:
                arguments[name] = until_all_have_ended(data, self.exchange.place.workers)

    def _refuse_to_split(self, arguments: dict[str, Any]) -> None:
        """Refuse what replicas cannot share of a ``fit``, to which the scope's batch is given."""
        if arguments.get("batch_size") is None and _is_arrays(arguments.get("x")):
            arguments["batch_size"] = self.declared.global_batch
        refuse_what_cannot_be_split(self._model, arguments, replicas_of(self.strategy))

    def _is_unproven(self) -> bool:
        return self.declared.verify and self.proof is None and bool(self._model.compiled)

    def _save(self, name: str, *args: Any, **kwargs: Any) -> Any:
        plain = functools.partial(getattr(type(self._model), name), self._model)
        return saved(plain, self.exchange, *args, **kwargs)

    def _compile(self, *args: Any, **kwargs: Any) -> None:
        given = inspect.signature(keras.Model.compile).bind(self._model, *args, **kwargs).arguments
        _require_made_inside(self._model, given)
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
        """Return each output once: Keras hands every replica the whole batch."""
        return self.plain("predict_on_batch", split(self.strategy, x)[0])

    def _predict_step(self, data: Any) -> Any:
        """Predict, where this replica has no examples, of a row of zeros, and leave that out."""
        first = next(leaf for leaf in tree.flatten(data) if leaf is not None)
        if first.shape[0] or not isinstance(first, tf.Tensor):
            return self.plain("predict_step", data)
        there = tf.cast(tf.shape(first)[0] > 0, tf.int32)
        outputs = self.plain("predict_step", padded(data, 1 - there))
        return tree.map_structure(lambda v: v[: tf.shape(v)[0] * there], outputs)

    def _build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Build the model by what the data say of themselves; nothing is read (keras#20585)."""
        model = self._model
        _require_trained_inside(model)
        if type(model).call is keras.Model.call:  # parts and a train_step, as a VAE of the guides
            require_built_parts(model, "inside the scope")
            return
        if iterator is not None:
            data_batch = _spec_of_a_part(iterator)
        known = {"iterator": iterator} if data_batch is None else {"data_batch": data_batch}
        try:
            self.plain(BUILD, **known)
        except UserError:
            raise
        except Exception:
            # A step of the user's own may call the model otherwise than Keras would.
            are_built = all(getattr(each, "built", True) for each in metrics_of(model))
            if not has_own(model, "train_step") or unbuilt_parts(model) or not are_built:
                raise


def distributed(model: Any) -> DistributedModel | None:
    """Return what trains a model on several replicas; None where it was made elsewhere."""
    found: DistributedModel | None = vars(model).get(_NAME)
    return found


def leave_proof_out(model: Any) -> None:
    """Let ``fit`` begin without ``verify``, as where a few steps are measured."""
    found = distributed(model)
    if found is not None:
        found.declared = replace(found.declared, verify=False)


_open: list[tuple[Any, Declared]] = []


@contextmanager
def models_attached(strategy: Any, declared: Declared) -> Iterator[None]:
    """Attach every model that is made under this strategy inside the block."""
    entry = (strategy, declared)
    with _models_seen(), _numbers():
        _open.append(entry)
        try:
            yield
        finally:
            _open.remove(entry)


@contextmanager
def _see_models() -> Iterator[None]:
    """Let Keras's classes say which models are made and used."""
    kind = keras.Model
    # Keras asks whether a model's compile is another one than this class's.
    compiles = next(each for each in kind.__mro__ if "compile" in vars(each))
    made, compiled, built = kind.__init__, compiles.compile, getattr(kind, BUILD)

    @functools.wraps(made)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        for strategy, declared in reversed(_open):
            if self.distribute_strategy is strategy and distributed(self) is None:
                DistributedModel(self, strategy, declared).attach()
                break

    def checked(plain: Callable[..., Any], call: str) -> Callable[..., Any]:
        @functools.wraps(plain)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            _refuse_built_outside(self, call)
            return plain(self, *args, **kwargs)

        return method

    with (
        replaced(kind, __init__=initialise),
        replaced(kind, **{BUILD: checked(built, "fit() or evaluate()")}),
        replaced(compiles, compile=checked(compiled, "compile()")),
        # On which this thread's scopes are kept: keras.backend.clear_session() may come inside.
        replaced(tf.compat.v1, reset_default_graph=lambda: None),
    ):
        yield


_models_seen = Shared(_see_models)


def _variables_as_numbers() -> AbstractContextManager[None]:
    """Let callbacks write ``float(optimizer.learning_rate)``, as on one device.

    TensorFlow's variables of several devices only know ``numpy()``.
    """

    def reader(number: type) -> Callable[[Any], Any]:
        return lambda variable: number(variable.numpy())

    return replaced(tf.distribute.DistributedValues, __float__=reader(float), __int__=reader(int))


_numbers = Shared(_variables_as_numbers)


def _refuse_built_outside(model: Any, call: str) -> None:
    if distributed(model) is not None or tf.distribute.get_strategy() not in [s for s, _ in _open]:
        return
    raise UserError(
        f"{call} inside tfopt.distribute() of a model that was built outside: {model.name!r} "
        "would train on one device.",
        expected="a model whose weights were made inside the scope",
        received=f"{type(model).__name__} built before or behind it",
        fix="with tfopt.distribute(): model = build(), or keras.models.load_model(path), and then "
        "model.compile(...)",
    )


def _require_made_inside(model: Any, given: dict[str, Any]) -> None:
    """Refuse optimizers and metrics that have their variables elsewhere."""
    outside = [
        f"{argument}={type(each).__name__}(...)"
        for argument in ("optimizer", "metrics", "weighted_metrics")
        for each in tree.flatten(given.get(argument))
        if _is_made_elsewhere(each)
    ]
    if outside:
        raise UserError(
            f"compile() of {model.name!r}, which trains under tfopt.distribute(), with what was "
            "made outside.",
            expected="optimizers and metrics that are made inside the scope, as names or objects",
            received=", ".join(outside),
            fix='give them by name ("adam"), or make them in the scope: with '
            "replicas.strategy.scope(): model.compile(keras.optimizers.Adam(1e-4), ...)",
        )


def _is_made_elsewhere(each: Any) -> bool:
    kinds = keras.optimizers.Optimizer | keras.metrics.Metric
    return isinstance(each, kinds) and not all(map(_is_mirrored, each.variables))


def _is_mirrored(variable: Any) -> bool:
    return isinstance(stored(variable), tf.distribute.DistributedValues)


def _require_trained_inside(model: Any) -> None:
    """Refuse weights of parts that were made outside the scope."""
    outside = [v.path for v in model.trainable_variables if not _is_mirrored(v)]
    if outside:
        more = f" and {len(outside) - 5} more" if len(outside) > 5 else ""
        raise UserError(
            f"{model.name!r} was made inside tfopt.distribute(), and weights that it would train "
            "outside.",
            expected="the model with all parts that are trained made inside "
            "with tfopt.distribute():",
            received=f"{', '.join(outside[:5])}{more}, made outside",
            fix="build or load these parts inside the scope; a part that is only read (a teacher, "
            "a frozen base) may come from outside: part.trainable = False",
        )


def _is_arrays(x: Any) -> bool:
    return all(hasattr(leaf, "shape") for leaf in tree.flatten(x))


def _spec_of_a_part(epochs: Any) -> Any:
    """Return the spec of one replica's part of a batch; None where the data do not know it."""

    def of_a_part(spec: Any) -> Any:
        spec = getattr(spec, "_value_specs", [spec])[0]
        # Keras's own for what is not given, such as a generator's sample weights.
        return None if isinstance(spec, tf.OptionalSpec) else spec

    specs = tree.map_structure(of_a_part, dataset_of(epochs).element_spec)
    there = [each for each in tree.flatten(specs) if each is not None]
    return specs if all(each.shape.rank is not None for each in there) else None
