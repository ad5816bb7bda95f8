"""Distillation: a compressed model learns from the uncompressed one as well.

What outputs mean is read off the compiled loss, so that probabilities are not taken for logits.
Keras's own ``Distiller`` is not used: in 3.15 it drops sample weights and regularisers, freezes the
teacher for good, and its default loss leaves the softmax out.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tfopt.errors import UserError, keep_plain, real
from tfopt.job.job import Job, Transform
from tfopt.job.parts import Artefact, Effect, Facts, Trained

if TYPE_CHECKING:
    import keras

Kind = Literal["classes", "class scores", "yes or no", "yes or no scores", "values"]

CLASSES: tuple[Kind, Kind] = ("classes", "class scores")
YES_OR_NO: tuple[Kind, Kind] = ("yes or no", "yes or no scores")
# The function that a loss is made of -> what the outputs are, without and with from_logits.
_KINDS: dict[str, tuple[Kind, Kind]] = {
    "categorical_crossentropy": CLASSES,
    "categorical_focal_crossentropy": CLASSES,
    "categorical_generalized_cross_entropy": CLASSES,
    "sparse_categorical_crossentropy": CLASSES,
    "kl_divergence": CLASSES,
    "binary_crossentropy": YES_OR_NO,
    "binary_focal_crossentropy": YES_OR_NO,
}


def kind_of(loss: Any) -> Kind:
    """Return what one output means, by its loss; values where nothing is known of the loss."""
    import keras

    if isinstance(loss, str):
        loss = keras.losses.get(loss)
    settings = dict(getattr(loss, "_fn_kwargs", {}))
    function = getattr(loss, "fn", loss)
    while isinstance(function, functools.partial):
        settings = {**function.keywords, **settings}
        function = function.func
    found = _KINDS.get(getattr(function, "__name__", ""))
    return "values" if found is None else found[bool(settings.get("from_logits"))]


def ranks_classes(model: Any) -> bool:
    """Return whether all outputs that have a loss are scores of classes, as the losses say."""
    import keras

    losses = [each for each in keras.tree.flatten(getattr(model, "loss", None)) if each is not None]
    return bool(losses) and all(kind_of(each) in CLASSES for each in losses)


_TINY = 1e-7


def distill(
    model: keras.Model, teacher: keras.Model, *, weight: float = 0.5, temperature: float = 3.0
) -> keras.Model:
    """Make a model learn from a teacher as well, in place, and return that model.

    From then on each training step's loss is ``(1 - weight)`` times the model's own and ``weight``
    times its distance from the teacher's outputs on the same examples; use your own ``fit``. The
    loss that is shown is that sum, so it does not compare with the loss of a training without.
    Of several outputs each counts by its ``loss_weights``, and one without a loss of its own not
    at all. ``tfopt.strip`` lets the teacher go. A file does not hold it: distill again after
    loading.

    Example:
        teacher = keras.models.load_model("uncompressed.keras")
        tfopt.distill(tfopt.prune(model, 0.8), teacher)
        model.fit(x, y)

    Args:
        model: A built Keras 3 model: pruned, clustered, quantization-aware, with fewer channels,
            or simply smaller.
        teacher: The trained model to learn from, with the same inputs and outputs, or its file.
        weight: How much the teacher counts; 1: labels count for nothing.
        temperature: Class probabilities are compared after their logarithms were divided by this,
            which brings out how the teacher ranks wrong classes. Other outputs are compared by
            their mean squared difference.
    """
    from tfopt.compress.saved import as_model
    from tfopt.job.rebuild import require_built_keras3

    weight, temperature = require_settings(weight, temperature)
    model, teacher = as_model(model), as_model(teacher)
    require_built_keras3(model)
    require_built_keras3(teacher)
    _require_apart(model, teacher)
    _require_same_outputs(model, teacher)
    let_teacher_go(model)
    model.compute_loss = _Loss(model, teacher, weight, temperature)
    model._compute_loss_has_training_arg = True
    model.train_function = None
    return model


def require_settings(weight: object, temperature: object) -> tuple[float, float]:
    """Return the settings; refuse what no model could satisfy."""
    return (
        _require_number("weight", weight, most=1),
        _require_number("temperature", temperature, most=math.inf),
    )


def has_teacher(model: keras.Model) -> bool:
    """Return whether a model learns from a teacher as well."""
    return isinstance(vars(model).get("compute_loss"), _Loss)


UNHEARD = (
    "the train_step of the model's own never called self.compute_loss, so the teacher taught "
    "nothing"
)


def unheard_teacher(model: keras.Model) -> bool:
    """Return whether a model was trained with a teacher that no step has asked."""
    held = vars(model).get("compute_loss")
    return isinstance(held, _Loss) and not held.heard and _steps(model) > held.begun


def _steps(model: Any) -> int:
    optimizer = getattr(model, "optimizer", None)
    return 0 if optimizer is None else int(optimizer.iterations.numpy())


def let_teacher_go(model: keras.Model) -> bool:
    """Give a model its own loss back, and return whether it had a teacher."""
    held = vars(model).get("compute_loss")
    if not isinstance(held, _Loss):
        return False
    del model.compute_loss
    model._compute_loss_has_training_arg = held.takes_training
    return True


class _Loss:
    """A model's ``compute_loss`` while it has a teacher."""

    def __init__(self, model: Any, teacher: Any, weight: float, temperature: float) -> None:
        self.model, self.teacher = model, teacher
        self.weight, self.temperature = weight, temperature
        self.plain = model.compute_loss
        self.takes_training = model._compute_loss_has_training_arg
        self.begun, self.heard = _steps(model), False
        self.measured: Callable[..., Any] = lambda loss, *rows: loss(*rows)
        """How one of Keras's losses is computed, for what adds it up over the parts of a batch."""

    def __call__(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        extra = {"training": training} if self.takes_training else {}
        own = self.plain(x, y, y_pred, sample_weight, **extra)
        if not training:
            return own
        import tensorflow as tf

        self.heard = True
        if x is None:
            raise UserError(
                "The teacher was not shown the examples.",
                expected="a train_step that calls self.compute_loss(x=x, y=y, y_pred=y_pred)",
                received="compute_loss without x",
            )
        taught = tf.nest.map_structure(tf.stop_gradient, self.teacher(x, training=False))
        distance = self._distance(taught, y_pred, sample_weight)
        return (1 - self.weight) * own + self.weight * tf.cast(distance, own.dtype)

    def _distance(self, taught: Any, given: Any, sample_weight: Any) -> Any:
        """Return the sum over the outputs, each weighted example by example as the labels are."""
        import keras

        names = _output_names(self.model, given)
        kinds, counts = _kinds(self.model, names), _counts(self.model, names)
        total: Any = 0.0
        for theirs, own, kind, its, of_examples, count in zip(
            keras.tree.flatten(taught),
            keras.tree.flatten(given),
            kinds,
            _kinds(self.teacher, names),
            _flat(sample_weight, len(names)),
            counts,
            strict=True,
        ):
            if count:
                of = (_meaning(its, beside=kind), kind)
                rows = theirs, own, of, self.temperature, of_examples
                total += count * _compared(*rows, self.measured)
        return total


def _meaning(its: Kind, *, beside: Kind) -> Kind:
    """Return what the teacher's output means: by its own loss where known, else as the model's."""
    alike = any({its, beside} <= set(family) for family in (CLASSES, YES_OR_NO))
    return its if alike else beside


def _compared(
    taught: Any,
    given: Any,
    kinds: tuple[Kind, Kind],
    temperature: float,
    weights: Any,
    measured: Callable[..., Any],
) -> Any:
    import keras
    import tensorflow as tf

    mask = getattr(given, "_keras_mask", None)
    taught, given = tf.cast(taught, tf.float32), tf.cast(given, tf.float32)
    loss: Any = keras.losses.MeanSquaredError()
    scale = 1.0
    if kinds[1] != "values":
        taught, given = _scores(taught, kinds[0]), _scores(given, kinds[1])
        soft = tf.nn.softmax if kinds[1] in CLASSES else _both
        taught, given = soft(taught / temperature), soft(given / temperature)
        # So that the weight means the same at each temperature (Hinton et al., 2015).
        loss, scale = keras.losses.KLDivergence(), temperature**2
    # What the model's own loss leaves out, such as the padding of sequences, is left out here.
    given._keras_mask = mask
    return scale * measured(loss, taught, given, weights)


def _scores(output: Any, kind: Kind) -> Any:
    """Return logits: the output itself, or those that have its probabilities."""
    import tensorflow as tf

    if kind not in ("classes", "yes or no"):
        return output
    probabilities = output
    sure = tf.math.log(tf.clip_by_value(probabilities, _TINY, 1.0))
    if kind == "classes":
        return sure
    return sure - tf.math.log(tf.clip_by_value(1 - probabilities, _TINY, 1.0))


def _both(scores: Any) -> Any:
    """Return the probabilities of yes and of no."""
    import tensorflow as tf

    return tf.stack([tf.sigmoid(scores), tf.sigmoid(-scores)], axis=-1)


def _kinds(model: Any, names: list[str]) -> list[Kind]:
    return [kind_of(loss) for loss in _by_output(getattr(model, "loss", None), names)]


def _counts(model: Any, names: list[str]) -> list[float]:
    """Return how much each output counts in the model's own loss; all alike where it has none."""
    losses = _by_output(getattr(model, "loss", None), names)
    if all(loss is None for loss in losses):
        return [1.0] * len(names)
    compiled = getattr(model, "_compile_config", None)
    weights = compiled.config.get("loss_weights") if compiled is not None else None
    counts = _by_output(1.0 if weights is None else weights, names)
    return [
        0.0 if loss is None or count is None else float(count)
        for loss, count in zip(losses, counts, strict=True)
    ]


def _by_output(setting: Any, names: list[str]) -> list[Any]:
    """Return what ``compile`` was given for each output: by name, in order, or one for all."""
    import keras

    if isinstance(setting, dict):
        return [setting.get(name) for name in names]
    if isinstance(setting, list | tuple):
        found = list(keras.tree.flatten(list(setting)))
        return found if len(found) == len(names) else found[:1] * len(names)
    return [setting] * len(names)


def _flat(sample_weight: Any, outputs: int) -> list[Any]:
    import keras

    found = [] if sample_weight is None else keras.tree.flatten(sample_weight)
    return found if len(found) == outputs else (found[:1] or [None]) * outputs


def _output_names(model: Any, given: Any) -> list[str]:
    if isinstance(given, dict):
        return sorted(given)
    import keras

    count = len(keras.tree.flatten(given))
    names = list(getattr(model, "output_names", None) or [])
    return names if len(names) == count else [str(n) for n in range(count)]


def _require_apart(model: Any, teacher: Any) -> None:
    """Refuse a teacher that shares trained weights with the model; frozen ones may be shared."""
    own = {id(variable) for variable in model.trainable_variables}
    shared = [each.path for each in teacher.variables if id(each) in own]
    if shared:
        raise UserError(
            f"The teacher {teacher.name!r} has weights of {model.name!r}: it would change with it.",
            expected="a teacher with weights of its own",
            received=", ".join(shared[:4]),
            fix="load it from its file, or copy the model before it is compressed: teacher = "
            "keras.models.clone_model(model); teacher.set_weights(model.get_weights())",
        )


def _require_same_outputs(model: Any, teacher: Any) -> None:
    """Compare the models' outputs; those of a subclassed model are unknown before it runs."""
    mine, theirs = map(_output_shapes, (model, teacher))
    if mine is not None and theirs is not None and mine != theirs:
        raise UserError(
            f"The teacher {teacher.name!r} has other outputs than {model.name!r}.",
            expected=f"outputs of the shapes {mine}",
            received=str(theirs),
        )


def _output_shapes(model: Any) -> list[tuple[int | None, ...]] | None:
    import keras

    outputs = getattr(model, "outputs", None)
    if isinstance(getattr(model, "output", None), dict):
        outputs = keras.tree.flatten(model.output)
    return None if outputs is None else [tuple(each.shape[1:]) for each in outputs]


def _require_number(name: str, value: object, *, most: float) -> float:
    number = real(value)
    if number is None or not (0 < number <= most and math.isfinite(number)):
        limit = f"0 < {name}" + (f" <= {most}" if math.isfinite(most) else "")
        raise UserError(f"{name} cannot be used.", expected=limit, received=repr(value))
    return number


@dataclass(frozen=True, repr=False)
class Distill(Transform):
    """Add the distance from a teacher's outputs to the loss; see ``tfopt.distill``.

    The trained model and its files hold nothing of the teacher.

    Example:
        outcome = run(chain(Prune(0.8), Distill("uncompressed.keras")).apply(job))

    Attributes:
        teacher: A ``.keras`` file: usually the same model, trained before it was compressed.
        weight: How much the teacher counts against the labels, above 0, at most 1.
        temperature: Divides the logarithms of class probabilities before they are compared.
    """

    teacher: str
    weight: float = 0.5
    temperature: float = 3.0

    changes: ClassVar[frozenset[str]] = frozenset({"attachments", "after_fit"})
    exact: ClassVar[bool] = False
    aim: ClassVar[Literal["speed", "size", "accuracy"]] = "accuracy"

    def __post_init__(self) -> None:
        keep_plain(self)
        require_settings(self.weight, self.temperature)
        if not isinstance(self.teacher, str) or not self.teacher.endswith(".keras"):
            raise UserError(
                "Distill.teacher is not a Keras file.",
                expected="the path of a .keras file that model.save wrote",
                received=repr(self.teacher),
            )

    def edit(self, job: Job) -> Job:
        return replace(
            job,
            attachments=(*job.attachments, self.attach),
            after_fit=self.settling(job, self.finish),
        )

    def attach(self, model: keras.Model, facts: Facts) -> Effect:
        """Load the teacher and add its part to the loss."""
        from tfopt.compress.saved import read_model

        teacher = read_model(self.teacher, compiled=False)
        distill(model, teacher, weight=self.weight, temperature=self.temperature)
        return Effect(
            True,
            f"learns from {teacher.name!r} ({teacher.count_params():,} weights) as well, "
            f"with a weight of {self.weight:g}",
        )

    def finish(self, trained: Trained) -> tuple[Artefact | None, Effect]:
        """Let the teacher go."""
        heard = not unheard_teacher(trained.model)
        let_teacher_go(trained.model)
        if not heard:
            return None, Effect(False, UNHEARD)
        return None, Effect(True, "the teacher is gone from the trained model")
