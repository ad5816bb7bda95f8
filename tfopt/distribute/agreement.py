"""What all workers must have alike before they train together, compared through TensorFlow's store.

Guarantees: each worker gets what every other one has told under the same number, or an error that
names who did not tell it in time. All workers compare all, so a difference is the same error on
each.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

from tfopt.distribute.shards import all_of, is_names, policy_of, reads_python, shuffle_seeds
from tfopt.errors import UserError, WorkerMissing
from tfopt.job.cluster_place import ClusterPlace, addresses_of

# Whether all workers were given the same data, told by a few of the numbers in them.
#
# What is shared out by data, or by files, must be whole on every worker: of data that somebody
# has shared out already, each worker would drop most of its part, silently. Guarantees: only a
# few examples are looked at, and nothing that is trained on is used up or put into another order;
# floating point numbers may differ in their last digits. What a function of ``map`` or
# ``interleave`` makes is not seen, nor what is random in an input: of what Python code yields,
# the targets are compared where there are any.

_EXAMPLES = 16
# What a dataset's own steps take of it, by TensorFlow's names for their settings.
_SETTINGS = {
    "_RangeDataset": ("_start", "_stop", "_step"),
    "_ShardDataset": ("_num_shards", "_index"),
    "_SkipDataset": ("_count",),
    "_TakeDataset": ("_count",),
}


def content_of(data: Any) -> Any:
    """As JSON; None where nothing can be told, or the workers' data are their own."""
    import tensorflow as tf

    if isinstance(data, tf.data.Dataset):
        return None if policy_of(data) == "OFF" else content_of_dataset(data)
    if isinstance(data, Mapping):
        return _told({str(key): content_of(each) for key, each in data.items()})
    if isinstance(data, list | tuple):
        if data and all(isinstance(each, int | float) for each in data):
            return _content(list(data))
        return _told(dict(enumerate(map(content_of, data))))
    if hasattr(data, "iloc") or (hasattr(data, "shape") and hasattr(data, "dtype")):
        return _content(data)
    return None


def content_of_batches(batches: Sequence[Any]) -> Any:
    """Of batches as Keras has them from Python code: their targets, or all where there are none."""
    parts = [
        batch[1] if isinstance(batch, tuple) and len(batch) > 1 and batch[1] is not None else batch
        for batch in batches
    ]
    return content_of(parts)


def content_of_dataset(dataset: Any) -> Any:
    """What its sources hold, and which part of them it takes."""
    steps = list(all_of(dataset))
    told: dict[Any, Any] = {}
    for number, each in enumerate(steps):
        name = type(each).__name__
        if name in _SETTINGS:
            settings = [_number(getattr(each, setting, None)) for setting in _SETTINGS[name]]
            told[f"{name} {number}"] = settings
        elif name in ("_TensorSliceDataset", "_TensorDataset"):
            sources = [each for each in each._tensors if hasattr(each, "numpy")]
            of_files = name == "_TensorSliceDataset" and is_names(each)
            content = [_names(source) if of_files else _content(source) for source in sources]
            told[f"{name} {number}"] = content
    if len(steps) > 1 and type(steps[-2]).__name__ == "_FlatMapDataset" and reads_python(dataset):
        told["generator"] = _of_generator(steps[-2])
    return _told(told)


def _told(parts: Mapping[Any, Any]) -> Any:
    there = {str(key): each for key, each in parts.items() if each is not None}
    return there or None


def _number(value: Any) -> int | None:
    return int(value.numpy()) if hasattr(value, "numpy") else None


def _names(names: Any) -> str:
    # The same files may lie elsewhere on another machine.
    return _digest(repr([os.path.basename(name) for name in names.numpy().ravel().tolist()]))


def _content(values: Any) -> Any:
    """A few rows from all over; None of what has no rows."""
    import numpy as np
    import tensorflow as tf

    if isinstance(values, tf.SparseTensor):
        values = values.values
    shape = (len(values),) if isinstance(values, list) else tuple(values.shape)
    if getattr(values, "dtype", None) in (tf.variant, tf.resource) or 0 in shape[:1]:
        return None
    if shape:
        at = np.unique(np.linspace(0, shape[0] - 1, _EXAMPLES).astype(int))
        values = _rows(values, at)
    elif isinstance(values, tf.Tensor | tf.Variable):
        values = values.numpy()
    values = np.asarray(values)
    if values.dtype.kind in "OSU":
        return _digest(repr(values.tolist()))
    if values.dtype.kind in "iub":
        return _digest(repr(values.shape) + hashlib.sha256(values.tobytes()).hexdigest())
    return _sizes(values)


