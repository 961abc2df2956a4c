"""What to write in place of an argument that `train` and `Workload.of` do not have."""

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


# Arguments of `train` and `Workload.of` that stand beside those of `Model.compile`.
_BESIDE = (
    *("run_dir", "plan", "epochs", "seed", "resume", "checkpoint_interval", "callbacks", "batch_size", "shuffle"),
    *("validation_data", "validation_split", "sample_weight", "class_weight", "on_nonfinite", "num_workers"),
)


def advice(name: str, known: tuple[str, ...]) -> str:
    """What to write in place of an unknown argument, as the end of a sentence; `known` are those of `Model.compile`.

    Example:
        >>> advice("optimiser", ("optimizer", "loss"))
        ". Did you mean 'optimizer'?"
    """
    if name in _OF_FIT:
        return f". {_OF_FIT[name]}"
    if name in plan_field_names():
        return (
            ", since it is a field of the plan. Pass plan=tfaccel.default_plan(tfaccel.detect_hardware(), "
            f"tfaccel.Workload.of(build_model, x, y, ...), {name}=...)."
        )
    return "." + (did_you_mean(name, (*known, *_BESIDE)) or f" Options: {', '.join(known)}.")
