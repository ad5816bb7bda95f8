"""ONNX files, run by ONNX Runtime on an NVIDIA GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from tfopt.errors import UserError
from tfopt.export.formats.format import Runner, Signature
from tfopt.export.formats.onnx import Onnx

_REPLACE = "pip uninstall -y onnxruntime onnxruntime-gpu; pip install 'tfopt[onnx-gpu]'"


class OnnxCuda(Onnx):
    """Files for ONNX Runtime's CUDA provider, which must not fall back to the CPU.

    Has not run on hardware yet.
    """

    name = "onnx_cuda"
    engine = "ONNX Runtime on CUDA"
    packages: ClassVar = {"onnxruntime": "onnxruntime-gpu", "tf2onnx": "tf2onnx", "onnx": "onnx"}
    extra = "onnx-gpu"
    # The provider computes integers in float.
    precisions = ("float32", "float16")
    devices = ("gpu",)
    provider = "CUDAExecutionProvider"

    def require(self) -> None:
        """Raise if ``onnxruntime`` is missing, or is the package for CPUs."""
        super().require()
        self.require_gpu()

    def require_gpu(self) -> None:
        """Raise if ONNX Runtime has no CUDA provider."""
        import onnxruntime

        providers = onnxruntime.get_available_providers()
        if self.provider not in providers:
            raise UserError(
                "ONNX Runtime would compute on the CPU: it has no CUDA provider.",
                expected="onnxruntime-gpu alone: both packages install the module onnxruntime",
                received=", ".join(providers),
                fix=_REPLACE,
            )

    def open(self, folder: Path, signature: Signature, threads: int) -> Runner:
        """Open the file on the GPU; raise if ONNX Runtime falls back to the CPU."""
        import onnxruntime

        self.require_gpu()
        onnxruntime.preload_dlls()  # CUDA and cuDNN, where pip installed them
        return super().open(folder, signature, threads)

    def session(self, path: Path, options: Any) -> Any:
        """Return a session; raise if it fell back to another provider."""
        session = super().session(path, options)
        providers = session.get_providers()
        if providers[0] != self.provider:
            raise UserError(
                "ONNX Runtime fell back to the CPU: its CUDA provider could not start.",
                expected=f"{self.provider} first",
                received=", ".join(providers),
                fix="pip install -U 'tfopt[onnx-gpu]' installs CUDA 12 and cuDNN 9; nvidia-smi "
                "shows whether there is a GPU",
            )
        return session

    def opening(self, path: str) -> str:
        """Return lines that open the file on the GPU as ``session``, or fail."""
        return (
            "import onnxruntime\n"
            "onnxruntime.preload_dlls()  # CUDA and cuDNN, where pip installed them\n"
            f'session = onnxruntime.InferenceSession("{path}", providers=["{self.provider}"])\n'
            f'assert session.get_providers()[0] == "{self.provider}"  # else it is the CPU'
        )
