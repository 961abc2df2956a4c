"""What a rule sees, and what it answers."""

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
    """A plan in the making: the machine, the workload, what was fixed, and the fields decided so far.

    Args:
        hardware: the machine.
        workload: what is to be trained.
        fixed: the fields that may not be changed.
        choices: field -> the choice made; where the replicas run is always among them.
    """

    hardware: Hardware
    workload: Workload
    fixed: Mapping[str, Any]
    choices: Mapping[str, Choice]

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
        """Copies of the model in all processes."""
        return len(self["devices"]) * int(self["num_workers"])


Rule = Callable[[Case], list[Choice]]
