"""The flags of `tfaccel train`, except those of the plan and of the workload's name."""

import itertools
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from absl import flags

from tfaccel.data.bad_data import ON_BAD_DATA
from tfaccel.errors import TfaccelError, VersionError, WorkloadError
from tfaccel.known_names import did_you_mean
from tfaccel.planning.load_workload import import_named, is_import_path
from tfaccel.planning.option_checks import MAX_SEED, POLICIES, STOP, check_callbacks
from tfaccel.planning.run_length import RULES
from tfaccel.planning.workload import Workload, call_own
from tfaccel.processes.launched import launch_date
from tfaccel.processes.quiet_start import quiet_tensorflow
from tfaccel.scripts.plan_flags import AUTO
from tfaccel.scripts.workload_parameters import COUNT, NUMBER, TEXT, WorkloadParameters, get_value
from tfaccel.training.run.run_dir import RESUME
from tfaccel.training.run.run_options import EXTEND_SCHEDULE

TRACKERS = ("tensorboard", "wandb", "mlflow", "dvclive")
# Flags that become arguments of the workload's function if they are set: flag -> the kind of value, and its help.
_WORKLOAD_OPTIONS: dict[str, tuple[str | tuple[str, ...], str]] = {
    "data_dir": (TEXT, "the training data, or auto for the recipe's own"),
    "on_bad_data": (ON_BAD_DATA, "what to do with damaged examples: fail, or skip and count them; or auto for fail"),
    "max_bad_fraction": (NUMBER, "largest fraction of examples that may be skipped, or auto for 0.01"),
    "optimizer": (TEXT, "name of a Keras optimizer, or auto for the recipe's choice"),
    "learning_rate": (NUMBER, "peak learning rate, or auto for one that suits the recipe and the optimizer"),
    "weight_decay": (NUMBER, "weight decay as in Keras, multiplied by the learning rate at each step, or auto"),
    "clipnorm": (NUMBER, "max norm of each weight's gradient, or auto for the recipe's choice"),
    "global_clipnorm": (NUMBER, "max global norm of all gradients, or auto for the recipe's choice"),
    "schedule": (TEXT, "learning rate schedule: cosine, linear, exponential or constant, or auto"),
    "warm_up": (NUMBER, "fraction of all steps used for learning rate warm-up, or auto"),
    "early_stopping": (COUNT, "stop after this many epochs without a lower validation loss, or auto for never"),
}
_WORKLOAD_SWITCHES = {
    "ema": "keep a moving average of the weights, and use it as the final weights",
    "remat": "recompute activations in the backward pass: less memory, more time",
}
_DISTILLATION = {
    "distill_temperature": "divisor of the teacher's and the student's logits in the distillation loss, or auto for 4",
    "distill_alpha": "fraction of the loss that is the distillation loss, above 0 and at most 1, or auto for 0.5",
}
_RUN_OPTIONS = {
    "epochs": "passes over the training data, or auto for the workload's recommendation",
    "checkpoint_interval": "optimizer steps between checkpoints, or auto: after epochs, for at most 2 % of the time",
}


def define_option_flags(values: flags.FlagValues) -> None:
    """Adds the flags that become arguments of the workload's function to those of a command."""
    for name, (_, text) in _WORKLOAD_OPTIONS.items():
        flags.DEFINE_string(name, AUTO, text, flag_values=values)
    for name, text in _WORKLOAD_SWITCHES.items():
        flags.DEFINE_bool(name, False, text, flag_values=values)


def define_train_flags(values: flags.FlagValues) -> None:
    """Adds the flags to those of a command."""
    define_option_flags(values)
    for name, text in (_DISTILLATION | _RUN_OPTIONS).items():
        flags.DEFINE_string(name, AUTO, text, flag_values=values)
    own: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_string("teacher", None, "run directory or .keras file of a teacher model for distillation", **own)
    text = "a new folder for the run's files (default: runs/NAME-DATE)"
    flags.DEFINE_string("run_dir", None, text, **own)
    flags.DEFINE_string("plan", None, "JSON file with the plan; other flags override its fields", **own)
    flags.DEFINE_bool(
        "autotune", False, "measure plans first, and train with the fastest (see `tfaccel find-fastest`)", **own
    )
    text = "seed of the initial weights, dropout and the order of the data"
    flags.DEFINE_integer("seed", 0, text, lower_bound=0, upper_bound=MAX_SEED, **own)
    help_text = (
        "auto continues from the newest checkpoint in --run_dir, if it holds a run; must fails if it holds none; "
        "extend also continues a complete run, up to a larger number of --epochs"
    )
    flags.DEFINE_enum("resume", "never", list(RESUME), help_text, **own)
    text = "with --resume=extend: the learning rate schedule goes on as it was, is stretched, or another one begins"
    flags.DEFINE_enum("extend_schedule", None, list(EXTEND_SCHEDULE), text, **own)
    text = "train for so many minutes: some steps are timed, and the schedule gets as many as fit, at most --epochs"
    flags.DEFINE_float("max_minutes", None, text, **own)
    text = "newest checkpoints to keep; the one with the lowest val_loss (or loss) is kept as well"
    flags.DEFINE_integer("keep_checkpoints", 2, text, lower_bound=1, **own)
    text = "when the loss or gradients become NaN or infinite: stop, leave out the batch, or go back to the checkpoint"
    flags.DEFINE_enum("on_nonfinite", STOP, list(POLICIES), text, **own)
    text = "evaluate on this device, such as GPU:1 or CPU:0, while the next epoch trains, to the same results"
    flags.DEFINE_string("validate_on", None, text, **own)
    text = "multiply the learning rate by the ratio of global and recommended batch size, or by its square root"
    flags.DEFINE_enum("learning_rate_scaling", "none", ["none", *RULES], text, **own)
    text = "fraction of all steps over which the rate rises from the unscaled to a higher scaled one"
    flags.DEFINE_float("scaling_warm_up", 0.05, text, **own)
    text = "write a trace of these optimizer steps for TensorBoard's profiler, such as 10:12"
    flags.DEFINE_string("profile", None, text, **own)
    text = "your Keras callbacks: package.module:function, a function that returns them; can be repeated"
    flags.DEFINE_multi_string("callbacks", [], text, **own)
    text = "also log plan, metrics and final scores with wandb, mlflow or dvclive; tensorboard/ is always written"
    flags.DEFINE_list("log_to", [], text, **own)
    text = "start so many workers, as `tfaccel launch` does, and again when one is lost"
    flags.DEFINE_integer("num_workers", None, text, lower_bound=1, **own)
    flags.DEFINE_string("engine", "local", "what starts them: local (this machine), or ray", **own)
    text = "ray: the head of the cluster, as host:port, or auto (default: RAY_ADDRESS, or a cluster here)"
    flags.DEFINE_string("address", None, text, **own)
    flags.DEFINE_bool("json", False, "print the result as JSON, and everything else to standard error", **own)
    flags.DEFINE_bool("quiet", False, "print only the result, no plan and no progress", **own)


