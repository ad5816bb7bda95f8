"""Read TFRecord files of ``tf.train.Example``, by ``tf.data`` itself."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfopt.data.sources.images import Encoded, decode_image
from tfopt.data.sources.source import ReadOrder, Source, arranged, require_known
from tfopt.errors import UserError, first_line
from tfopt.job.cgroup import usable_cores

_FILES_AT_A_TIME = 8


@dataclass(frozen=True, repr=False)
class TFRecord(Source):
    """Examples of TFRecord files: one path, a folder, or a pattern; also ``.gz``.

    Attributes:
        path: A path, a folder, or a pattern: ``"data/train-*.tfrecord.gz"``.
        label: The feature that becomes y; None: no y.
        features: The features that become x: one name gives that tensor, several a dict. None
            takes all but the label.
        spec: The features for ``tf.io.parse_example``, by name. None infers them from the first
            example, whose types and lengths all others must have.
        images: Features of encoded images with the shape to decode and resize them to.
        examples: The number of examples, which the files do not store; None reads them once to
            count.

    Example:
        data = tfopt.pipeline(TFRecord("data/*.tfrecord", label="y"), batch_size=256)
    """

    path: str
    label: str | None = None
    features: str | tuple[str, ...] | None = None
    spec: Mapping[str, Any] | None = None
    images: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    examples: int | None = None

    def fingerprint(self) -> str:
        stats = [os.stat(file) for file in self.files() if os.path.exists(file)]
        return f"{self!r} {[(stat.st_size, stat.st_mtime_ns) for stat in stats]}"

    def count_examples(self) -> int:
        if self.examples is not None:
            return self.examples
        import tensorflow as tf

        try:
            return int(self.records(self.files()).reduce(0, lambda total, _: total + 1))
        except tf.errors.DataLossError as error:
            raise self._broken() from error

    def batches(self, batch_size: int, reading: ReadOrder) -> Any:
        import tensorflow as tf

        files = self.files()
        spec = self.first_spec()
        wanted = {name: spec[name] for name in self._names(spec)}
        compression = self._compression()

        def records_of(name: Any) -> Any:
            return tf.data.TFRecordDataset(name, compression_type=compression)

        file_names = tf.data.Dataset.from_tensor_slices(files)
        records = file_names.flat_map(records_of)
        if reading.shuffle:
            file_names = file_names.shuffle(
                len(files), seed=reading.seed, reshuffle_each_iteration=True
            )
            records = file_names.interleave(
                records_of,
                cycle_length=_FILES_AT_A_TIME,
                num_parallel_calls=_FILES_AT_A_TIME,
                deterministic=True,
            ).shuffle(reading.buffer, seed=reading.seed + 1, reshuffle_each_iteration=True)

        def parsed(serialized: Any) -> Any:
            return self._arranged(tf.io.parse_example(serialized, wanted))

        if self.images:  # single examples, decoded in parallel
            examples = records.map(parsed, num_parallel_calls=usable_cores())
            return examples.batch(batch_size)
        batches = records.batch(batch_size)
        return batches.map(parsed, num_parallel_calls=usable_cores())

    def encoded_images(self) -> Iterator[Encoded]:
        import tensorflow as tf

        for file in self.files() if self.images else ():
            for number, record in enumerate(self.records([file]).as_numpy_iterator()):
                feature = tf.train.Example.FromString(record).features.feature
                for name, shape in self.images.items():
                    content = feature[name].bytes_list.value[0]
                    yield Encoded(f"{file}: {name!r} of example {number}", content, shape[-1])

    def _arranged(self, values: dict[str, Any]) -> Any:
        """Return x, or (x, y), with the images of one example decoded."""
        values |= {
            name: decode_image(values[name], tuple(shape)) for name, shape in self.images.items()
        }
        return arranged(values, self.label, self.features)

    def _names(self, spec: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the features to parse; refuse missing ones."""
        labels = () if self.label is None else (self.label,)
        chosen = (self.features,) if isinstance(self.features, str) else self.features
        names = tuple(n for n in spec if n not in labels) if chosen is None else tuple(chosen)
        asked = (*names, *labels, *self.images)
        require_known(f"{self.path} has no such feature.", spec, asked)
        return (*names, *labels)

    def files(self) -> list[str]:
        """Return the paths of the files, in order; refuse an empty one."""
        path = os.path.expanduser(self.path)
        if os.path.isdir(path):
            files = [f for f in sorted(glob.glob(f"{path}/*")) if ".tfrecord" in Path(f).name]
        else:
            files = sorted(glob.glob(path)) if glob.has_magic(path) else [path]
        files = [file for file in files if "://" in file or os.path.exists(file)]
        if not files:
            raise UserError(
                f"{self.path} holds no TFRecord files.",
                expected="a file, a folder with *.tfrecord* in it, or a pattern",
                received="no file",
            )
        for file in files:
            if os.path.exists(file) and not os.path.getsize(file):
                raise UserError(
                    f"{file} is empty.",
                    expected="a TFRecord file with examples",
                    received="0 bytes",
                    fix="write it again, or remove it",
                )
        return files

    def records(self, files: Any) -> Any:
        """Return the serialized examples of some files."""
        import tensorflow as tf

        return tf.data.TFRecordDataset(files, compression_type=self._compression())

    def _compression(self) -> str:
        return "GZIP" if self.files()[0].endswith(".gz") else ""

    def first_spec(self) -> dict[str, Any]:
        """Return ``spec``, or the types and lengths of the first example."""
        import tensorflow as tf

        if self.spec is not None:
            return dict(self.spec)
        spec, file = {}, self.files()[0]
        try:
            first = next(iter(self.records([file])), None)
        except tf.errors.DataLossError as error:
            raise self._broken() from error
        if first is None:
            raise UserError(f"{file} holds no examples.", expected="one", received="an empty file")
        for name, value in tf.train.Example.FromString(first.numpy()).features.feature.items():
            kind = value.WhichOneof("kind")
            if kind is None:
                continue
            dtype = {"bytes_list": tf.string, "float_list": tf.float32, "int64_list": tf.int64}
            length = len(getattr(value, kind).value)
            spec[name] = tf.io.FixedLenFeature([] if length == 1 else [length], dtype[kind])
        return dict(sorted(spec.items()))

    def _broken(self) -> UserError:
        """Return the error that names the first file that cannot be read."""
        import tensorflow as tf

        for file in self.files():
            read = 0
            try:
                for _ in self.records([file]):
                    read += 1
            except tf.errors.DataLossError as error:
                return UserError(
                    f"{file} is damaged after {read:,} examples.",
                    expected="an intact TFRecord file",
                    received=first_line(error),
                    fix="write it again, or leave it out",
                )
        return UserError(f"{self.path} was damaged while it was read.", received="data loss")
