"""The Kubernetes objects: valid by the API's own schemas, and what workers find in their environment."""

import json
import re

import kubernetes_validate
import pytest
import yaml

from tfaccel.errors import LaunchError
from tfaccel.extras.cluster.cluster_job import ClusterJob
from tfaccel.extras.cluster.kubernetes_manifest import KubernetesOptions, kubernetes_manifest, kubernetes_objects
from tfaccel.processes.launched import can_be_retried

ODD_WORDS = (
    "a b",
    "it's",
    '"quoted"',
    "$HOME",
    "$(JOB_COMPLETIONS)",
    "$$(A)",
    "1e-3",
    "0o17",
    "yes",
    "",
    "a\nb",
    ": #",
)
VERSIONS = ("1.31", "1.37")


def job(**changes):
    given = {"command": ("python", "train.py"), "num_workers": 2, "name": "digits", "cores_per_worker": 4}
    return ClusterJob(**{**given, "memory_per_worker_bytes": 8 * 2**30, **changes})


def options(**changes):
    return KubernetesOptions(**{"image": "registry.example.com/digits:1", "volume_claim": "runs", **changes})


def parts(made, chosen=None):
    """The service, the policy and the job, as read back from YAML."""
    return list(yaml.safe_load_all(kubernetes_manifest(made, chosen or options())))


def pod(made, chosen=None):
    return parts(made, chosen)[2]["spec"]["template"]["spec"]


def expanded(text, variables):
    """What Kubernetes makes of $(NAME) in commands and variables; $$ stands for $."""
    known = re.compile(r"\$\$|\$\(([^)]*)\)")
    return known.sub(lambda m: "$" if m[0] == "$$" else variables.get(m[1], m[0]), text)


def container_environment(made, index):
    """The variables of a worker's container."""
    found = {}
    for one in pod(made)["containers"][0]["env"]:
        found[one["name"]] = expanded(one["value"], found) if "value" in one else str(index)
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("changes", "chosen"),
    [
        ({}, {}),
        ({"num_workers": 1, "max_restarts": 0}, {"volume_claim": None}),
        (
            {"gpus_per_worker": 8, "time_limit_seconds": 3600, "environment": {"A": "1e3"}, "command": ODD_WORDS[::-1]},
            {"namespace": "team-a", "mount_path": "/runs", "user_id": 2000},
        ),
    ],
)
def test_the_api_accepts_the_objects(version, changes, chosen):
    objects = parts(job(**changes), options(**chosen))
    assert [one["kind"] for one in objects] == ["Service", "NetworkPolicy", "Job"]
    for one in objects:
        kubernetes_validate.validate(one, version, strict=True)


def test_the_schema_would_find_a_mistake():
    _, _, made = parts(job())
    made["spec"]["podFailurePolicy"]["rules"][0]["actoin"] = "Ignore"
    with pytest.raises(kubernetes_validate.ValidationError, match="actoin"):
        kubernetes_validate.validate(made, VERSIONS[-1], strict=True)


def test_yaml_and_objects_are_the_same():
    made = job(command=ODD_WORDS[::-1], environment={"A": "no", "B": "0x1f"})
    assert parts(made) == kubernetes_objects(made, options())
    assert all(f'"{word}"' in kubernetes_manifest(made, options()) for word in ("1e-3", "0o17", "yes", "no", "0x1f"))


def test_workers_get_the_command_and_the_environment_unchanged():
    made = job(command=ODD_WORDS, environment={"ODD": "$(HOME) $$ $"})
    found = container_environment(made, 0)
    command = [expanded(word, found) for word in pod(made)["containers"][0]["command"]]
    assert (tuple(command), found["ODD"]) == (ODD_WORDS, "$(HOME) $$ $")


def test_workers_know_their_place():
    addresses = [f"digits-{index}.digits:8888" for index in range(3)]
    for index in range(3):
        found = container_environment(job(num_workers=3), index)
        assert json.loads(found["TF_CONFIG"]) == {
            "cluster": {"worker": addresses},
            "task": {"type": "worker", "index": index},
        }
        assert found["JOB_COMPLETIONS"] == "3"
    service, _, made = parts(job(num_workers=3))
    assert made["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"] == "digits"
    assert service["spec"]["selector"].items() <= made["spec"]["template"]["metadata"]["labels"].items()
    assert (made["spec"]["completions"], made["spec"]["parallelism"]) == (3, 3)


def test_a_single_worker_has_no_cluster():
    found = container_environment(job(num_workers=1, environment={"A": "1"}), 0)
    assert found == {"A": "1", "TFACCEL_LAUNCH_ATTEMPT": "1"}


def test_statuses_decide_what_follows():
    spec = parts(job(num_workers=4, max_restarts=3))[2]["spec"]
    disrupted, final = spec["podFailurePolicy"]["rules"]
    assert disrupted == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert (final["action"], final["onExitCodes"]["operator"]) == ("FailJob", "NotIn")
    not_final = set(final["onExitCodes"]["values"])
    assert 138 in not_final
    assert not {1, 2} & not_final
    assert all(can_be_retried(status) == (status in not_final) for status in range(1, 256))
    assert spec["backoffLimit"] == 12  # each restart ends four workers
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert spec["template"]["spec"]["containers"][0]["name"] == final["onExitCodes"]["containerName"]


