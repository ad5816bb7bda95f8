"""tfopt: makes a Keras 3 training faster and its model smaller, and measures each step.

Smaller models: prune, cluster, quantize_aware, quantize and remove_channels; distill and
sensitivity help to lose little by it, footprint measures what it brought, strip leaves a plain
model. Faster training: place, mixed_precision, distribute, pipeline, execution, keep_host_memory.
Training that survives, and without waiting: resume, replica_times, train_asynchronously.
Each is also a transform (Prune, QuantizeAware ...), a link of a measured chain: Job, chain, run.
``help(tfopt.prune)`` explains one.

Importing this package imports neither TensorFlow nor NVML: public names are loaded when they
are first used. Where Keras is there already, it learns to read files with something held in them.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    # Functions on real Keras objects.
    "place": "tfopt.transforms.placement",
    "keep_host_memory": "tfopt.transforms.host_memory",
    "mixed_precision": "tfopt.transforms.precision",
    "distribute": "tfopt.transforms.distribution",
    "pipeline": "tfopt.transforms.pipeline",
    "execution": "tfopt.transforms.execution",
    "remat": "tfopt.transforms.remat",
    "accumulate": "tfopt.transforms.accumulation",
    "scaled_learning_rate": "tfopt.transforms.learning_rate",
    "prune": "tfopt.compression.masks.pruning",
    "pruning_report": "tfopt.compression.masks.pruning",
    "distill": "tfopt.compression.distillation",
    "sensitivity": "tfopt.compression.masks.sensitivity",
    "Sensitivity": "tfopt.compression.masks.sensitivity_table",
    "cluster": "tfopt.compression.clusters.clustering",
    "clustering_report": "tfopt.compression.clusters.clustering",
    "training_memory": "tfopt.memory_estimate.estimate",
    "TrainingMemory": "tfopt.memory_estimate.estimate",
    "explain_out_of_memory": "tfopt.out_of_memory.explain",
    "OutOfMemory": "tfopt.out_of_memory.explain",
    "hold": "tfopt.compression.held.applying",
    "strip": "tfopt.compression.stripping",
    "remove_channels": "tfopt.compression.channels.removal",
    "channels_report": "tfopt.compression.channels.removal",
    "ChannelOptions": "tfopt.compression.channels.removal",
    "ConstantSparsity": "tfopt.compression.masks.schedules",
    "PolynomialSparsity": "tfopt.compression.masks.schedules",
    "WeightMask": "tfopt.compression.masks.weight_mask",
    "WeightClusters": "tfopt.compression.clusters.weight_clusters",
    "Magnitude": "tfopt.compression.masks.criteria",
    "Movement": "tfopt.compression.masks.criteria",
    "Random": "tfopt.compression.masks.criteria",
    "Unstructured": "tfopt.compression.masks.patterns",
    "NOfM": "tfopt.compression.masks.patterns",
    "Block": "tfopt.compression.masks.patterns",
    "quantize_aware": "tfopt.compression.aware.quantization_aware",
    "quantization_report": "tfopt.compression.aware.quantization_aware",
    "quantize": "tfopt.compression.quantized.quantization",
    "resume": "tfopt.resuming.callback",
    "replica_times": "tfopt.workers.replica_times",
    "Monitor": "tfopt.monitor.outlets.callback",
    # The same as values, to put in a chain.
    "Place": "tfopt.transforms.placement",
    "KeepHostMemory": "tfopt.transforms.host_memory",
    "MixedPrecision": "tfopt.transforms.precision",
    "Distribute": "tfopt.transforms.distribution",
    "Pipeline": "tfopt.transforms.pipeline",
    "PipelineOptions": "tfopt.transforms.pipeline",
    "Execution": "tfopt.transforms.execution",
    "Remat": "tfopt.transforms.remat",
    "Accumulate": "tfopt.transforms.accumulation",
    "LearningRate": "tfopt.transforms.learning_rate",
    "Distill": "tfopt.transforms.distillation",
    "Prune": "tfopt.transforms.pruning",
    "Cluster": "tfopt.transforms.clustering",
    "QuantizeAware": "tfopt.transforms.quantize_aware",
    "RemoveChannels": "tfopt.transforms.channels",
    "Quantize": "tfopt.transforms.quantization",
    # Job -> chain -> run -> report.
    "Job": "tfopt.job",
    "Data": "tfopt.job",
    "Transform": "tfopt.job",
    "chain": "tfopt.job",
    "run": "tfopt.runner",
    "Outcome": "tfopt.runner",
    "footprint": "tfopt.bench.footprint",
    "doctor": "tfopt.diagnosis.examine",
    "hardware_estimate": "tfopt.hardware.estimate",
    "find_batch_size": "tfopt.batch_size.find",
    "BatchSizes": "tfopt.batch_size.found",
    "train_asynchronously": "tfopt.asynchronous.train",
    "Report": "tfopt.report.schema",
    "UserError": "tfopt.errors",
}

__all__ = [
    "Accumulate",
    "BatchSizes",
    "Block",
    "ChannelOptions",
    "Cluster",
    "ConstantSparsity",
    "Data",
    "Distill",
    "Distribute",
    "Execution",
    "Job",
    "KeepHostMemory",
    "LearningRate",
    "Magnitude",
    "MixedPrecision",
    "Monitor",
    "Movement",
    "NOfM",
    "OutOfMemory",
    "Outcome",
    "Pipeline",
    "PipelineOptions",
    "Place",
    "PolynomialSparsity",
    "Prune",
    "Quantize",
    "QuantizeAware",
    "Random",
    "Remat",
    "RemoveChannels",
    "Report",
    "Sensitivity",
    "TrainingMemory",
    "Transform",
    "Unstructured",
    "UserError",
    "WeightClusters",
    "WeightMask",
    "__version__",
    "accumulate",
    "chain",
    "channels_report",
    "cluster",
    "clustering_report",
    "distill",
    "distribute",
    "doctor",
    "execution",
    "explain_out_of_memory",
    "find_batch_size",
    "footprint",
    "hardware_estimate",
    "hold",
    "keep_host_memory",
    "mixed_precision",
    "pipeline",
    "place",
    "prune",
    "pruning_report",
    "quantization_report",
    "quantize",
    "quantize_aware",
    "remat",
    "remove_channels",
    "replica_times",
    "resume",
    "run",
    "scaled_learning_rate",
    "sensitivity",
    "strip",
    "train_asynchronously",
    "training_memory",
]

if TYPE_CHECKING:
    from tfopt.asynchronous.train import train_asynchronously
    from tfopt.batch_size.find import find_batch_size
    from tfopt.batch_size.found import BatchSizes
    from tfopt.bench.footprint import footprint
    from tfopt.compression.aware.quantization_aware import quantization_report, quantize_aware
    from tfopt.compression.channels.removal import (
        ChannelOptions,
        channels_report,
        remove_channels,
    )
    from tfopt.compression.clusters.clustering import cluster, clustering_report
    from tfopt.compression.clusters.weight_clusters import WeightClusters
    from tfopt.compression.distillation import distill
    from tfopt.compression.held.applying import hold
    from tfopt.compression.masks.criteria import Magnitude, Movement, Random
    from tfopt.compression.masks.patterns import Block, NOfM, Unstructured
    from tfopt.compression.masks.pruning import prune, pruning_report
    from tfopt.compression.masks.schedules import ConstantSparsity, PolynomialSparsity
    from tfopt.compression.masks.sensitivity import sensitivity
    from tfopt.compression.masks.sensitivity_table import Sensitivity
    from tfopt.compression.masks.weight_mask import WeightMask
    from tfopt.compression.quantized.quantization import quantize
    from tfopt.compression.stripping import strip
    from tfopt.diagnosis.examine import doctor
    from tfopt.errors import UserError
    from tfopt.hardware.estimate import hardware_estimate
    from tfopt.job import Data, Job, Transform, chain
    from tfopt.memory_estimate.estimate import TrainingMemory, training_memory
    from tfopt.monitor.outlets.callback import Monitor
    from tfopt.out_of_memory.explain import OutOfMemory, explain_out_of_memory
    from tfopt.report.schema import Report
    from tfopt.resuming.callback import resume
    from tfopt.runner import Outcome, run
    from tfopt.transforms.accumulation import Accumulate, accumulate
    from tfopt.transforms.channels import RemoveChannels
    from tfopt.transforms.clustering import Cluster
    from tfopt.transforms.distillation import Distill
    from tfopt.transforms.distribution import Distribute, distribute
    from tfopt.transforms.execution import Execution, execution
    from tfopt.transforms.host_memory import KeepHostMemory, keep_host_memory
    from tfopt.transforms.learning_rate import LearningRate, scaled_learning_rate
    from tfopt.transforms.pipeline import Pipeline, PipelineOptions, pipeline
    from tfopt.transforms.placement import Place, place
    from tfopt.transforms.precision import MixedPrecision, mixed_precision
    from tfopt.transforms.pruning import Prune
    from tfopt.transforms.quantization import Quantize
    from tfopt.transforms.quantize_aware import QuantizeAware
    from tfopt.transforms.remat import Remat, remat
    from tfopt.workers.replica_times import replica_times


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tfopt' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


if "keras" in sys.modules and "tensorflow" in sys.modules:
    import_module("tfopt.compression.saved")


def __dir__() -> list[str]:
    return sorted(__all__)
