"""What commands on a workload share: the flags of a workload, of its plan, and of its options."""

from collections.abc import Callable

from absl import flags

from tfaccel.scripts.command import run_command
from tfaccel.scripts.flag_help import grouped_flags_help
from tfaccel.scripts.plan_flags import define_plan_flags
from tfaccel.scripts.train_flags import define_option_flags
from tfaccel.scripts.workload_flags import define_workload_flags
from tfaccel.scripts.workload_parameters import WorkloadParameters


def run_workload_command(
    main: Callable[[flags.FlagValues, WorkloadParameters], int],
    argv: list[str],
    values: flags.FlagValues,
    *,
    description: str,
    define_options: Callable[[flags.FlagValues], None] = define_option_flags,
) -> int:
    """Runs a command on a workload; see `run_command`.

    Args:
        main: the command, which takes its flags and those of the workload's own parameters; returns the exit status.
        argv: the program's name and its arguments.
        values: the command's own flags, not parsed yet; those of the workload, its plan and its options are added.
        description: of the command, for `--help`.
        define_options: adds the flags of the workload's options.
    """
    for define in (define_workload_flags, define_plan_flags, define_options):
        define(values)
    parameters = WorkloadParameters(argv, values)
    return run_command(
        lambda: main(values, parameters),
        argv,
        values,
        description=description,
        flags_help=lambda: grouped_flags_help(values, parameters),
    )
