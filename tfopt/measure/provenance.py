"""Record where figures come from: machine, limits, versions, code and settings.

TensorFlow is not loaded, nothing here waits long, and what is not known is None.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import os
import platform
import re
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, distribution, distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

import tfopt
from tfopt.job.cluster_place import usable_cores
from tfopt.job.job import Chain
from tfopt.job.references import check_reference, names_function
from tfopt.measure.machine import container_kind, cpu_flags, cpu_model, read_limits
from tfopt.monitor.nvml import driver_version, gpu_memories, newest_cuda, why_no_gpu
from tfopt.report.bench_report import Provenance

# The code of a job, told by a digest of its files: another digest is other code.
#
# It covers the file of the module that a reference names, or of its whole package every Python
# and TOML file, and the same for each module that those import from a folder of the user's: the
# current one, and those on ``PYTHONPATH`` or added to ``sys.path``. The same files in another
# folder have the same digest.
#
# Not covered: what is installed (its versions are told elsewhere), modules that are imported
# under a name made at run time, data files, folders that are links, and of one package what lies
# beyond ``MOST_FILES``: a folder of data may have a module's name.

MOST_FILES = 20_000
_SOURCES = (".py", ".toml")
_INSTALLED = ("site-packages", "dist-packages")


def code_digest(references: Iterable[str]) -> str:
    """Return the digest of all code that these references name, and of the code it imports."""
    importlib.invalidate_caches()
    own = _own_folders()
    found: dict[str, str] = {}
    waiting = {check_reference(each)[0].partition(".")[0] for each in references}
    # A job may be installed: its own package counts then too, what it imports does not.
    named = frozenset(waiting)
    seen = set(waiting)
    while waiting:
        name = waiting.pop()
        for place, path in _files(_spec(name, own, anywhere=name in named)):
            content = _content(path)
            found[f"{name}/{place}"] = hashlib.sha256(content).hexdigest()
            # What tfopt itself imports is installed: nobody has to read its files for that.
            if path.suffix == ".py" and name != "tfopt":
                new = set(_imported(content)) - seen
                waiting |= new
                seen |= new
    lines = "\n".join(f"{place} {digest}" for place, digest in sorted(found.items()))
    return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def functions_in(chain: Chain) -> Iterator[str]:
    """Return the references of functions that the transforms of a chain call."""
    for part in chain.parts:
        for each in fields(part) if is_dataclass(part) else ():
            value = getattr(part, each.name)
            if names_function(each) and isinstance(value, str):
                yield value


def _own_folders() -> list[str]:
    """Return where a worker looks for modules, in its order, without what is installed."""
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    library = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    own: dict[str, None] = {}
    for folder in (os.getcwd(), *filter(None, before), *sys.path):
        path = os.path.abspath(folder)
        installed = any(part in _INSTALLED for part in Path(path).parts)
        # "lib-dynload" lies in the library, archives are no folders.
        if path not in library and os.path.dirname(path) not in library and not installed:
            own.setdefault(path)
    return list(own)


def _spec(name: str, own: Sequence[str], *, anywhere: bool) -> ModuleSpec | None:
    """Return where a top-level module is: finding one of those imports nothing."""
    try:
        spec = PathFinder.find_spec(name, own)
        return find_spec(name) if spec is None and anywhere else spec
    except (ImportError, ValueError, OSError):
        return None


def _files(spec: ModuleSpec | None) -> Iterator[tuple[str, Path]]:
    """Yield each file with its place below the module."""
    if spec is None:
        return
    if spec.submodule_search_locations is None:
        if spec.origin is not None and spec.has_location:
            yield "", Path(spec.origin)
        return
    left = MOST_FILES
    for root in map(Path, spec.submodule_search_locations):
        for folder, folders, names in os.walk(root):
            left -= len(names)
            # In an order that is the same everywhere, since the count may end it.
            folders[:] = sorted(filter(_open, folders)) if left > 0 else []
            for name in sorted(names):
                path = Path(folder, name)
                if path.suffix in _SOURCES:
                    yield path.relative_to(root).as_posix(), path


def _open(folder: str) -> bool:
    return not folder.startswith(".") and folder not in ("__pycache__", *_INSTALLED)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        return f"cannot be read: {type(error).__name__}".encode()


def _imported(content: bytes) -> Iterator[str]:
    """Return the top-level names that a file imports; none where it is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the user's strings, which Python will tell
            tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


# Which version of the code in a folder was measured, as git knows it.

_PATIENCE_S = 10.0
# What git does not know and a job may be made of.
_SOURCE_FILES = ("*.py", "*.toml")