def _rows(values: Any, at: Any) -> Any:
    import tensorflow as tf

    if hasattr(values, "iloc"):
        return values.iloc[at]
    if isinstance(values, tf.Tensor | tf.Variable):
        return tf.gather(values, at).numpy()
    rows = [values[int(n)] for n in at]
    if isinstance(values, tf.RaggedTensor):
        return [repr(row.numpy().tolist() if hasattr(row, "numpy") else row) for row in rows]
    if getattr(getattr(values, "dtype", None), "kind", "") == "O":
        return [repr(row) for row in rows]
    return [row.toarray() if hasattr(row, "toarray") else row for row in rows]


def _sizes(rows: Any) -> list[str]:
    """One number for each row, the places told apart, to four digits."""
    import numpy as np

    flat = np.abs(np.atleast_1d(rows).astype("complex128")).reshape(len(np.atleast_1d(rows)), -1)
    places = np.arange(1, flat.shape[1] + 1) / max(flat.shape[1], 1)
    return [f"{each:.4g}" for each in flat @ places]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _of_generator(dataset: Any) -> Any:
    """The first examples that a dataset's generator yields in a traversal of its own."""
    import numpy as np

    targets: list[Any] = []
    with _random_numbers_kept():
        for element in dataset:
            target = element[1] if isinstance(element, tuple) and len(element) > 1 else element
            targets.append(target)
            if len(targets) == _EXAMPLES or np.ndim(target):
                break
    return content_of(targets)


@contextmanager
def _random_numbers_kept() -> Iterator[None]:
    import random

    import numpy as np

    own, numpy_s = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(own)
        np.random.set_state(numpy_s)


_CAUSE, _WAITS, _DOES = "tfopt/cause", "tfopt/waits", "tfopt/does"
_ASKED_S = 3.0
CONTENT = "content"
"""How the name of a fact begins that tells of the numbers in the data."""

_SAME_CODE = (
    "run the same code on the same kind of data on every worker; data that differ on purpose need "
    "AutoShardPolicy.OFF, and the same shapes"
)
_SAME_DATA = (
    "give every worker the whole data in the same order, by the same seed: tfopt shares them out; "
    "to share them out yourself, give each worker its part as a tf.data.Dataset with "
    "AutoShardPolicy.OFF, in batches of the global size"
)


