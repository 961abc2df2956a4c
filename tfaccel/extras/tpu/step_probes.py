"""The child process that traces a workload's train step for a TPU, on the CPU; `readiness` starts it."""

from __future__ import annotations

import sys

from tfaccel.hardware.doctor_probes import serve_probes
from tfaccel.planning.plan import Plan
from tfaccel.training.runtime import Runtime

DTYPE_POLICY = "mixed_bfloat16"


def main(argv: list[str]) -> None:
    """Runs the probes with TensorFlow set up for one device in mixed_bfloat16."""
    plan = Plan(strategy="none", devices=("CPU:0",), dtype_policy=DTYPE_POLICY, global_batch_size=1)
    with Runtime(plan, seed=0):
        from tfaccel.extras.tpu.traced_step import PROBES  # imports TensorFlow, which the runtime has set up

        serve_probes(argv, PROBES)


if __name__ == "__main__":
    main(sys.argv)
