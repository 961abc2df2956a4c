"""`slurm_script`: a batch script for Slurm that runs a command as each worker of a job."""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass

from tfaccel.errors import LaunchError
from tfaccel.extras.cluster.cluster_job import ClusterJob
from tfaccel.processes import launched
from tfaccel.processes.launched import can_be_retried

_WORD = re.compile(r"[\w.,@-]+", re.ASCII)
# Slurm sends the signal up to a minute earlier than asked; a limit this short would end the job as it starts.
_MIN_TIME_LIMIT_SECONDS = 300
_SIGNAL_MARGIN_SECONDS = 45
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
# Jobs that share a node need different ports.
_CLUSTER = """
# Addresses of the workers. Jobs that share a node get different ports.
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
first_port=$((20000 + SLURM_JOB_ID * {per_node} % 10000))
workers=()
for ((i = 0; i < {num_workers}; i++)); do
    workers+=("\\"${{hosts[i / {per_node}]}}:$((first_port + i % {per_node}))\\"")
done
TFACCEL_WORKERS=$(IFS=,; echo "${{workers[*]}}")
export TFACCEL_WORKERS
"""
_BODY = """{cluster}
# One worker. srun ends with the highest status of all of them. 138, or killed from outside, means that starting again
# may help; any other failure gets 200 added, so that it counts for more than the 138 of the workers it left behind.
worker='
trap : TERM  # the command gets the signal too, and needs time to save
if [[ -n ${{TFACCEL_WORKERS-}} ]]; then
    export TF_CONFIG="{{\\"cluster\\": {{\\"worker\\": [$TFACCEL_WORKERS]}},"
    TF_CONFIG+=" \\"task\\": {{\\"type\\": \\"worker\\", \\"index\\": $SLURM_PROCID}}}}"
fi
status=0
"$@" || status=$?
case $status in
    0|{retried}) exit "$status" ;;
    *) exit $((status < 55 ? 200 + status : 255)) ;;
esac
'

status=0
srun --kill-on-bad-exit=1 --distribution=block --open-mode=append {srun} \\
    bash -c "$worker" worker "${{command[@]}}" || status=$?

case $status in
    0) ;;
    {retried})
        if ((${{SLURM_RESTART_COUNT:-0}} < {max_restarts})); then
            echo "The workers ended with status $status: the job is requeued."
            scontrol requeue "$SLURM_JOB_ID"
        else
            echo "The workers ended with status $status, after {max_restarts} restarts."
        fi
        exit 138
        ;;
    *)
        ((status > 200 && status < 255)) && status=$((status - 200))
        echo "A worker failed with status $status; starting again would not help. See its log."
        exit "$status"
        ;;
esac
"""


@dataclass(frozen=True, kw_only=True)
class SlurmOptions:
    """Where Slurm runs a job.

    Args:
        workers_per_node: number of workers on each node; it must divide their total number.
        partition: the partition, or several separated by commas; None for Slurm's default.
        account: the account that is charged; None for Slurm's default.

    Example:
        >>> SlurmOptions(workers_per_node=2).partition is None
        True
    """

    workers_per_node: int = 1
    partition: str | None = None
    account: str | None = None

    def __post_init__(self) -> None:
        if type(self.workers_per_node) is not int or self.workers_per_node < 1:
            raise LaunchError(
                "`workers_per_node` must be a whole number of at least 1. Received: "
                f"workers_per_node={self.workers_per_node!r}."
            )
        for name in ("partition", "account"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not _WORD.fullmatch(value)):
                raise LaunchError(f"`{name}` must be the name of a Slurm {name}. Received: {name}={value!r:.200}.")


