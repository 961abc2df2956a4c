"""Rules for batch sizes and for the number of steps per call."""

from tfaccel.planning.case import Case, Choice


def accumulation_steps_rule(case: Case) -> list[Choice]:
    """One: more only save memory; four for a model in stages, which then overlap."""
    if case["pipeline_stages"] > 1:
        return [
            Choice(4, "Stages work side by side on different micro-batches; batch normalization sees one at a time.")
        ]
    return [
        Choice(
            1, "Micro-batches only save memory, take time, and change batch normalization, which sees one at a time."
        )
    ]


def global_batch_size_rule(case: Case) -> list[Choice]:
    """The workload's recommendation for any number of replicas, so that results do not depend on it."""
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
    """As many as take about half a second, measured while training."""
    del case
    return [Choice(None, "A loop in the graph; while training, so many steps that a call takes about half a second.")]


def synchronize_batch_norm_rule(case: Case) -> list[Choice]:
    """On: N replicas compute what one device computes. Off is never proposed, since it changes results."""
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
