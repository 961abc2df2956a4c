"""What to write in place of an argument that `train`, other verbs and `Workload.of` do not have."""

from __future__ import annotations

from tfaccel.known_names import did_you_mean
from tfaccel.planning.plan import plan_field_names

# Arguments of `Model.fit` that have another place here.
_OF_FIT = {
    "steps_per_epoch": "An epoch is all of the data: give `dataset.take(n)`.",
    "initial_epoch": 'A run goes on by itself: tfaccel.train(..., resume="auto").',
    "validation_steps": "Validation uses all of its data: give `dataset.take(n)`.",
    "validation_batch_size": "Validation uses the batch size of training, or that of its own dataset.",
    "validation_freq": "Validation comes after each epoch.",
    "verbose": "It is an argument of tfaccel.train.",
}
# Names that other libraries have for fields of a plan.
OTHER_NAMES = {
    **dict.fromkeys(("precision", "mixed_precision", "dtype"), "dtype_policy"),
    **dict.fromkeys(("distribution", "distribute", "distribute_strategy", "distribution_strategy"), "strategy"),
    "xla": "jit_compile",
    **dict.fromkeys(("gpus", "num_gpus", "device", "accelerator"), "devices"),
    **dict.fromkeys(("gradient_accumulation_steps", "accumulate_grad_batches"), "accumulation_steps"),
}
_VALUES = {
    "dtype_policy": "mixed_bfloat16",
    "strategy": "mirrored",
    "jit_compile": True,
    "devices": ["GPU:0", "GPU:1"],
    "accumulation_steps": 2,
}
# Arguments of `train` and `Workload.of` that stand beside those of `Model.compile`.
_BESIDE = (
    *("run_dir", "plan", "epochs", "seed", "resume", "checkpoint_interval", "callbacks", "batch_size", "shuffle"),
    *("validation_data", "validation_split", "sample_weight", "class_weight", "on_nonfinite", "num_workers"),
)


def advice(name: str, known: tuple[str, ...]) -> str:
    """What to write in place of an unknown argument, as the end of a sentence.

    Args:
        name: the unknown argument.
        known: those that it may be instead, such as the ones of `Model.compile`.

    Example:
        >>> advice("optimiser", ("optimizer", "loss"))
        ". Did you mean 'optimizer'?"
    """
    if name in _OF_FIT:
        return f". {_OF_FIT[name]}"
    if name in OTHER_NAMES:
        field = OTHER_NAMES[name]
        return f". Here it is a field of the plan: tfaccel.train(..., {field}={_VALUES[field]!r})."
    if name in plan_field_names():
        return f", since it is a field of the plan. Pass it to the verb: tfaccel.train(..., {name}=...)."
    field = did_you_mean(name, plan_field_names(), closeness=0.8)
    return "." + (field or did_you_mean(name, (*known, *_BESIDE)) or f" Options: {', '.join(known)}.")
