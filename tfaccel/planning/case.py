"""The input and output of a planning rule: `Case` and `Choice`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tfaccel.hardware.hardware import Device, Hardware
from tfaccel.planning.plan_fields import parse_device
from tfaccel.planning.workload import Workload


@dataclass(frozen=True)
class Choice:
    """One value of one plan field, and why."""

    value: Any
    reason: str


@dataclass(frozen=True, kw_only=True)
class Case:
    """A partial plan: the machine, the workload, the fixed fields, and the fields decided so far.

    Args:
        hardware: the machine.
        workload: the workload to train.
        fixed: the fields with fixed values.
        choices: field -> its choice; the placement of the replicas is always included.
        step_operations: floating-point operations of an optimizer step's matrix products and convolutions; None if
            unknown.
    """

    hardware: Hardware
    workload: Workload
    fixed: Mapping[str, Any]
    choices: Mapping[str, Choice]
    step_operations: int | None = None

    def __getitem__(self, field: str) -> Any:
        """The value decided for a field."""
        return self.choices[field].value

    @property
    def kind(self) -> str:
        """The kind of the devices in use: "CPU", "GPU" or "TPU"."""
        return parse_device(self["devices"][0])[0]

    @property
    def accelerators(self) -> tuple[Device, ...]:
        """The GPUs or TPUs in use; empty on CPUs."""
        return tuple(device for device in self.hardware.devices if device.name in self["devices"])

    @property
    def num_replicas(self) -> int:
        """Replicas in all processes."""
        return max(1, len(self["devices"]) // int(self["pipeline_stages"])) * int(self["num_workers"])


Rule = Callable[[Case], list[Choice]]
