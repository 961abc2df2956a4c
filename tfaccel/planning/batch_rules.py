"""Rules for batch sizes and for how many steps go into one call."""

from tfaccel.planning.case import Case, Choice
from tfaccel.planning.device_speeds import estimated_step_seconds

CALL_SECONDS = 0.5  # the middle of 0.2 to 1 s
MOST_STEPS_PER_EXECUTION = 1000
_ROUND_NUMBERS = tuple(digit * 10**power for power in range(4) for digit in (1, 2, 5))
_STEPS_WITHOUT_ESTIMATE = {"CPU": 10, "GPU": 20, "TPU": 100}


def accumulation_steps_rule(case: Case) -> list[Choice]:
    """One: more only save memory."""
    return [
        Choice(
            1, "Micro-batches only save memory, take time, and change batch normalization, which sees one at a time."
        )
    ]


def global_batch_size_rule(case: Case) -> list[Choice]:
    """What the workload recommends, whatever the number of replicas, so that results do not depend on it."""
    recommended = case.workload.global_batch_size
    divisor = case.num_replicas * case["accumulation_steps"]
    lower = recommended // divisor * divisor
    nearest = lower if lower and recommended - lower <= lower + divisor - recommended else lower + divisor
    share = f"{nearest // case.num_replicas} for each of {case.num_replicas} replicas"
    if nearest == recommended:
        tail = "" if case.num_replicas == 1 else f"; {share}"
        return [Choice(recommended, f"Recommended by the workload; the same on any number of devices{tail}.")]
    return [Choice(nearest, f"The size nearest to the recommended {recommended} that divides evenly: {share}.")]


def steps_per_execution_rule(case: Case) -> list[Choice]:
    """So many that one call lasts about half a second; at most an epoch."""
    seconds = estimated_step_seconds(case)
    if seconds is None:
        steps = _STEPS_WITHOUT_ESTIMATE[case.kind]
        missing = "the operations per example" if case.workload.flops_per_example is None else "this device's speed"
        reason = f"A moderate number: without {missing}, a step's time cannot be estimated."
    else:
        steps = _round_number(CALL_SECONDS / seconds)
        reason = (
            f"One call should last 0.2 to 1 s; a step is estimated, from the device's peak speed, at {_said(seconds)} "
            "(good to a factor of a few)."
        )
    examples = case.workload.num_train_examples
    if examples is not None:
        steps_per_epoch = max(1, examples // case["global_batch_size"])
        if steps > steps_per_epoch:
            return [Choice(steps_per_epoch, f"The whole epoch of {steps_per_epoch} steps in one call.")]
    return [Choice(steps, reason)]


def synchronize_batch_norm_rule(case: Case) -> list[Choice]:
    """On: N replicas give what one device gives. To leave it out changes results, so that it is never proposed."""
    steps = case["accumulation_steps"]
    batch = (
        "the whole batch" if steps == 1 else f"each of {steps} micro-batches, which gives other numbers than one step"
    )
    reason = f"Batch normalization takes its statistics over {batch}"
    if case.num_replicas > 1:
        reason += "; over the rows of one replica they would depend on the number of replicas"
        if case["jit_compile"]:
            reason += ". XLA cannot compile the sums over replicas, and stays off for models that have it"
    return [Choice(True, f"{reason}.")]


def _round_number(count: float) -> int:
    """The largest of 1, 2, 5, 10, ... up to the count and the bound; at least 1."""
    return max((n for n in _ROUND_NUMBERS if n <= min(count, MOST_STEPS_PER_EXECUTION)), default=1)


def _said(seconds: float) -> str:
    return (
        f"{seconds * 1e3:.2g} ms" if seconds < 0.0995 else f"{seconds:.2g} s" if seconds < 9.95 else f"{seconds:.0f} s"
    )
