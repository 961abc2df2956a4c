"""The cluster of this process, from TF_CONFIG, Cloud TPU, Slurm or Kubernetes."""

import itertools
import json
import re
from collections.abc import Mapping
from typing import Any

from tfaccel.errors import HardwareError, PlanError
from tfaccel.hardware.hardware import Cluster
from tfaccel.hardware.machine import Machine
from tfaccel.records import quoted

FIRST_PORT = 8888  # the default of TensorFlow's Slurm resolver
_TF_CONFIG_EXAMPLE = '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'


def find_cluster(machine: Machine) -> Cluster | None:
    """The cluster of this process; None if it works alone.

    TF_CONFIG comes first, since TensorFlow itself obeys it, and counts even with one worker. The other sources count
    only if they name several processes.

    Raises:
        HardwareError: if a source is malformed; the message quotes it.
    """
    sources = (_from_tf_config, _from_cloud_tpu, _from_slurm, _from_kubernetes)
    return next((cluster for find in sources if (cluster := find(machine)) is not None), None)


def _from_tf_config(machine: Machine) -> Cluster | None:
    text = machine.environ.get("TF_CONFIG", "").strip()
    if not text:
        return None
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise _tf_config_error(text, f"is not JSON ({error})") from error
    if not isinstance(config, Mapping):
        raise _tf_config_error(text, "is not a JSON object")
    if not config.get("cluster"):
        return None
    addresses = _tf_config_addresses(text, config["cluster"])
    task = config.get("task")
    if not isinstance(task, Mapping) or "type" not in task or "index" not in task:
        raise _tf_config_error(text, 'has no "task" with "type" and "index"')
    workers = (*addresses.get("chief", ()), *addresses.get("worker", ()))
    if not workers:
        raise _tf_config_error(text, "names no worker")
    odd = next((one for one in workers if not _is_address(one)), None)
    if odd is not None:
        raise _tf_config_error(text, f"has the address {odd!r}, which is not host:port with a port from 1 to 65535")
    twice = next((one for one in workers if workers.count(one) > 1), None)
    if twice is not None:
        raise _tf_config_error(text, f"gives the address {twice!r} to several workers")
    task_type, task_index = task["type"], _index(task["index"])
    if task_index is None:
        raise _tf_config_error(text, f"has the task index {task['index']!r}, which is not a whole number")
    # An evaluator is not part of the cluster and often not listed in it.
    if task_type != "evaluator" and task_index >= len(addresses.get(str(task_type), ())):
        raise _tf_config_error(text, f"does not list its own task, {task_type} {task_index}")
    return Cluster(
        source="tf_config",
        num_workers=len(workers),
        task_index=task_index,
        task_type=task_type,
        addresses=workers,
        num_chiefs=len(addresses.get("chief", ())),
    )


def _tf_config_addresses(text: str, cluster: Any) -> dict[str, tuple[str, ...]]:
    """Addresses by task type; TensorFlow accepts a list, or an object with the index as key."""
    if not isinstance(cluster, Mapping):
        raise _tf_config_error(text, '"cluster" is not a JSON object')
    found = {}
    for task_type, tasks in cluster.items():
        listed = list(tasks.values()) if isinstance(tasks, Mapping) else tasks
        if not isinstance(listed, list) or not all(isinstance(address, str) for address in listed):
            raise _tf_config_error(text, f"does not list the addresses of {task_type!r}")
        found[task_type] = tuple(listed)
    return found


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isascii() and port.isdecimal() and 0 < int(port) < 65_536


def _tf_config_error(text: str, fault: str) -> HardwareError:
    return HardwareError(
        f"The environment variable TF_CONFIG {fault}. Received: TF_CONFIG={quoted(text)}. "
        f"Expected something like {_TF_CONFIG_EXAMPLE}. Correct it, or unset it to work alone."
    )


def _from_cloud_tpu(machine: Machine) -> Cluster | None:
    text = machine.environ.get("TPU_WORKER_HOSTNAMES", "")
    hosts = tuple(host.strip() for host in text.split(",") if host.strip())
    if len(hosts) < 2:
        return None
    index = _variable_index(machine, "TPU_WORKER_ID", len(hosts), f"TPU_WORKER_HOSTNAMES={quoted(text)}")
    return Cluster(source="cloud_tpu", num_workers=len(hosts), task_index=index, addresses=hosts)


