"""What training costs: operations, memory, limits of the machine, more devices, other devices."""

import warnings
from typing import Any

from tfaccel.known_names import lazy_names

# Public name -> the module that defines it.
_PUBLIC_NAMES = {
    "estimate_memory": "tfaccel.measuring.estimate_memory",
    "MemoryEstimate": "tfaccel.measuring.memory_estimate",
    "estimate_scaling": "tfaccel.extras.estimates.estimate_scaling",
    "ScalingOptions": "tfaccel.extras.estimates.scaling",
    "ScalingEstimate": "tfaccel.extras.estimates.scaling",
    "Interconnect": "tfaccel.extras.estimates.interconnect",
    "compare_devices": "tfaccel.extras.estimates.compare_devices",
    "DeviceComparison": "tfaccel.extras.estimates.device_comparison",
    "GpuAssumptions": "tfaccel.extras.estimates.device_comparison",
    "ComparisonOptions": "tfaccel.extras.estimates.compare_devices",
    "get_cost": "tfaccel.measuring.get_cost",
    "ModelCost": "tfaccel.costs.model_cost",
    "StepCost": "tfaccel.costs.model_cost",
    "roofline": "tfaccel.measuring.roofline",
    "Roofline": "tfaccel.measuring.roofline",
    "Performance": "tfaccel.training.run.performance",
}

__all__ = sorted(_PUBLIC_NAMES)
_get_public, __dir__ = lazy_names(__name__, _PUBLIC_NAMES, __all__)


def __getattr__(name: str) -> Any:
    if name != "cost_of":
        return _get_public(name)
    now = "tfaccel.estimates.get_cost"
    warnings.warn(f"tfaccel.estimates.{name} is now {now}; use that name.", DeprecationWarning, stacklevel=2)
    return _get_public("get_cost")