def test_workers_have_no_more_rights_than_they_need():
    spec = pod(job(), options(user_id=3000))
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["fsGroup"]) == (3000, 3000)
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    inner = spec["containers"][0]["securityContext"]
    assert inner == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@pytest.mark.parametrize(("size", "written"), [(8 * 2**30, "8Gi"), (1536 * 2**20, "1536Mi"), (2**30 + 1, "1073741825")])
def test_resources_are_requests_and_limits(size, written):
    resources = pod(job(memory_per_worker_bytes=size, gpus_per_worker=2))["containers"][0]["resources"]
    assert resources["requests"] == resources["limits"] == {"cpu": "4", "memory": written, "nvidia.com/gpu": "2"}


def test_times():
    made = job(time_limit_seconds=90.5, grace_seconds=29.5)
    assert parts(made)[2]["spec"]["activeDeadlineSeconds"] == 91
    assert pod(made)["terminationGracePeriodSeconds"] == 45


def test_the_volume_and_shared_memory():
    spec = pod(job(gpus_per_worker=2), options(mount_path="/runs"))
    assert [volume["name"] for volume in spec["volumes"]] == ["checkpoints", "shared-memory"]
    assert [mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]] == ["/runs", "/dev/shm"]
    assert "volumes" not in pod(job(max_restarts=0), options(volume_claim=None))


TRAIN = ("tfaccel", "train", "--recipe=image_classification", "--resume=auto")


@pytest.mark.parametrize(
    ("changes", "chosen", "message"),
    [
        ({}, {"image": ""}, "Kubernetes needs the name of a container image. Received: image=''."),
        ({}, {"image": "a b"}, "Received: image='a b'."),
        ({"cores_per_worker": None}, {}, "Kubernetes needs the cores and the memory of each worker, as its requests"),
        (
            {"memory_per_worker_bytes": None},
            {},
            "Received: cores_per_worker=4, memory_per_worker_bytes=None. Name both, for example",
        ),
        (
            {},
            {"volume_claim": None},
            "Received: max_restarts=3 without volume_claim. Name a PersistentVolumeClaim (--v",
        ),
        ({}, {"volume_claim": "my_runs"}, "`volume_claim` must be the name of one: small letters, digits, hyphens and"),
        ({}, {"namespace": "-a"}, "Received: namespace='-a'."),
        ({}, {"volume_claim": None, "mount_path": "/runs"}, "Received: mount_path='/runs' without volume_claim."),
        ({}, {"mount_path": "runs"}, "`mount_path` must be an absolute path other than `/`, without `..` and `:`."),
        ({}, {"mount_path": "/"}, "Received: mount_path='/'."),
        ({}, {"mount_path": "/a/../b"}, "Received: mount_path='/a/../b'."),
        ({}, {"user_id": 0}, "workers do not run as root. Received: user_id=0."),
        (
            {"command": (*TRAIN, "--run_dir=runs/digits")},
            {},
            "The run directory must be on the volume, which is mounted at /checkpoints. Received: "
            "--run_dir=runs/digits. Use --run_dir=/checkpoints/digits, or another mount_path.",
        ),
        ({"command": (*TRAIN, "--run_dir=/checkpoints/../a")}, {}, "The run directory must be on the volume"),
        ({"command": TRAIN}, {}, "Add --run_dir=/checkpoints/NAME --resume=auto to the command, or set max_restarts"),
        ({"command": (*TRAIN[:3], "--run_dir=/checkpoints/a")}, {}, "with --resume=auto. Add --resume=auto to the"),
        ({"command": ("/opt/tfaccel", "train", "--resume", "never")}, {}, "in the same run directory, with --resume="),
        ({"command": ("python", "-m", "tfaccel", "train")}, {}, "in the same run directory"),
        ({"command": ("python", "-m", "tfaccel.scripts.main", "train")}, {}, "in the same run directory"),
        ({"command": ("python3", "-m", "tfaccel.scripts.train")}, {}, "in the same run directory"),
    ],
)
def test_what_kubernetes_cannot_run_is_refused(changes, chosen, message):
    with pytest.raises(LaunchError) as caught:
        kubernetes_manifest(job(**changes), options(**chosen))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "chosen"),
    [
        ({"command": (*TRAIN, "--run_dir=/checkpoints/digits")}, {}),
        ({"command": (*TRAIN[:3], "--run_dir", "/runs/digits", "--resume", "must")}, {"mount_path": "/runs"}),
        ({"command": TRAIN[:3], "max_restarts": 0}, {}),
        ({"command": ("python", "-m", "pytest", "train")}, {}),
    ],
)
def test_a_run_that_can_continue_is_accepted(changes, chosen):
    assert len(parts(job(**changes), options(**chosen))) == 3
