"""Convert the columns of Arrow tables to arrays for ``fit``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from tfopt.data.sources.source import needs, require_known
from tfopt.errors import UserError

Array = np.ndarray[Any, Any]
Kind = Literal["number", "text", "class", "image"]


@dataclass(frozen=True)
class Rule:
    """How one column becomes an array.

    Attributes:
        dtype: The NumPy type of the array, or of the decoded image.
        shape: The shape of one example.
        fill: The value for nulls; None refuses them.
    """

    name: str
    kind: Kind
    dtype: Any
    shape: tuple[int, ...] = ()
    fill: Any = None
    classes: tuple[str, ...] = ()

    @property
    def spec(self) -> Any:
        """Return the ``tf.TensorSpec`` of a batch; images are encoded in it."""
        import tensorflow as tf

        if self.kind in ("text", "image"):
            return tf.TensorSpec((None,), tf.string)
        return tf.TensorSpec((None, *self.shape), tf.as_dtype(self.dtype))


@dataclass(frozen=True)
class Layout:
    """The columns of a table that become x, y and sample_weight: one, or a dict of several."""

    x: str | tuple[str, ...]
    y: str | tuple[str, ...] | None
    weight: str | None
    stack: bool
    rules: Mapping[str, Rule] = field(repr=False)

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns to read."""
        return tuple(self.rules)

    @property
    def unfilled(self) -> list[str]:
        """Return the columns that may have no nulls."""
        return [name for name, rule in self.rules.items() if rule.fill is None]

    @property
    def images(self) -> dict[str, Rule]:
        """Return the columns of encoded images."""
        return {name: rule for name, rule in self.rules.items() if rule.kind == "image"}

    def arranged(self, values: Mapping[str, Any]) -> Any:
        """Return tensors by column as ``x``, ``(x, y)`` or ``(x, y, weight)``."""
        x = _picked(values, self.x)
        if self.stack and isinstance(x, dict):
            x = _stacked(list(x.values()))
        if not self.y:
            return x
        y = _picked(values, self.y)
        return (x, y) if self.weight is None else (x, y, values[self.weight])


def _picked(values: Mapping[str, Any], names: str | tuple[str, ...]) -> Any:
    return values[names] if isinstance(names, str) else {name: values[name] for name in names}


def layout(schema: Any, table: Any) -> Layout:
    """Return the layout of a table of this schema; refuse missing columns and unknown types.

    ``table`` has the settings: label, features, weight, stack, fill, classes, shapes, images.
    """
    names = list(schema.names)
    labels, weight, x = _names(table.label), _names(table.weight), table.features
    if x is None:
        apart = {*labels, *weight, *index_columns(schema)}
        x = tuple(name for name in names if name not in apart)
    features = _names(x)
    for setting, given in (
        ("label", labels),
        ("features", features),
        ("weight", weight),
        ("fill", tuple(table.fill)),
        ("shapes", tuple(table.shapes)),
        ("images", tuple(table.images)),
    ):
        require_known(f"{setting} names a missing column.", names, given)
    if weight and not labels:
        raise UserError(
            "weight needs label.",
            expected="label= beside it",
            received=f"weight={table.weight!r}",
        )
    if not features:
        raise UserError(
            "No column remains for the features.",
            expected="at least one column beside label and weight",
            received=f"columns {', '.join(names)}",
        )
    rules = {
        name: _rule(name, schema.field(name).type, table, is_label=name in labels)
        for name in dict.fromkeys((*features, *labels, *weight))
    }
    if table.stack:
        _require_numbers([rules[name] for name in features])
    return Layout(x, table.label, table.weight, table.stack, rules)


def index_columns(schema: Any) -> list[str]:
    """Return the columns of pandas's index, which are not features."""
    columns = (schema.pandas_metadata or {}).get("index_columns", [])
    return [name for name in columns if isinstance(name, str)]


