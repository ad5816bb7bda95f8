"""Versions of what is installed, read without loading any of it."""

from __future__ import annotations

import ast
import platform
import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution, distributions, version
from pathlib import Path
from typing import Any

import tfopt

_NAMED = (
    "tensorflow",
    "tensorflow-cpu",
    "keras",
    "tf-keras",
    "tensorflow-model-optimization",
    "tensorflow-datasets",
    "ai-edge-litert",
    "ml-dtypes",
    "numpy",
    "psutil",
)
_BUILD_INFO = "tensorflow/python/platform/build_info.py"
_CUDA = re.compile(r"nvidia-cuda-runtime(-cu\d+)?")
_CUDNN = re.compile(r"nvidia-cudnn(-cu\d+)?")


def package_versions() -> dict[str, str]:
    """Python, tfopt, and what of the rest is installed; NVIDIA's packages all."""
    found = {"python": platform.python_version(), "tfopt": tfopt.__version__}
    for name in _NAMED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    nvidia = {
        name.lower(): each.version
        for each in distributions()
        if (name := each.metadata["Name"] or "").lower().startswith("nvidia-")
    }
    return {**found, **dict(sorted(nvidia.items()))}


def cuda_told(packages: Mapping[str, str], newest_by_driver: str | None) -> str | None:
    """What is known of CUDA: the driver's, the installed one, the one of TensorFlow's build."""
    built = tensorflow_build().get("cuda_version")
    told = [f"driver up to {newest_by_driver}"] if newest_by_driver else []
    return _listed(told + _installed(packages, _CUDA), built)


def cudnn_told(packages: Mapping[str, str]) -> str | None:
    """What is known of cuDNN: the installed one, the one of TensorFlow's build."""
    return _listed(_installed(packages, _CUDNN), tensorflow_build().get("cudnn_version"))


def tensorflow_build() -> dict[str, Any]:
    """What TensorFlow says it was built with; empty where it does not."""
    for package in ("tensorflow", "tensorflow-cpu"):
        try:
            path = distribution(package).locate_file(_BUILD_INFO)
            return _literal(Path(str(path)).read_text(encoding="utf-8"))
        except (PackageNotFoundError, OSError, SyntaxError, ValueError):
            continue
    return {}


def _literal(source: str) -> dict[str, Any]:
    """The pairs in ``build_info = collections.OrderedDict([...])``."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            return dict(ast.literal_eval(node.value.args[0]))
    return {}


def _installed(packages: Mapping[str, str], name: re.Pattern[str]) -> list[str]:
    return [f"{each} {found}" for each, found in packages.items() if name.fullmatch(each)]


def _listed(told: list[str], built: Any) -> str | None:
    if built:
        told = [*told, f"TensorFlow built for {built}"]
    return ", ".join(told) or None
