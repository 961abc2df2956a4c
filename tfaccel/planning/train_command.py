"""The command that trains a workload with a plan."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from tfaccel.planning.plan import SETTINGS, Plan

_SWITCHES = {True: "on", False: "off", None: "none"}
_SHARED_FLAGS = ("intra_op_threads", "inter_op_threads")  # --num_threads sets both


def train_command(workload: Any, options: Mapping[str, Any], plan: Plan, rules: Plan) -> str:
    """What trains a workload with a plan: a command for a recipe or an import path, else a call.

    Args:
        workload: a recipe's name, an import path, or anything else that `tfaccel.train` takes.
        options: arguments of the function that makes the workload.
        plan: the plan.
        rules: the plan that is used without flags; its fields are left out.

    Example:
        >>> rules = Plan(strategy="none", devices=("CPU:0",), global_batch_size=32)
        >>> plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=32, jit_compile=True, onednn=False)
        >>> train_command("image_classification", {"width": 64}, plan, rules)
        'tfaccel train --recipe=image_classification --width=64 --xla=on --set=onednn=off --run_dir=DIR'
    """
    if not isinstance(workload, str):
        return 'report.plan.save("plan.json"), then tfaccel.train(..., plan=tfaccel.Plan.load("plan.json"))'
    flags = [f"--{'workload' if ':' in workload else 'recipe'}={workload}"]
    flags += [f"--{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in options.items()]
    for name, setting in SETTINGS.items():
        value = getattr(plan, name)
        if value != getattr(rules, name):
            has_flag = setting.flag is not None and name not in _SHARED_FLAGS
            flags.append(f"--{setting.flag}={_text(value)}" if has_flag else f"--set={name}={_text(value)}")
    return shlex.join(["tfaccel", "train", *flags, "--run_dir=DIR"])


def _text(value: Any) -> str:
    if isinstance(value, bool | None):
        return _SWITCHES[value]
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