def slurm_script(job: ClusterJob, options: SlurmOptions | None = None) -> str:
    """A batch script, for `sbatch`, that runs a job's command once per worker with `srun`.

    Each worker gets its cluster and its index in `TF_CONFIG`, and its output goes to a file of its own. A minute before
    the time limit, and at a preemption with a grace time, Slurm sends the workers SIGTERM: tfaccel then saves a
    checkpoint and ends with status 138. If a worker ends so, or is killed, the script requeues the job, at most
    `max_restarts` times; Slurm counts its own requeues, after a preemption or a node's failure, as well. Requeued
    training continues from its newest checkpoint, which must be on a disk that all nodes share. A failure that would
    repeat itself, such as an exception, ends the job.

    Returns:
        The text of the script.

    Example:
        >>> script = slurm_script(ClusterJob(command=("python", "my script.py"), num_workers=4))
        >>> [line for line in script.splitlines() if line.startswith("command")]
        ["command=(python 'my script.py')"]

    Reference:
        [sbatch](https://slurm.schedmd.com/sbatch.html), [srun](https://slurm.schedmd.com/srun.html)
    """
    options = options or SlurmOptions()
    if job.num_workers % options.workers_per_node:
        raise LaunchError(
            f"`workers_per_node` must divide `num_workers`. Received: num_workers={job.num_workers}, "
            f"workers_per_node={options.workers_per_node}."
        )
    if job.time_limit_seconds is not None and job.time_limit_seconds < _MIN_TIME_LIMIT_SECONDS:
        raise LaunchError(
            f"Under Slurm, the time limit must be at least {_MIN_TIME_LIMIT_SECONDS} seconds: the workers are told to "
            f"save and end up to two minutes before it. Received: time_limit_seconds={job.time_limit_seconds:g}."
        )
    directives = [f"#SBATCH --{line}" for line in _directives(job, options)]
    environment = [f"export {name}={shlex.quote(value)}" for name, value in sorted(job.environment.items())]
    return "\n".join(
        [
            "#!/bin/bash",
            f"# {job.name}: {job.num_workers} workers. Submit it: sbatch FILE",
            *directives,
            "set -euo pipefail",
            "",
            *environment,
            f"export {launched.STARTED}=$SLURM_JOB_ID",
            f"export {launched.ATTEMPT}=$((${{SLURM_RESTART_COUNT:-0}} + 1))",
            f"command=({shlex.join(job.command)})",
            _BODY.format(
                cluster=_cluster(job, options),
                max_restarts=job.max_restarts,
                retried="|".join(str(status) for status in range(1, 256) if can_be_retried(status)),
                srun=" ".join(_srun_options(job)),
            ),
        ]
    )


def _directives(job: ClusterJob, options: SlurmOptions) -> list[str]:
    lead = math.ceil(job.grace_seconds) + _SIGNAL_MARGIN_SECONDS
    lines = [
        f"job-name={job.name}",
        f"nodes={job.num_workers // options.workers_per_node}",
        f"ntasks={job.num_workers}",
        f"ntasks-per-node={options.workers_per_node}",
    ]
    if job.cores_per_worker is not None:
        lines.append(f"cpus-per-task={job.cores_per_worker}")
    if job.gpus_per_worker:
        lines.append(f"gpus-per-task={job.gpus_per_worker}")
    if job.memory_per_worker_bytes is not None:
        lines.append(f"mem={math.ceil(job.memory_per_worker_bytes * options.workers_per_node / 2**20)}M")
    if job.time_limit_seconds is not None:
        lines.append(f"time={_time(job.time_limit_seconds)}")
    lines += [f"{name}={value}" for name in ("partition", "account") if (value := getattr(options, name))]
    # Without `B:`, the signal goes to the workers, and not to this script, which then still requeues the job.
    return [*lines, "requeue", "open-mode=append", f"output={job.name}-%j.log", f"signal=TERM@{lead}"]


def _srun_options(job: ClusterJob) -> list[str]:
    cores = [] if job.cores_per_worker is None else [f"--cpus-per-task={job.cores_per_worker}"]
    return [*cores, f"--output={job.name}-%j-worker-%t.log"]


def _time(seconds: float) -> str:
    """A time limit as Slurm writes it, rounded down to minutes: 93600 -> 1-02:00:00."""
    minutes = int(seconds) // _MINUTE
    days, minutes = divmod(minutes, _DAY // _MINUTE)
    return f"{days}-{minutes // (_HOUR // _MINUTE):02}:{minutes % 60:02}:00"


def _cluster(job: ClusterJob, options: SlurmOptions) -> str:
    """Shell lines that put the addresses of all workers into a variable; none for a single worker."""
    return (
        "" if job.num_workers == 1 else _CLUSTER.format(per_node=options.workers_per_node, num_workers=job.num_workers)
    )
