"""The help of commands with many flags: in groups, each flag with its default."""

from absl import flags

from tfaccel.scripts.command import own_flags
from tfaccel.scripts.plan_flags import AUTO
from tfaccel.scripts.workload_parameters import WorkloadParameters

_TRAINING = (
    "epochs seed optimizer learning_rate schedule warm_up weight_decay clipnorm global_clipnorm early_stopping ema "
    "remat learning_rate_scaling scaling_warm_up"
)
_PLAN = (
    "autotune plan strategy devices logical_cpus precision dtype_policy xla global_batch_size accumulation_steps "
    "steps_per_execution synchronize_batch_norm num_threads data_service set"
)
# Title -> flags in order. The workload's own parameters have a separate group; all others come last.
_GROUPS = {
    "What to train": "recipe workload data_dir on_bad_data max_bad_fraction",
    "Training (auto: the recipe's choice)": _TRAINING,
    "Learning from a trained model": "teacher distill_temperature distill_alpha",
    "Devices and speed (auto: measured by `tfaccel find-fastest`, or the rules of `tfaccel plan`)": _PLAN,
    "The tested rates": "min_learning_rate max_learning_rate num_steps spacing smoothing divergence_factor",
    "The run": "run_dir resume extend_schedule max_minutes checkpoint_interval keep_checkpoints on_nonfinite "
    "validate_on callbacks log_to num_workers engine address profile",
    "Output": "picture json quiet",
}
_OWN, _OTHERS = "Options of this workload", "Other flags"


def grouped_flags_help(values: flags.FlagValues, parameters: WorkloadParameters | None = None) -> str:
    """The flags of a command, by group; empty groups are left out."""
    by_name = {flag.name: flag for flag in own_flags(values)}
    chosen = {title: [name for name in names.split() if name in by_name] for title, names in _GROUPS.items()}
    listed = {name for names in chosen.values() for name in names}
    own = [name for name in parameters.names if name not in listed] if parameters else []
    listed |= set(own)
    first, *others = chosen
    order = {
        first: chosen[first],
        _OWN: own,
        **{title: chosen[title] for title in others},
        _OTHERS: sorted(set(by_name) - listed),
    }
    defaults = parameters.defaults() if parameters else {}
    parts = []
    for title, names in order.items():
        if names:
            lines = [_help(by_name[name], defaults.get(name)) for name in names]
            parts.append("\n".join([f"{title}:", *lines]))
    return "\n\n".join(parts)


def _help(flag: flags.Flag, default: object) -> str:
    """One flag, with its default, or the workload function's default if the flag has none."""
    if default is None and flag.default not in (None, AUTO, []):
        default = flag.default_as_str.strip("'")
    default = str(default).lower() if isinstance(default, bool) else default
    said = "" if default in (None, "") else f" (default: {default})"
    return f"  --{flag.name}\n      {' '.join((flag.help or '').split())}{said}"
