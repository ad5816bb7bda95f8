"""Distill: the model learns from a saved teacher as well while it is trained.

Guarantees: a teacher that is not there, or has other outputs, is an error before anything is
trained; the trained model and its files hold nothing of the teacher.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from tfopt.compression.distillation import distill, let_teacher_go, require_settings
from tfopt.errors import UserError
from tfopt.job import Artefact, Effect, Facts, Job, Trained, Transform
from tfopt.scalars import keep_plain

if TYPE_CHECKING:
    import keras


@dataclass(frozen=True, repr=False)
class Distill(Transform):
    """Adds the distance from a teacher's outputs to the loss; see ``tfopt.distill``.

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
        """Loads the teacher and adds its part to the loss."""
        teacher = self._loaded()
        distill(model, teacher, weight=self.weight, temperature=self.temperature)
        return Effect(
            True,
            f"learns from {teacher.name!r} ({teacher.count_params():,} weights) as well, "
            f"with a weight of {self.weight:g}",
        )

    def finish(self, trained: Trained) -> tuple[Artefact | None, Effect]:
        """Lets the teacher go."""
        let_teacher_go(trained.model)
        return None, Effect(True, "the teacher is gone from the trained model")

    def _loaded(self) -> keras.Model:
        import keras

        path = Path(self.teacher).expanduser()
        if not path.is_file():
            raise UserError(
                "There is no teacher to learn from.",
                expected="a .keras file that model.save wrote",
                received=str(path),
                fix="train and save the uncompressed model first, or mend Distill.teacher",
            )
        try:
            return keras.models.load_model(path, compile=False)
        # Whatever a file of somebody else's classes raises.
        except Exception as error:
            raise UserError(
                f"The teacher {path} cannot be loaded.",
                expected="a .keras file whose classes are known",
                received=str(error).strip().splitlines()[0],
                fix="import the module that registers its classes, in the job's own module",
            ) from error