def _names(given: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else given or ()


def _rule(name: str, kind: Any, table: Any, *, is_label: bool) -> Rule:
    """Return the rule for a column of an Arrow type."""
    import keras

    types = needs("pyarrow", "A table", "parquet").types
    if types.is_dictionary(kind):
        kind = kind.value_type
    fill = table.fill.get(name)
    if fill is not None:
        _require_fill(name, kind, fill)
    if name in table.images:
        return Rule(name, "image", np.dtype(keras.config.floatx()), tuple(table.images[name]))
    if _is_text(kind, types):
        if not is_label:
            return Rule(name, "text", np.dtype(object), (), fill)
        if not table.classes:
            raise UserError(
                f"The text label {name!r} needs classes=.",
                expected="a column of numbers, or classes=",
                received=str(kind),
                fix='name the classes in order: classes=("no", "yes")',
            )
        return Rule(name, "class", np.dtype(np.int32), (), fill, tuple(table.classes))
    inner, sizes = _in_lists(kind, types)
    if sizes is None and name not in table.shapes:
        raise UserError(
            f"The column {name!r} holds lists of unknown length.",
            expected="lists of a fixed size, or shapes=",
            received=str(kind),
            fix=f'declare it: shapes={{"{name}": (length,)}}; or pad them to one length',
        )
    shape = tuple(table.shapes.get(name, sizes))
    if types.is_decimal(inner) or types.is_floating(inner) or types.is_boolean(inner):
        return Rule(name, "number", np.dtype(keras.config.floatx()), shape, fill)
    if types.is_integer(inner):
        return Rule(name, "number", np.dtype(inner.to_pandas_dtype()), shape, fill)
    raise UserError(
        f"The column {name!r} has a type that cannot become a tensor.",
        expected="numbers, texts, lists of numbers of one length, or encoded images (images=)",
        received=str(kind),
        fix=f"leave it out (features=[...] without {name!r}), or convert it to numbers before",
    )


def _require_fill(name: str, kind: Any, fill: Any) -> None:
    """Refuse a fill value that this type cannot represent."""
    arrow = needs("pyarrow", "A table", "parquet")
    try:
        value = arrow.scalar(fill, kind).as_py()
    except (arrow.ArrowException, TypeError, ValueError):
        value = None
    if value is None or (isinstance(value, int) and value != fill):
        raise UserError(
            f"fill has no valid value for the column {name!r}.",
            expected=f"a value of type {kind}",
            received=repr(fill),
            fix="a whole number for whole numbers; lists cannot be filled",
        )


def _is_text(kind: Any, types: Any) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _in_lists(kind: Any, types: Any) -> tuple[Any, tuple[int, ...] | None]:
    """Return the type inside nested lists, and the sizes of the lists; None: of open length."""
    if hasattr(kind, "storage_type"):  # Arrow's fixed-shape tensors
        inner, sizes = _in_lists(kind.storage_type, types)
        return inner, tuple(getattr(kind, "shape", ())) or sizes
    if types.is_fixed_size_list(kind):
        inner, sizes = _in_lists(kind.value_type, types)
        return inner, None if sizes is None else (kind.list_size, *sizes)
    if types.is_list(kind) or types.is_large_list(kind):
        return _in_lists(kind.value_type, types)[0], None
    return kind, ()


def _require_numbers(rules: list[Rule]) -> None:
    wrong = [r.name for r in rules if r.kind != "number" or len(r.shape) > 1]
    if wrong:
        raise UserError(
            "stack=True needs numeric features.",
            expected="columns of numbers, or lists of them",
            received=", ".join(wrong),
            fix="leave them out of features, or take a dict of columns: stack=False",
        )


def _stacked(parts: list[Any]) -> Any:
    """Return columns as one matrix."""
    import keras
    import tensorflow as tf

    wide = [part if part.shape.rank > 1 else part[:, None] for part in parts]
    return tf.concat([tf.cast(part, keras.config.floatx()) for part in wide], axis=1)


def array_of(column: Any, rule: Rule, where: str) -> Array:
    """Return a column of a record batch, without nulls that no rule fills, as an array."""
    pa = needs("pyarrow", "A table", "parquet")
    pc = needs("pyarrow.compute", "A table", "parquet")
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if rule.fill is not None and column.null_count:
        column = pc.fill_null(column, pa.scalar(rule.fill, column.type))
    if rule.kind == "image":
        if pa.types.is_struct(column.type):  # as Hugging Face stores them: bytes and a path
            column = pc.struct_field(column, "bytes")
        if column.null_count:
            raise UserError(
                f"{where}: the column {rule.name!r} has only paths of images.",
                expected="encoded images in the table itself",
                received=f"{column.null_count} without bytes",
                fix="embed them where the data set is written",
            )
    if rule.kind in ("image", "text"):
        texts: Array = column.to_numpy(zero_copy_only=False)
        return texts
    if rule.kind == "class":
        numbers = pc.index_in(column, value_set=pa.array(rule.classes, column.type))
        if numbers.null_count:
            row = pc.index(pc.is_valid(numbers), False).as_py()
            raise UserError(
                f"{where}: the label {rule.name!r} has a value that is not in classes=.",
                expected=", ".join(rule.classes),
                received=f"{column[row].as_py()!r} in row {row}",
            )
        return np.asarray(numbers.to_numpy(zero_copy_only=False), rule.dtype)
    values = _flat(column, rule, where)
    if pa.types.is_decimal(values.type):
        values = values.cast(pa.float64())
    flat: Array = values.to_numpy(zero_copy_only=False)
    return flat.astype(rule.dtype, copy=False).reshape(len(column), *rule.shape)


def _flat(column: Any, rule: Rule, where: str) -> Any:
    """Return the concatenated numbers of a column of lists."""
    pc = needs("pyarrow.compute", "A table", "parquet")
    if not rule.shape:
        return column
    values = getattr(column, "storage", column)
    while hasattr(values, "flatten") and hasattr(values.type, "value_type"):
        values = values.flatten()
    size = int(np.prod(rule.shape))
    uneven = len(values) != size * len(column)
    if not uneven and hasattr(column, "value_lengths") and len(rule.shape) == 1:
        # Two wrong lengths may add up to the right one.
        extent = pc.min_max(column.value_lengths())
        uneven = {extent["min"].as_py(), extent["max"].as_py()} - {size, None} != set()
    if uneven:
        raise UserError(
            f"{where}: the lists of column {rule.name!r} differ from the declared shape.",
            expected=f"{size} numbers in each row, for {rule.shape}",
            received=f"{len(values)} in {len(column)} rows",
            fix="pad or truncate them before, or correct shapes=",
        )
    if values.null_count:
        raise UserError(
            f"{where}: the lists of column {rule.name!r} hold nulls.",
            expected="numbers",
            received=f"{values.null_count} nulls",
            fix="fill them where the table is written",
        )
    return values
