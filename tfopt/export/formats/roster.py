"""All formats by name."""

from __future__ import annotations

from tfopt.export.formats.format import Format
from tfopt.export.formats.litert import LiteRT
from tfopt.export.formats.onnx import Onnx
from tfopt.export.formats.onnx_cuda import OnnxCuda
from tfopt.export.formats.openvino import OpenVino
from tfopt.export.formats.saved_model import SavedModel
from tfopt.export.formats.saved_model_xla import SavedModelXla
from tfopt.export.formats.tensorrt import TensorRt

_ALL = (SavedModel(), SavedModelXla(), LiteRT(), Onnx(), OnnxCuda(), OpenVino(), TensorRt())
FORMATS: dict[str, Format] = {file_format.name: file_format for file_format in _ALL}