class Exchange:
    """What the workers of one cluster tell each other, one thing after the other."""

    def __init__(self, place: ClusterPlace, timeout_s: float) -> None:
        self.place = place
        self.timeout_s = timeout_s
        self._numbers: Iterator[int] = count()

    def told(self, facts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """What each worker tells, by its name; every worker has to call this as often."""
        import tensorflow as tf
        from tensorflow.python.eager import context

        store, number = context.context(), next(self._numbers)
        own = f"{self.place.kind} {self.place.index}"
        store.set_config_key_value(f"tfopt/{number}/{own}", json.dumps(facts))
        told: dict[str, dict[str, Any]] = {}
        absent: list[str] = []
        for name in addresses_of(self.place):
            # Those who come last have had the whole time by then.
            wait_s = 1.0 if absent else self.timeout_s
            try:
                text = store.get_config_key_value(f"tfopt/{number}/{name}", int(1000 * wait_s))
                told[name] = json.loads(text)
            except tf.errors.DeadlineExceededError:
                absent.append(name)
        if absent:
            raise WorkerMissing(
                f"{' and '.join(absent)} did not come to {facts.get('call', 'this step')}.",
                expected=f"all workers there within {self.timeout_s:g} s",
                received=", ".join(told),
                fix="see its own output; every worker has to run the same calls",
            )
        return told

    def meet(self, call: str) -> None:
        """Waits for all; the chief, which has the store, goes on when nobody reads it any more."""
        self.require_alike({"call": call})
        self._let_all_read()

    def _let_all_read(self) -> None:
        """The store ends with the chief, which waits until the others have read all there was."""
        import tensorflow as tf
        from tensorflow.python.eager import context

        store, number = context.context(), next(self._numbers)
        if not self.place.is_chief:
            own = f"{self.place.kind} {self.place.index}"
            with suppress(tf.errors.OpError):  # the chief has heard it, and may have ended
                store.set_config_key_value(f"tfopt/{number}/{own}", "")
            return
        _, *others = addresses_of(self.place)
        for name in others:
            with suppress(tf.errors.OpError):
                store.get_config_key_value(f"tfopt/{number}/{name}", int(1000 * self.timeout_s))

    def leave_cause(self, error: BaseException) -> None:
        """Leaves what this worker ends by where the others look, as long as the chief is there."""
        import tensorflow as tf
        from tensorflow.python.eager import context

        first_line = (str(error).strip().splitlines() or [""])[0][:600]
        text = f"{self.place.kind} {self.place.index}: {type(error).__name__}: {first_line}"
        with suppress(tf.errors.OpError):
            context.context().set_config_key_value(_CAUSE, text)

    def cause(self) -> str | None:
        """What another worker has left as the cause of its end; None: nothing, or out of reach."""
        import tensorflow as tf
        from tensorflow.python.eager import context

        with suppress(tf.errors.OpError):
            return str(context.context().get_config_key_value(_CAUSE, 1000))
        return None

    def doings(self, doing: str) -> dict[str, str]:
        """What each worker does in this moment, by its name; of those who say so within seconds."""
        own = f"{self.place.kind} {self.place.index}"
        said = {own: doing}
        asking = threading.Thread(target=self._ask_doings, args=(own, said), daemon=True)
        asking.start()
        asking.join(_ASKED_S * self.place.workers)
        return dict(said)

    def _ask_doings(self, own: str, said: dict[str, str]) -> None:
        import tensorflow as tf
        from tensorflow.python.eager import context

        store = context.context()
        with suppress(tf.errors.OpError):
            store.set_config_key_value(f"{_DOES}/{own}", said[own])
        for name in addresses_of(self.place):
            with suppress(tf.errors.OpError):
                told = store.get_config_key_value(f"{_DOES}/{name}", int(1000 * _ASKED_S))
                said[name] = str(told)

    def standing_still(self) -> list[str]:
        """Who did not come to a step in which this worker waited until its time was up."""
        own = f"{self.place.kind} {self.place.index}"
        names = list(addresses_of(self.place))
        others = [name for name in names if name != own]
        if len(others) == 1:
            return others
        # Whoever waited as well says so; the chief, if it stands still, keeps nothing for anybody.
        said: list[str] = []
        asking = threading.Thread(target=self._ask_who_waits, args=(own, others, said), daemon=True)
        asking.start()
        asking.join(_ASKED_S * (len(others) + 1))
        if own not in said:
            return [] if own == names[0] else names[:1]
        return [name for name in others if name not in said]

    def _ask_who_waits(self, own: str, others: list[str], said: list[str]) -> None:
        import tensorflow as tf
        from tensorflow.python.eager import context

        store = context.context()
        with suppress(tf.errors.OpError):
            store.set_config_key_value(f"{_WAITS}/{own}", "")
            said.append(own)
        for name in others:
            with suppress(tf.errors.OpError):
                store.get_config_key_value(f"{_WAITS}/{name}", int(1000 * _ASKED_S))
                said.append(name)

    def require_alike(self, facts: Mapping[str, Any]) -> None:
        """Refuses the first thing in which a worker differs from the chief."""
        told = self.told(facts)
        chief, expected = next(iter(told.items()))
        for name, each in told.items():
            keys = expected.keys() | each.keys()
            # Another shape, or setting, says more than other numbers.
            for key in sorted(keys, key=lambda key: (key.startswith(CONTENT), key)):
                if expected.get(key) != each.get(key):
                    # All have found the same difference, and may end by it.
                    self._let_all_read()
                    raise UserError(
                        f"{name} has another {key} than {chief}.",
                        expected=f"on all workers {_short(expected.get(key))}",
                        received=_short(each.get(key)),
                        fix=_SAME_DATA if key.startswith(CONTENT) else _SAME_CODE,
                    )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 400 else text[:400] + " ..."


# What a call of fit, evaluate or predict is given, as JSON: what all workers must have alike.
#
# Shapes, types, sizes and settings are in it, and of the data a few numbers (``same_data``).

_COMPARED = 1000  # values of each weight
# Of a layer: RandomCrop draws a seed of its own, and names are numbered.
_OF_A_PROCESS = ("name", "seed", "shared_object_id")
# What a worker may have of its own: the chief alone may show progress and write logs.
_OWN = ("verbose", "callbacks", "self")


def facts_of(call: str, model: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What is compared before the call; ``arguments`` by their names."""
    from tensorflow.python.eager import context

    facts: dict[str, Any] = {
        "call": call,
        "random seed": context.global_seed(),
        "shapes of the model's weights": [[list(v.shape), str(v.dtype)] for v in model.weights],
        "compile arguments": _compiled(model),
        **_settings(model),
        "content of the weights": [_beginning(each) for each in model.trainable_variables],
    }
    for name, value in arguments.items():
        if name not in _OWN:
            facts[f"{call}({name}=)"] = _described(value)
            content = content_of(value)
            if content is not None:
                facts[f"{CONTENT} of {call}({name}=)"] = content
    if arguments.get("shuffle") and _orders_by_python(arguments.get("x")):
        state = repr(random.getstate()).encode()
        facts["state of Python's random"] = hashlib.sha256(state).hexdigest()[:16]
    return facts


def _settings(model: Any) -> dict[str, str]:
    """Layers of other settings, such as an activation, may have weights of the same shapes."""
    layers = [each for each in model._flatten_layers(include_self=False) if not each._layers]
    return {
        f"layer {place} ({type(each).__name__})": _digest_of_facts(_config(each))
        for place, each in enumerate(layers)
    }


def _config(layer: Any) -> Any:
    try:
        config = layer.get_config()
    except (NotImplementedError, TypeError, ValueError, AttributeError):  # a layer of one's own
        return None
    return _plain(config)


def _plain(value: Any) -> Any:
    """What is the same in every process that has made the same."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items() if key not in _OF_A_PROCESS}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if isinstance(value, str | int | float | None) else type(value).__name__


def _digest_of_facts(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


def _beginning(weight: Any) -> str:
    """A few digits: enough to tell weights that one worker alone has loaded from the others'."""
    import tensorflow as tf

    first = tf.reshape(tf.convert_to_tensor(weight.value), [-1])[:_COMPARED]
    return f"{float(tf.reduce_sum(tf.cast(first, tf.float32))):.3g}"


def _compiled(model: Any) -> Any:
    if not getattr(model, "compiled", False):
        return None
    try:
        config = model.get_compile_config()
    except (TypeError, ValueError):  # Keras trains with more than it can write into a file
        given = model._compile_config.config
        return {name: _in_words(value) for name, value in given.items()}
    return None if config is None else _described(config)


def _in_words(value: Any) -> Any:
    """What Keras has no form for, by its name or class, the same in every process."""
    import keras

    if isinstance(value, Mapping):
        return {str(key): _in_words(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_in_words(each) for each in value]
    if isinstance(value, functools.partial):
        given = [_in_words(value.args), _in_words(value.keywords)]
        return ["partial", _in_words(value.func), *given]
    try:
        return _described(keras.saving.serialize_keras_object(value))
    except (TypeError, ValueError):
        return getattr(value, "__qualname__", None) or type(value).__qualname__


def _orders_by_python(data: Any) -> bool:
    import keras

    return isinstance(data, keras.utils.PyDataset)


def _described(value: Any) -> Any:
    import tensorflow as tf

    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tf.data.Dataset):
        off = policy_of(value) == "OFF"
        return {
            "elements": repr(value.element_spec),
            "batches": None if off else int(value.cardinality()),
            "policy": policy_of(value),
            "shuffle seeds": None if off else shuffle_seeds(value),
        }
    if isinstance(value, Mapping):
        return {str(key): _described(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        if value and all(isinstance(each, int | float) for each in value):
            return {"numbers": len(value)}
        return [_described(each) for each in value]
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return [[None if n is None else int(n) for n in value.shape], str(value.dtype)]
    return type(value).__name__
