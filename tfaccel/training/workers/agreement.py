"""What all workers of a run must agree on, besides their cluster, their versions and their plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfaccel.planning.reference import get_signature
from tfaccel.planning.workload import Workload

_DIGITS = 12
_OWN_PLACES = ("data_dir",)  # options that may differ: each machine has its data where it likes


def settings_to_agree_on(workload: Workload, config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings and the code of a run by name, which workers compare before they train.

    The code is that of the model, its compile arguments and the augmentation, as a digest; see `get_signature`. The
    code that reads the data may contain paths, which differ between machines, so the engine compares first batches
    instead.

    Args:
        workload: what this worker trains.
        config: the config of its run directory.

    Example:
        >>> work = Workload("digits", object, dict, print, global_batch_size=8, options={"width": 4})
        >>> sorted(settings_to_agree_on(work, {"epochs": 3, "options": {"width": 4}}))
        ['epochs', 'options.width', 'the code of the model', 'the number of training examples']
    """
    options = {f"options.{name}": value for name, value in dict(config.get("options", {})).items()}
    same = {name: value for name, value in config.items() if name != "options"}
    same.update({name: value for name, value in options.items() if name.removeprefix("options.") not in _OWN_PLACES})
    same["the number of training examples"] = workload.num_train_examples
    same["the code of the model"] = _get_code(workload.build_model, workload.compile_args)
    if workload.augment is not None:
        same["the code of the augmentation"] = _get_code(workload.augment)
    return same


def _get_code(*functions: Any) -> str:
    return " ".join(get_signature(function)[:_DIGITS] for function in functions)
