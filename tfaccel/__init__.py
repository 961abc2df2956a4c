"""tfaccel: train Keras 3 models correctly and fast on every TensorFlow strategy.

Importing this package does not import TensorFlow; the modules of the names below are imported on first use.
"""

from importlib import import_module
from typing import Any

from tfaccel.known_names import no_attribute

__version__ = "0.1.0"

# Public name -> the module that defines it.
_PUBLIC_NAMES = {
    "Hardware": "tfaccel.hardware.hardware",
    "detect_hardware": "tfaccel.hardware.detect",
    "Plan": "tfaccel.planning.plan",
    "Workload": "tfaccel.planning.workload",
    "candidate_plans": "tfaccel.planning.candidates",
    "default_plan": "tfaccel.planning.candidates",
    "Runtime": "tfaccel.training.runtime",
    "fit": "tfaccel.training.fit",
    "Resume": "tfaccel.training.run.resume",
    "evaluate": "tfaccel.training.evaluate",
    "predict": "tfaccel.training.evaluate",
    "train": "tfaccel.training.train",
    "check": "tfaccel.training.check",
    "CheckResult": "tfaccel.training.check",
    "find_fastest": "tfaccel.measuring.find_fastest",
    "find_learning_rate": "tfaccel.tuning.find_learning_rate",
    "LearningRateTest": "tfaccel.tuning.learning_rate_report",
    "LearningRateReport": "tfaccel.tuning.learning_rate_report",
    "estimate_memory": "tfaccel.measuring.estimate_memory",
    "MemoryEstimate": "tfaccel.measuring.memory_estimate",
    "find_batch_size": "tfaccel.measuring.find_batch_size",
    "notebook_launch": "tfaccel.launching.notebook_launch",
    "BatchOptions": "tfaccel.measuring.batch_options",
    "BatchReport": "tfaccel.measuring.batch_report",
    "MeasureOptions": "tfaccel.measuring.measure_options",
    "estimate_scaling": "tfaccel.extras.estimates.estimate_scaling",
    "ScalingOptions": "tfaccel.extras.estimates.scaling",
    "ScalingEstimate": "tfaccel.extras.estimates.scaling",
    "Interconnect": "tfaccel.extras.estimates.interconnect",
    "compare_devices": "tfaccel.extras.estimates.compare_devices",
    "DeviceComparison": "tfaccel.extras.estimates.device_comparison",
    "GpuAssumptions": "tfaccel.extras.estimates.device_comparison",
    "ComparisonOptions": "tfaccel.extras.estimates.compare_devices",
    "Report": "tfaccel.measuring.report",
    "cost_of": "tfaccel.measuring.cost_of",
    "ModelCost": "tfaccel.costs.model_cost",
    "StepCost": "tfaccel.costs.model_cost",
    "roofline": "tfaccel.measuring.roofline",
    "Roofline": "tfaccel.measuring.roofline_report",
    "Performance": "tfaccel.training.run.performance",
    "export": "tfaccel.exporting.export",
    "search": "tfaccel.tuning.search",
    "write_report": "tfaccel.html_report.write_report",
    "compress": "tfaccel.compressing.compress",
    "TrainResult": "tfaccel.training.run.result",
    "Device": "tfaccel.hardware.hardware",
    "TrainingOptions": "tfaccel.training.training_options",
    "ExportResult": "tfaccel.exporting.export_result",
    "SearchResult": "tfaccel.tuning.search_result",
    "CompressResult": "tfaccel.compressing.comparison.gate",
    "ImageInput": "tfaccel.data.raw_input",
    "TextInput": "tfaccel.data.raw_input",
    "TableInput": "tfaccel.data.raw_input",
    "Run": "tfaccel.exporting.load_run",
    "load_run": "tfaccel.exporting.load_run",
    "distill": "tfaccel.compressing.distillation",
    "serve": "tfaccel.extras.serving.server",
    "ModelConfig": "tfaccel.extras.serving.model_config",
    "ServeOptions": "tfaccel.extras.serving.options",
    "TfaccelError": "tfaccel.errors",
    "PlanError": "tfaccel.errors",
    "HardwareError": "tfaccel.errors",
    "DataError": "tfaccel.errors",
    "CoupledRowsError": "tfaccel.errors",
    "RunDirError": "tfaccel.errors",
    "WorkloadError": "tfaccel.errors",
    "ClusterError": "tfaccel.errors",
    "ClusterSettingsError": "tfaccel.errors",
    "LaunchError": "tfaccel.errors",
    "CompressionError": "tfaccel.errors",
    "ExportError": "tfaccel.errors",
    "ServeError": "tfaccel.errors",
    "SearchError": "tfaccel.errors",
    "ReportError": "tfaccel.errors",
    "NonFiniteLossError": "tfaccel.errors",
    "RunStopped": "tfaccel.errors",
    "OutOfMemoryError": "tfaccel.errors",
    "VersionError": "tfaccel.errors",
    "Lars": "tfaccel.training.lars",
    "recipe": "tfaccel.training.recipe",
    "Count": "tfaccel.training.recipe",
    "DataPath": "tfaccel.training.recipe",
    "Fraction": "tfaccel.training.recipe",
}

_PUBLIC_PACKAGES = ("layers", "ops")  # as tfaccel.ops.sum_over_replicas, without an import of their own

__all__ = ["__version__", *sorted(_PUBLIC_NAMES)]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC_NAMES:
        return getattr(import_module(_PUBLIC_NAMES[name]), name)
    if name in _PUBLIC_PACKAGES:
        return import_module(f"tfaccel.{name}")
    raise no_attribute("tfaccel", name, __all__)


def __dir__() -> list[str]:
    return sorted(__all__)
