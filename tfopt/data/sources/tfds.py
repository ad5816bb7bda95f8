"""Read a data set that TensorFlow Datasets has prepared."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfopt.data.sources.source import ReadOrder, Source, arranged, require_known
from tfopt.errors import UserError, first_line
from tfopt.job.cgroup import usable_cores


@dataclass(frozen=True, repr=False)
class TFDS(Source):
    """A split of a data set of TensorFlow Datasets; nothing is downloaded.

    Attributes:
        name: The name in TFDS, ``"mnist"`` or ``"glue/sst2:2.0.0"``; or a prepared folder.
        split: A split in TFDS's notation: ``"train"``, ``"train[:90%]"``.
        label: The feature that becomes y. With ``label`` and ``features`` None, the supervised
            keys of the data set are taken, if it has them.
        features: The features that become x: one name gives that tensor, several a dict. None
            takes all but the label.
        data_dir: The folder of prepared data sets; None: TFDS_DATA_DIR, or
            ~/tensorflow_datasets.

    Example:
        data = tfopt.pipeline(TFDS("mnist", split="train[:90%]"), batch_size=256)
    """

    name: str
    split: str = "train"
    label: str | None = None
    features: str | tuple[str, ...] | None = None
    data_dir: str | None = None

    def fingerprint(self) -> str:
        return f"{self!r} {self._builder().info.full_name}"

    def count_examples(self) -> int:
        builder = self._builder()
        try:
            return int(builder.info.splits[self.split].num_examples)
        except (KeyError, ValueError) as error:
            raise UserError(
                f"{self.name} has no such split.",
                expected=f"one of {', '.join(builder.info.splits)}, or a part of one",
                received=repr(self.split),
            ) from error

    def batches(self, batch_size: int, reading: ReadOrder) -> Any:
        tfds = _library()
        self.count()  # refuses a missing split
        builder = self._builder()
        seed = reading.seed
        config = tfds.ReadConfig(shuffle_seed=seed, shuffle_reshuffle_each_iteration=True)
        examples = builder.as_dataset(
            split=self.split, shuffle_files=reading.shuffle, read_config=config
        ).map(self._arranged(builder.info), num_parallel_calls=usable_cores())
        if reading.shuffle:
            examples = examples.shuffle(
                reading.buffer, seed=seed + 1, reshuffle_each_iteration=True
            )
        return examples.batch(batch_size)

    def _arranged(self, info: Any) -> Any:
        """Return a function that converts an example to x, or (x, y)."""
        label, features = self.label, self.features
        if label is None and features is None and info.supervised_keys is not None:
            features, label = info.supervised_keys
        names = (features,) if isinstance(features, str) else features or ()
        asked = [name for name in (*names, label) if name]
        require_known(f"{self.name} has no such feature.", info.features, asked)
        return lambda example: arranged(example, label, features)

    def _builder(self) -> Any:
        tfds = _library()
        try:
            if (Path(self.name).expanduser() / "dataset_info.json").exists():
                return tfds.builder_from_directory(str(Path(self.name).expanduser()))
            builder = tfds.builder(self.name, data_dir=self.data_dir)
        except Exception as error:  # also of the module of a data set
            raise UserError(
                f"TFDS knows no data set {self.name!r}.",
                expected="a name that tfds.builder() takes, or a prepared folder",
                received=first_line(error),
            ) from error
        if not builder.data_path.exists():
            raise UserError(
                f"The data set {self.name!r} is not prepared.",
                expected=f"its files in {builder.data_path}",
                received="no such folder",
                fix=f"tfds.load({self.name!r}) once, with a network; or data_dir=",
            )
        return builder


def _library() -> Any:
    """Return TensorFlow Datasets, which logs what keeps it from being imported, and goes on."""
    log = logging.getLogger("absl")
    was_disabled, log.disabled = log.disabled, True
    try:
        import tensorflow_datasets as tfds
    finally:
        log.disabled = was_disabled
    if not hasattr(tfds, "builder"):
        raise UserError(
            "TensorFlow Datasets does not work here.",
            received="an error, which `import tensorflow_datasets` shows",
            fix="before TensorFlow 2.20: pip install 'tensorflow-metadata<1.21'",
        )
    return tfds


def prepared_parts(asked: str, name: str, feature: str) -> tuple[list[tuple[Any, Any]] | None, str]:
    """Return a feature and the labels of "train" and "test"; or None with the reason."""
    import numpy as np

    if asked == "embedded":
        return None, "asked for"
    folder = os.environ.get("TFDS_DATA_DIR")  # TFDS reads it only when imported
    splits = (TFDS(name, split, "label", feature, folder) for split in ("train", "test"))
    try:
        columns = (zip(*split, strict=True) for split in splits)
        return [(np.concatenate(x), np.concatenate(y)) for x, y in columns], ""
    except UserError:
        if asked == "tfds":
            raise
        return None, f"the full set is taken once tfds.load({name!r}) has prepared it"
