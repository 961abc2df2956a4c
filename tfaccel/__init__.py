"""tfaccel: train Keras 3 models correctly and fast on every TensorFlow strategy.

Importing this package does not import TensorFlow; the modules of the names below are imported on first use.
More names are in `tfaccel.options`, `tfaccel.estimates`, `tfaccel.serving`, `tfaccel.optimizers` and `tfaccel.errors`.
"""

import warnings
from importlib import import_module
from typing import Any

from tfaccel.known_names import lazy_names

__version__ = "0.1.0"

# Public name -> the module that defines it, and its name there if that differs.
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
    "LearningRateReport": "tfaccel.tuning.learning_rate_report",
    "find_batch_size": "tfaccel.measuring.find_batch_size",
    "notebook_launch": "tfaccel.launching.notebook_launch",
    "BatchReport": "tfaccel.measuring.batch_report",
    "Report": "tfaccel.measuring.report",
    "export": "tfaccel.exporting.export",
    "search": "tfaccel.tuning.search",
    "compress": "tfaccel.compressing.compress",
    "TrainResult": "tfaccel.training.run.result",
    "ExportResult": "tfaccel.exporting.export_result",
    "SearchResult": "tfaccel.tuning.search_result",
    "CompressResult": "tfaccel.compressing.compress_result",
    "Run": "tfaccel.exporting.load_model",
    "load_run": "tfaccel.exporting.load_model",
    "distill": "tfaccel.compressing.distillation",
    "serve": "tfaccel.extras.serving.server",
    "TfaccelError": "tfaccel.errors",
    "recipe": "tfaccel.training.recipe",
    "report": "tfaccel.html_report.write_report:write_report",
}

# Found as tfaccel.ops.sum_over_replicas, say, without an import of their own.
_PUBLIC_MODULES = ("errors", "estimates", "layers", "ops", "optimizers", "options", "serving")

# Where names are now that were here in version 0.1; those still work, until version 0.3.
_MOVED_TO = ("errors", "estimates", "optimizers", "options", "serving")

__all__ = ["__version__", *sorted(_PUBLIC_NAMES)]
_RENAMED = {"write_report": "tfaccel.report", "cost_of": "tfaccel.estimates.get_cost"}
_get_public, __dir__ = lazy_names("tfaccel", _PUBLIC_NAMES, __all__)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC_MODULES:
        return import_module(f"tfaccel.{name}")
    found = _RENAMED.get(name) or _moved(name)
    if found is None:
        return _get_public(name)
    warnings.warn(f"tfaccel.{name} is now {found}; use that name.", DeprecationWarning, stacklevel=2)
    module, _, new = found.rpartition(".")
    return getattr(import_module(module), new)


def _moved(name: str) -> str | None:
    """The present name of one that was here."""
    if name in _PUBLIC_NAMES or name.startswith("_"):
        return None
    modules = (f"tfaccel.{one}" for one in _MOVED_TO)
    return next((f"{one}.{name}" for one in modules if name in dir(import_module(one))), None)
