"""Where figures come from: machine, versions, limits, code, and what was asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tfopt.report.strict import ReportError, require_number


@dataclass(frozen=True)
class Provenance:
    """Everything that two measurements must agree on to be compared, and what helps to repeat.

    Attributes:
        cpu_flags: Those that change what a kernel can do (AVX, AMX …).
        cpu_count: Cores that this process may use.
        cpu_limit: The container's quota, in cores; None without one.
        memory_limit_gib: The container's limit; None without one.
        gpus: Name of each GPU that is visible, in CUDA's order.
        no_gpu_reason: Where ``gpus`` is empty.
        git: Commit, and "with uncommitted changes" where there are; None outside of git.
        packages: Versions by name: tfopt, tensorflow, keras, numpy …, python.
        variables: Environment variables that change how TensorFlow, CUDA or Keras behave.
        directory: The name of the folder it was started in.
    """

    platform: str
    cpu: str
    cpu_flags: tuple[str, ...]
    cpu_count: int
    cpu_limit: float | None
    memory_gib: float
    memory_limit_gib: float | None
    container: str | None
    gpus: tuple[str, ...]
    no_gpu_reason: str | None
    driver: str | None
    cuda: str | None
    cudnn: str | None
    packages: Mapping[str, str]
    git: str | None
    variables: Mapping[str, str]
    directory: str

    def __post_init__(self) -> None:
        require_number("cpu_count", self.cpu_count, least=1)
        require_number("memory_gib", self.memory_gib, above=0)
        if bool(self.gpus) == bool(self.no_gpu_reason):
            raise ReportError(
                "no_gpu_reason",
                expected="null when there are GPUs, and a reason when there are none",
                received=f"{self.no_gpu_reason!r} with {len(self.gpus)} GPUs",
            )
