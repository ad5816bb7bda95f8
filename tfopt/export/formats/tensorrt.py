"""TensorRT engines, built from ONNX files through NVIDIA's polygraphy.

An engine runs on the GPU model and the version that built it. TensorRT 11 takes its precision from
the ONNX file (strongly typed).
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from tfopt.errors import UserError
from tfopt.export.formats.format import Format, Graph, Graphs, Precision, Runner, Signature
from tfopt.export.formats.onnx import Onnx

_BATCHES = (1, 8, 64)
"""The smallest, the usual and the largest batch size of an engine."""


class TensorRt(Format):
    """Engines for one model of NVIDIA GPU. Has not run on hardware yet."""

    name = "tensorrt"
    filename = "1/model.plan"
    engine = "TensorRT"
    packages: ClassVar = {
        "tensorrt": "tensorrt",
        "polygraphy": "polygraphy",
        "tf2onnx": "tf2onnx",
        "onnxruntime": "onnxruntime",
    }
    extra = "tensorrt"
    precisions = ("float32", "float16", "int8")
    devices = ("gpu",)

    def write(self, graphs: Graphs, form: Graph, precision: Precision, folder: Path) -> list[str]:
        """Write an ONNX file in the precision, and build its engine."""
        from polygraphy.backend.trt import engine_from_network, network_from_onnx_path, save_engine

        target = folder / self.filename
        target.parent.mkdir(parents=True)
        with tempfile.TemporaryDirectory(prefix="tfopt-") as beside:
            onnx = Path(beside) / "onnx"
            notes = Onnx().write(graphs, form, precision, onnx)
            self.require_gpu()
            network = network_from_onnx_path(str(onnx / Onnx.filename), strongly_typed=True)
            save_engine(engine_from_network(network, config(graphs.signature)), str(target))
            text = (onnx / "config.pbtxt").read_text("utf-8").replace("onnxruntime", "tensorrt")
        (folder / "config.pbtxt").write_text(
            text.replace('name: "onnx"', f'name: "{folder.name}"'), encoding="utf-8"
        )
        return notes

    def open(self, folder: Path, signature: Signature, threads: int) -> Runner:
        """Load the engine onto the GPU."""
        self.require_gpu()
        from polygraphy.backend.common import bytes_from_path
        from polygraphy.backend.trt import TrtRunner, engine_from_bytes

        runner = TrtRunner(engine_from_bytes(bytes_from_path(str(folder / self.filename))))
        runner.activate()

        def run(rows: Any) -> list[Any]:
            result = runner.infer(signature.named(rows), copy_outputs_to_host=True)
            return [result[name].copy() for name in signature.outputs]

        return run

    def require_gpu(self) -> None:
        """Raise if there is no NVIDIA GPU to build an engine on."""
        if shutil.which("nvidia-smi") is None:
            raise UserError(
                "A TensorRT engine is built and run on the NVIDIA GPU that will serve it.",
                expected="a machine with an NVIDIA GPU and its driver",
                received="no nvidia-smi on this machine",
                fix='export "onnx" here, and "tensorrt" on the serving machine',
            )

    def code(self, path: str, signature: Signature) -> str:
        """Return lines that load and run the engine."""
        return (
            "from polygraphy.backend.common import bytes_from_path\n"
            "from polygraphy.backend.trt import TrtRunner, engine_from_bytes\n"
            f'with TrtRunner(engine_from_bytes(bytes_from_path("{path}"))) as runner:\n'
            f"    y = {signature.answer(f'runner.infer({signature.by_name()})')}"
        )


def config(signature: Signature) -> Any:
    """Return the builder's settings, with the batch sizes of the engine."""
    from polygraphy.backend.trt import CreateConfig, Profile

    if signature.batch is not None:
        return CreateConfig()
    profile = Profile()
    for port in signature.inputs:
        profile.add(port.name, *((batch, *port.shape) for batch in _BATCHES))
    return CreateConfig(profiles=[profile])
