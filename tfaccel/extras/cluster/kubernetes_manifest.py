"""`kubernetes_manifest`: the Kubernetes objects that run a command as each worker of a job."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import yaml

from tfaccel.errors import LaunchError
from tfaccel.extras.cluster.cluster_job import ClusterJob
from tfaccel.hardware.cluster import FIRST_PORT
from tfaccel.processes.launched import ATTEMPT, can_be_retried

_CONTAINER = "worker"
_VOLUME = "checkpoints"
_GPU = "nvidia.com/gpu"
_RESUMES = ("auto", "must", "extend")
_INDEX = "TFACCEL_WORKER_INDEX"
_INDEX_FIELD = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_AFTER_GRACE_SECONDS = 15  # for TensorFlow to shut down
_BYTES = {"": 1, "Mi": 2**20, "Gi": 2**30}
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_MOUNT_PATH = "/checkpoints"


def kubernetes_manifest(job: ClusterJob, options: KubernetesOptions) -> str:
    """The objects of `kubernetes_objects` as YAML, for `kubectl apply`.

    Example:
        >>> job = ClusterJob(command=("python", "train.py"), num_workers=2, cores_per_worker=4,
        ...                  memory_per_worker_bytes=8 * 2**30, max_restarts=0)
        >>> kubernetes_manifest(job, KubernetesOptions(image="digits:1")).splitlines()[:2]
        ['apiVersion: v1', 'kind: Service']
    """
    return str(yaml.dump_all(kubernetes_objects(job, options), Dumper=_Dumper, sort_keys=False, width=110))


def kubernetes_objects(job: ClusterJob, options: KubernetesOptions) -> list[dict[str, Any]]:
    """A headless Service, a NetworkPolicy and an indexed Job that run a job's command once per worker.

    * The service gives each worker a host name; `TF_CONFIG` lists all of them. The policy lets only the workers of this
      job connect to each other: TensorFlow's gRPC has no authentication.
    * Workers run without root and without privileges, as Kubernetes' *restricted* standard asks, with the given
      cores, memory and GPUs as requests and limits.
    * A worker that ends with status 138, or is killed, is started again; the others then end with 138 and follow.
      Kubernetes counts each of them, so `backoffLimit` is `max_restarts` times the number of workers. Evicted and
      preempted workers are not counted. Any other status, such as 1 for an exception, fails the job.

    Returns:
        The objects as JSON values. They need Kubernetes 1.31 or newer.

    Raises:
        LaunchError: if Kubernetes cannot run the job so; the message says what to change.

    Example:
        >>> job = ClusterJob(command=("python", "train.py"), num_workers=2, cores_per_worker=4,
        ...                  memory_per_worker_bytes=8 * 2**30, max_restarts=0)
        >>> [one["kind"] for one in kubernetes_objects(job, KubernetesOptions(image="digits:1"))]
        ['Service', 'NetworkPolicy', 'Job']

    Reference:
        [Jobs](https://kubernetes.io/docs/concepts/workloads/controllers/job/),
        [Pod Security Standards](https://kubernetes.io/docs/concepts/security/pod-security-standards/)
    """
    _check(job, options)
    labels = {"app.kubernetes.io/name": "tfaccel", "app.kubernetes.io/instance": job.name}
    metadata = {"name": job.name, **({"namespace": options.namespace} if options.namespace else {}), "labels": labels}
    service = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,  # workers look each other up before all of them have started
        "selector": labels,
        "ports": [{"name": "tensorflow", "port": FIRST_PORT}],
    }
    policy = {
        "podSelector": {"matchLabels": labels},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": {"matchLabels": labels}}]}],
    }
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service},
        {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": policy},
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": _job(job, options, labels)},
    ]


def _check(job: ClusterJob, options: KubernetesOptions) -> None:
    if job.cores_per_worker is None or job.memory_per_worker_bytes is None:
        raise LaunchError(
            "Kubernetes needs the cores and the memory of each worker, as its requests and limits. Received: "
            f"cores_per_worker={job.cores_per_worker}, memory_per_worker_bytes={job.memory_per_worker_bytes}. "
            "Name both, for example with --cores_per_worker=8 --memory_per_worker_gib=32."
        )
    if job.max_restarts and options.volume_claim is None:
        raise LaunchError(
            f"Checkpoints do not outlive a worker without a volume, so that a restart could not continue. Received: "
            f"max_restarts={job.max_restarts} without volume_claim. Name a PersistentVolumeClaim "
            "(--volume_claim=NAME), or set max_restarts to 0."
        )
    if options.volume_claim is not None:
        _check_run_dir(job, PurePosixPath(options.volume_path))


def _check_run_dir(job: ClusterJob, mount: PurePosixPath) -> None:
    """Checks that restarted workers find their run: in a run directory on the volume."""
    given = job.flag("run_dir")
    if given is not None:
        run_dir = PurePosixPath(given)
        if ".." in run_dir.parts or not run_dir.is_relative_to(mount):
            raise LaunchError(
                f"The run directory must be on the volume, which is mounted at {mount}. Received: --run_dir={given}. "
                f"Use --run_dir={mount / run_dir.name}, or another mount_path."
            )
    if job.max_restarts and _is_train(job.command) and (given is None or job.flag("resume") not in _RESUMES):
        run_dir_flag = "" if given is not None else f"--run_dir={mount}/NAME "
        raise LaunchError(
            f"A restarted `tfaccel train` continues only in the same run directory, with --resume=auto. Add "
            f"{run_dir_flag}--resume=auto to the command, or set max_restarts to 0. Received: "
            f"{' '.join(job.command):.200}"
        )


def _is_train(command: Sequence[str]) -> bool:
    """Whether a command is `tfaccel train`, under any of its names."""
    words = [PurePosixPath(command[0]).name, *command[1:]]
    if words[0].startswith("python") and words[1:3] in (["-m", "tfaccel"], ["-m", "tfaccel.scripts.main"]):
        words = ["tfaccel", *words[3:]]
    return words[:2] == ["tfaccel", "train"] or words[1:3] == ["-m", "tfaccel.scripts.train"]


def _job(job: ClusterJob, options: KubernetesOptions, labels: dict[str, str]) -> dict[str, Any]:
    retried = [status for status in range(1, 256) if can_be_retried(status)]
    limit = {} if job.time_limit_seconds is None else {"activeDeadlineSeconds": math.ceil(job.time_limit_seconds)}
    return {
        "completionMode": "Indexed",
        "completions": job.num_workers,
        "parallelism": job.num_workers,
        "backoffLimit": job.max_restarts * job.num_workers,
        **limit,
        "podReplacementPolicy": "Failed",  # two workers must never have the same index
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {
                    "action": "FailJob",
                    "onExitCodes": {"containerName": _CONTAINER, "operator": "NotIn", "values": retried},
                },
            ]
        },
        "template": {"metadata": {"labels": labels}, "spec": _pod(job, options)},
    }


def _pod(job: ClusterJob, options: KubernetesOptions) -> dict[str, Any]:
    volumes: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = []
    if options.volume_claim is not None:
        volumes.append({"name": _VOLUME, "persistentVolumeClaim": {"claimName": options.volume_claim}})
        mounts.append({"name": _VOLUME, "mountPath": options.volume_path})
    if job.gpus_per_worker > 1:  # NCCL's buffers; a container's own /dev/shm has 64 MB
        volumes.append({"name": "shared-memory", "emptyDir": {"medium": "Memory"}})
        mounts.append({"name": "shared-memory", "mountPath": "/dev/shm"})
    return {
        "subdomain": job.name,
        "restartPolicy": "Never",  # failures are the job's to handle
        "terminationGracePeriodSeconds": math.ceil(job.grace_seconds) + _AFTER_GRACE_SECONDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": options.user_id,
            "runAsGroup": options.user_id,
            "fsGroup": options.user_id,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": _CONTAINER,
                "image": options.image,
                "command": [_Text(_unexpanded(word)) for word in job.command],
                "env": _environment(job),
                "resources": _resources(job),
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                **({"volumeMounts": mounts} if mounts else {}),
            }
        ],
        **({"volumes": volumes} if volumes else {}),
    }


def _environment(job: ClusterJob) -> list[dict[str, Any]]:
    environment: list[dict[str, Any]] = [
        {"name": name, "value": _Text(_unexpanded(value))} for name, value in sorted(job.environment.items())
    ]
    environment.append({"name": ATTEMPT, "value": _Text(1)})  # errors of tfaccel end a worker with their status
    if job.num_workers > 1:
        addresses = [f"{job.name}-{index}.{job.name}:{FIRST_PORT}" for index in range(job.num_workers)]
        index = f"$({_INDEX})"  # Kubernetes fills it in
        config = json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}})
        environment += [
            {"name": "JOB_COMPLETIONS", "value": _Text(job.num_workers)},
            {"name": _INDEX, "valueFrom": {"fieldRef": {"fieldPath": _INDEX_FIELD}}},
            {"name": "TF_CONFIG", "value": _Text(config.replace(f'"{index}"', index))},
        ]
    return environment


def _resources(job: ClusterJob) -> dict[str, Any]:
    size = job.memory_per_worker_bytes or 0
    unit = next((unit for unit in ("Gi", "Mi") if size % _BYTES[unit] == 0), "")
    amounts = {"cpu": _Text(job.cores_per_worker), "memory": _Text(f"{size // _BYTES[unit]}{unit}")}
    if job.gpus_per_worker:
        amounts[_GPU] = _Text(job.gpus_per_worker)
    return {"requests": dict(amounts), "limits": dict(amounts)}


def _unexpanded(text: str) -> str:
    """Text in which Kubernetes replaces nothing: it would take `$(NAME)` for a variable."""
    return text.replace("$", "$$")


class _Text(str):
    """Text that is always quoted: unquoted, readers of YAML disagree on what is a number."""


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


_Dumper.add_representer(
    _Text, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style='"')
)


@dataclass(frozen=True, kw_only=True)
class KubernetesOptions:
    """Where Kubernetes runs a job, and where its checkpoints are kept.

    Args:
        image: the container image, with tfaccel and what the command needs.
        volume_claim: a PersistentVolumeClaim for the run directory, which all workers mount: with several nodes, its
            access mode must be ReadWriteMany. None if nothing has to outlive the workers.
        mount_path: where the volume is mounted; None for `/checkpoints`.
        namespace: None for the current one of `kubectl`.
        user_id: the user and group that the workers run as; not 0, which is root.

    Example:
        >>> KubernetesOptions(image="registry.example.com/digits:1", volume_claim="runs").user_id
        1000
    """

    image: str
    volume_claim: str | None = None
    mount_path: str | None = None
    namespace: str | None = None
    user_id: int = 1000

    def __post_init__(self) -> None:
        if not isinstance(self.image, str) or not self.image or any(character.isspace() for character in self.image):
            raise LaunchError(f"Kubernetes needs the name of a container image. Received: image={self.image!r:.200}.")
        for name in ("volume_claim", "namespace"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not _NAME.fullmatch(value)):
                raise LaunchError(
                    f"`{name}` must be the name of one: small letters, digits, hyphens and dots. Received: "
                    f"{name}={value!r:.200}."
                )
        if self.mount_path is not None and self.volume_claim is None:
            raise LaunchError(
                f"`mount_path` is for the volume of `volume_claim`. Received: mount_path={self.mount_path!r} without "
                "volume_claim. Give both, or none."
            )
        path = PurePosixPath(self.volume_path)
        if not path.is_absolute() or ".." in path.parts or ":" in str(path) or path == PurePosixPath("/"):
            raise LaunchError(
                f"`mount_path` must be an absolute path other than `/`, without `..` and `:`. Received: "
                f"mount_path={self.mount_path!r:.200}."
            )
        if type(self.user_id) is not int or not 0 < self.user_id < 2**31:
            raise LaunchError(
                "`user_id` must be a whole number of at least 1: workers do not run as root. Received: "
                f"user_id={self.user_id!r}."
            )

    @property
    def volume_path(self) -> str:
        """Where the volume is mounted."""
        return self.mount_path or _MOUNT_PATH