def _from_slurm(machine: Machine) -> Cluster | None:
    # Only `srun` sets the step's variables. The batch script also has SLURM_NTASKS and SLURM_PROCID, but runs alone.
    count = _index(machine.environ.get("SLURM_STEP_NUM_TASKS"))
    if count is None or count < 2 or "SLURM_STEP_NODELIST" not in machine.environ:
        return None
    index = _variable_index(machine, "SLURM_PROCID", count, f"SLURM_STEP_NUM_TASKS={count}")
    hosts = expand_hosts(machine.environ["SLURM_STEP_NODELIST"])
    tasks = expand_counts(machine.environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    addresses = tuple(host for host, num_tasks in zip(hosts, tasks, strict=False) for _ in range(num_tasks))
    known = addresses if len(addresses) == count else ()
    return Cluster(source="slurm", num_workers=count, task_index=index, addresses=known)


def _from_kubernetes(machine: Machine) -> Cluster | None:
    """A pod of an indexed job knows its index; the user sets the number of pods as JOB_COMPLETIONS."""
    if "JOB_COMPLETION_INDEX" not in machine.environ:
        return None
    count = _index(machine.environ.get("JOB_COMPLETIONS"))
    if count is None or count < 2:
        return None
    index = _variable_index(machine, "JOB_COMPLETION_INDEX", count, f"JOB_COMPLETIONS={count}")
    addresses = _pod_addresses(machine, index, count)
    return Cluster(source="kubernetes", num_workers=count, task_index=index, addresses=addresses)


def _pod_addresses(machine: Machine, index: int, count: int) -> tuple[str, ...]:
    """JOB-INDEX.SERVICE... for each pod if /etc/hosts shows that the job has a headless service; else empty."""
    pod = (machine.read("/etc/hostname") or "").strip()
    own = re.search(rf"\s({re.escape(pod)})\.(\S+)", machine.read("/etc/hosts") or "") if pod else None
    if own is None or not pod.endswith(f"-{index}"):
        return ()
    job = pod.removesuffix(f"-{index}")
    return tuple(f"{job}-{i}.{own[2]}" for i in range(count))


def _variable_index(machine: Machine, name: str, count: int, source: str) -> int:
    value = machine.environ.get(name)
    index = _index(value)
    if index is None or index >= count:
        raise HardwareError(
            f"{name} must be this process's place among {count} workers, 0 to {count - 1}, since {source}. "
            f"Received: {name}={value!r}. Set both, or unset both to work alone."
        )
    return index


def _index(value: Any) -> int | None:
    if type(value) is int and value >= 0:
        return value
    return int(value) if isinstance(value, str) and value.strip().isdigit() else None


def tf_config(cluster: Cluster) -> dict[str, Any]:
    """The `TF_CONFIG` of a worker in a cluster with known addresses.

    Slurm and Kubernetes name hosts without ports: the first worker of a host then gets port 8888, the next 8889.
    """
    if len(cluster.addresses) != cluster.num_workers:
        raise PlanError(
            f"The cluster ({cluster.source}) has {cluster.num_workers} workers, but {len(cluster.addresses)} addresses "
            "are known. Set TF_CONFIG for each worker (see https://www.tensorflow.org/guide/distributed_training)."
        )
    hosts = [address for address in cluster.addresses if ":" not in address]
    ports = {address: itertools.count(FIRST_PORT) for address in set(hosts)}
    addresses = [f"{one}:{next(ports[one])}" if one in ports else one for one in cluster.addresses]
    return {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": cluster.task_index}}


def expand_hosts(text: str) -> tuple[str, ...]:
    """The hosts in a Slurm host list, in order.

    Example:
        >>> expand_hosts("gpu[08-10,12],big1")
        ('gpu08', 'gpu09', 'gpu10', 'gpu12', 'big1')
    """
    # Commas inside brackets do not separate hosts.
    parts = re.findall(r"(?:\[[^\]]*\]|[^,\[])+", text)
    return tuple(host for part in parts for host in _expand_brackets(part.strip()) if host)


def expand_counts(text: str) -> tuple[int, ...]:
    """The numbers in Slurm's run-length notation, in order; empty if it is malformed.

    Example:
        >>> expand_counts("2(x3),1")
        (2, 2, 2, 1)
    """
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\(x(\d+)\))?\s*", part)
        if match is None:
            return ()
        counts += [int(match[1])] * int(match[2] or 1)
    return tuple(counts)


def _expand_brackets(text: str) -> list[str]:
    match = re.search(r"\[([^\]]*)\]", text)
    if match is None:
        return [text]
    before, after = text[: match.start()], _expand_brackets(text[match.end() :])
    hosts = []
    for item in match[1].split(","):
        first, _, last = item.strip().partition("-")
        is_range = first.isdigit() and last.isdigit()
        numbers = [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)] if is_range else [item.strip()]
        hosts += [f"{before}{number}{rest}" for number in numbers for rest in after]
    return hosts