def check_trackers(names: list[str]) -> None:
    """Raises WorkloadError for an unknown tracker of --log_to, and VersionError for one that is not installed.

    Example:
        >>> check_trackers(["wandbb"])
        Traceback (most recent call last):
        ...
        tfaccel.errors.WorkloadError: There is no tracker 'wandbb'. Did you mean 'wandb'?
    """
    for name in names:
        if name not in TRACKERS:
            hint = did_you_mean(name, TRACKERS) or f" Trackers: {', '.join(TRACKERS)}."
            raise WorkloadError(f"There is no tracker {name!r}.{hint}")
        if find_spec(name) is None:
            raise VersionError(f"--log_to={name} needs the package {name}. Install it: pip install {name}.")


def check_callback_paths(paths: list[str]) -> None:
    """Raises WorkloadError for a path of --callbacks of another form than package.module:function."""
    for path in paths:
        if not is_import_path(path):
            raise WorkloadError(f"--callbacks is written --callbacks=package.module:function. Received: {path!r}.")


def own_callbacks(paths: list[str]) -> list[Any]:
    """The callbacks that the functions of --callbacks return.

    Raises:
        WorkloadError: for a path without a function, or a function that returns something else.
    """
    found: list[Any] = []
    for path in paths:
        made = call_own(f"--callbacks={path}", import_named(path, error_type=WorkloadError))
        made = [made] if hasattr(made, "set_model") else made
        check_callbacks(made)
        found += made
    return found


def workload_options(values: flags.FlagValues, parameters: WorkloadParameters) -> dict[str, Any]:
    """The arguments of the workload's function that are set by flags, including its own parameters.

    Raises:
        TfaccelError: for a value that is not of the flag's kind.
    """
    options: dict[str, Any] = {}
    for name, (kind, _) in _WORKLOAD_OPTIONS.items():
        text = str(values[name].value)
        if text != AUTO:
            options[name] = get_value(name, text, kind)
    for name in _WORKLOAD_SWITCHES:
        if values[name].present:
            options[name] = values[name].value
    return options | parameters.chosen()


def with_teacher(workload: Workload, values: flags.FlagValues) -> Workload:
    """The workload, with distillation from --teacher if that is given.

    Raises:
        TfaccelError: if the teacher does not exist, or a distillation option is given without a teacher.
    """
    texts = {name: str(values[name].value) for name in _DISTILLATION}
    chosen = {name: get_value(name, text, NUMBER) for name, text in texts.items() if text != AUTO}
    teacher = values.teacher
    if teacher is None:
        if chosen:
            raise TfaccelError(f"--{next(iter(chosen))} needs a teacher. Give --teacher=RUN_DIR, or leave it out.")
        return workload
    quiet_tensorflow()
    from tfaccel.compressing.distillation import distill

    return distill(workload, teacher, **{name.removeprefix("distill_"): value for name, value in chosen.items()})


def run_option(name: str, values: flags.FlagValues) -> int | None:
    """The value of --epochs or --checkpoint_interval; None for auto."""
    text = str(values[name].value)
    return None if text == AUTO else get_value(name, text, COUNT)


def scaling_rule(values: flags.FlagValues) -> str | None:
    """The value of --learning_rate_scaling; None for none."""
    return None if values.learning_rate_scaling == "none" else str(values.learning_rate_scaling)


def run_dir(values: flags.FlagValues) -> str:
    """The value of --run_dir, or a new folder named after the workload and the date.

    Raises:
        TfaccelError: if it is missing with --resume=auto, or empty.
    """
    path: str | None = values.run_dir
    if path:
        return path
    if path == "":
        raise TfaccelError("--run_dir must name a folder. Received: an empty --run_dir=.")
    if values.resume != "never":
        raise TfaccelError(f"Give --run_dir=DIR, the folder of the run that --resume={values.resume} continues.")
    name = values.recipe or (values.workload or "").partition(":")[0].rpartition(".")[2]
    launched = launch_date()
    if launched is not None:  # the same for all workers, also after they were started again
        return str(Path("runs", f"{name or 'run'}-{launched}"))
    first = Path("runs", f"{name or 'run'}-{datetime.now():%Y-%m-%d}")
    others = (first.with_name(f"{first.name}-{number}") for number in itertools.count(2))
    return str(next(folder for folder in itertools.chain([first], others) if not folder.exists()))
