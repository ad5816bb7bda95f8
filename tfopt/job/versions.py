"""Check the installed TensorFlow and Keras before a function is loaded, without importing them."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tfopt.errors import UserError

_OLDEST = {"TensorFlow": (2, 18), "Keras": (3, 8)}
_PACKAGES = {
    "TensorFlow": ("tensorflow", "tensorflow-cpu", "tf-nightly"),
    "Keras": ("keras", "keras-nightly"),
}


def library_versions() -> dict[str, str]:
    """Return the installed versions of TensorFlow and Keras.

    Example:
        >>> library_versions()
        {'TensorFlow': '2.21.0', 'Keras': '3.15.1'}
    """
    installed = {name: [*_installed(name).values()] for name in _PACKAGES}
    return {name: versions[0] for name, versions in installed.items() if versions}


def quiet_without_gpu() -> None:
    """Hide TensorFlow's log of its import without a GPU, unless it is loaded already."""
    has_gpu = Path("/dev/dxg").exists() or any(Path("/dev").glob("nvidia[0-9]*"))
    if "tensorflow" not in sys.modules and not has_gpu:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


@cache
def require_supported() -> None:
    """Raise the first error of :func:`unsupported`."""
    for error in unsupported():
        raise error


def unsupported() -> Iterator[UserError]:
    """Yield errors for an unsupported TensorFlow or Keras."""
    for library in _PACKAGES:
        installed = _installed(library)
        nightly = [name for name in installed if name.endswith("-nightly")]
        if nightly and len(installed) > 1:
            names = " ".join(installed)
            yield UserError(
                f"{' and '.join(installed)} are both installed, and overwrite each other's files.",
                received=", ".join(f"{name} {number}" for name, number in installed.items()),
                fix=f"pip uninstall {names}; then install one of them",
            )
        for name, number in installed.items():
            if _release(number) < _OLDEST[library]:
                oldest = ".".join(map(str, _OLDEST[library]))
                yield UserError(
                    f"tfopt needs {library} {oldest} or newer.",
                    received=f"{name} {number}",
                    fix=f"pip install --upgrade '{name}>={oldest}'",
                )
    legacy = os.environ.get("TF_USE_LEGACY_KERAS")
    # As TensorFlow reads it; tfmot sets it at import, after TensorFlow has read it.
    if legacy in ("1", "true", "True") and "tensorflow_model_optimization" not in sys.modules:
        yield UserError(
            "tf.keras is Keras 2 in this process, and tfopt trains models of Keras 3.",
            received=f"TF_USE_LEGACY_KERAS={legacy}",
            fix="unset it, and `import keras`; models of Keras 2 for tfmot: `import tf_keras`",
        )
    backend, source = _backend()
    if backend != "tensorflow":
        yield UserError(
            f"Keras runs on {backend}, and tfopt trains on TensorFlow.",
            received=source,
            fix="set KERAS_BACKEND=tensorflow before Keras is imported",
        )


def _installed(library: str) -> dict[str, str]:
    """Return the installed packages of a library with their versions."""
    versions = {}
    for name in _PACKAGES[library]:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def _release(text: str) -> tuple[int, ...]:
    """Return the first two numbers of a version: (3, 16) of "3.16.0.dev2026102704"."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def _backend() -> tuple[str, str]:
    """Return the backend that Keras has, or will have when it is imported, and its source."""
    keras = sys.modules.get("keras")
    if keras is not None and hasattr(keras, "config"):  # its import has ended
        backend = keras.config.backend()
        return backend, f"keras.config.backend() is {backend!r}"
    if backend := os.environ.get("KERAS_BACKEND"):
        return backend, f"KERAS_BACKEND={backend}"
    path = Path(os.environ.get("KERAS_HOME", "~/.keras")).expanduser() / "keras.json"
    try:
        backend = json.loads(path.read_text(encoding="utf-8"))["backend"]
    except (OSError, ValueError, KeyError, TypeError):
        return "tensorflow", "Keras's default"
    return str(backend), f'"backend": "{backend}" in {path}'