def git_state(folder: Path) -> str | None:
    """Return the commit, and whether files differ from it; None outside of git.

    Files that git does not know count where they are Python or TOML: a report does not.
    """
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    if not commit:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    unknown = _git(folder, "ls-files", "--others", "--exclude-standard", "--", *_SOURCE_FILES)
    if changed or unknown:
        return f"{commit} with uncommitted changes"
    if changed is None or unknown is None:
        return f"{commit}; git did not tell of uncommitted changes in time"
    return commit


def _git(folder: Path, *arguments: str) -> str | None:
    """Return what git prints, or None where there is no git, no repository or no answer in time."""
    # Without these, asking may refresh the index, and may start the repository's own programs.
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *arguments]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            check=True,
            env={**os.environ, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


# The environment variables that change how TensorFlow, CUDA, Keras and the threads behave.
#
# A value whose name or form looks like a secret is masked.

MASKED = "(masked)"

_PREFIXES = (
    "TF_",
    "CUDA_",
    "NVIDIA_",
    "CUDNN_",
    "CUBLAS_",
    "NCCL_",
    "XLA_",
    "KERAS_",
    "OMP_",
    "GOMP_",
    "MKL_",
    "KMP_",
    "OPENBLAS_",
    "ONEDNN_",
    "DNNL_",
    "MALLOC_",
)
# Terraform's, and what NVIDIA's images ask of a driver.
_NOT = ("TF_VAR_", "TF_CLI_", "TF_TOKEN_", "NVIDIA_REQUIRE_")
_NAMES = frozenset(
    {
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "GLIBC_TUNABLES",
        "PYTHONHASHSEED",
        "PYTHONMALLOC",
        "SLURM_JOB_ID",
        "SLURM_JOB_NODELIST",
        "SLURM_JOB_PARTITION",
        "SLURM_NNODES",
        "SLURM_NTASKS",
        "SLURM_CPUS_PER_TASK",
        "SLURM_GPUS_ON_NODE",
    }
)
_SECRET_NAME = re.compile("TOKEN|KEY|PASSWORD|PASSWD|SECRET|CREDENTIAL", re.IGNORECASE)
_SECRET_IN_ADDRESS = re.compile(r"(?<=://)[^/\s@]+(?=@)")


def relevant_variables(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return those that are set, in alphabetical order."""
    return {
        name: MASKED if _SECRET_NAME.search(name) else _SECRET_IN_ADDRESS.sub(MASKED, value)
        for name, value in sorted(variables.items())
        if name in _NAMES or (name.startswith(_PREFIXES) and not name.startswith(_NOT))
    }


# Versions of what is installed, read without loading any of it.

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


def package_versions() -> dict[str, str]:
    """Return the versions of Python, tfopt, what of the rest is installed, and all of NVIDIA's."""
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


def tensorflow_build() -> dict[str, Any]:
    """Return what TensorFlow says it was built with; empty where it does not."""
    for package in ("tensorflow", "tensorflow-cpu"):
        try:
            path = distribution(package).locate_file(_BUILD_INFO)
            return _literal(Path(str(path)).read_text(encoding="utf-8"))
        except (PackageNotFoundError, OSError, SyntaxError, ValueError):
            continue
    return {}


def _literal(source: str) -> dict[str, Any]:
    """Return the pairs in ``build_info = collections.OrderedDict([...])``."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            return dict(ast.literal_eval(node.value.args[0]))
    return {}


def read_provenance() -> Provenance:
    """Return the provenance of what this process, and the workers it starts, measure."""
    memories = gpu_memories()
    gpus = () if isinstance(memories, str) else tuple(gpu.name for gpu in memories)
    limits, build, folder = read_limits(), tensorflow_build(), Path.cwd()
    cuda = {"driver up to": newest_cuda(), "TensorFlow built for": build.get("cuda_version")}
    return Provenance(
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=cpu_model(),
        cpu_flags=cpu_flags(),
        cpu_count=usable_cores(),
        cpu_limit=limits.cpu,
        memory_gib=round(psutil.virtual_memory().total / 1024**3, 1),
        memory_limit_gib=limits.memory_gib,
        container=container_kind(),
        gpus=gpus,
        no_gpu_reason=None if gpus else why_no_gpu(),
        driver=driver_version(),
        cuda=", ".join(f"{what} {found}" for what, found in cuda.items() if found) or None,
        cudnn=build.get("cudnn_version"),
        packages=package_versions(),
        git=git_state(folder),
        variables=relevant_variables(),
        # Its name alone: a report is shown to others, a path tells of its owner.
        directory=folder.name,
    )
