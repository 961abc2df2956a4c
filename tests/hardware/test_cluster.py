import json

import pytest
from made_up_machine import make_machine

from tfaccel.errors import HardwareError
from tfaccel.hardware.cluster import find_cluster
from tfaccel.hardware.detect import detect_hardware, detect_machine
from tfaccel.hardware.hardware import Cluster


def find(tmp_path, environ, files=None):
    return find_cluster(make_machine(tmp_path, environ=environ, files=files))


def tf_config(cluster, *, task_type="worker", index=0):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": task_type, "index": index}})}


def test_tf_config_with_a_chief(tmp_path):
    environ = tf_config({"chief": ["a:1"], "worker": ["b:2", "c:3"], "ps": ["d:4"]}, index="1")
    assert find(tmp_path, environ) == Cluster(
        source="tf_config", num_workers=3, task_index=1, addresses=("a:1", "b:2", "c:3"), num_chiefs=1
    )
    assert not find(tmp_path, tf_config({"chief": ["a:1"], "worker": ["b:2"]})).is_chief
    assert find(tmp_path, tf_config({"chief": ["a:1"], "worker": ["b:2"]}, task_type="chief")).is_chief
    assert find(tmp_path, tf_config({"worker": ["a:1", "b:2"]})).is_chief


def test_tf_config_of_an_evaluator_and_of_one_worker(tmp_path):
    evaluator = find(tmp_path, tf_config({"worker": ["a:1"]}, task_type="evaluator", index=3))
    assert (evaluator.task_type, evaluator.task_index, evaluator.num_workers) == ("evaluator", 3, 1)
    assert find(tmp_path, tf_config({"worker": {"0": "a:1"}})).addresses == ("a:1",)


@pytest.mark.parametrize("text", ["", "  ", "{}", '{"environment": "cloud"}'])
def test_tf_config_without_a_cluster_is_nothing(tmp_path, text):
    assert find(tmp_path, {"TF_CONFIG": text}) is None


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{'cluster': 1}", "is not JSON"),
        ("[1]", "is not a JSON object"),
        ('{"cluster": ["a:1"]}', '"cluster" is not a JSON object'),
        ('{"cluster": {"worker": "a:1"}}', "does not list the addresses of 'worker'"),
        ('{"cluster": {"worker": ["a:1"]}}', 'has no "task" with "type" and "index"'),
        ('{"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": 0}}', "names no worker"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}', "own task, worker 1"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": -1}}', "task index -1, which is not"),
        ('{"cluster": {"worker": ["a"]}, "task": {"type": "worker", "index": 0}}', "has the address 'a', which is not"),
        ('{"cluster": {"worker": ["a:0"]}, "task": {"type": "worker", "index": 0}}', "a port from 1 to 65535"),
        ('{"cluster": {"worker": ["a:1", "a:1"]}, "task": {"type": "worker", "index": 0}}', "'a:1' to several workers"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": ["x"], "index": 0}}', "does not list its own task"),
    ],
)
def test_a_broken_tf_config_is_quoted_with_what_is_expected(tmp_path, text, fault):
    with pytest.raises(HardwareError) as caught:
        find(tmp_path, {"TF_CONFIG": text})
    message = str(caught.value)
    assert fault in message
    assert f"Received: TF_CONFIG={text!r}" in message
    assert '"worker": ["host1:2222", "host2:2222"]' in message
    assert "unset it" in message


def test_slurm_step_expands_its_lists(tmp_path):
    environ = {
        "SLURM_STEP_NUM_TASKS": "5",
        "SLURM_PROCID": "3",
        "SLURM_STEP_NODELIST": "gpu[08-09],big1",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    }
    assert find(tmp_path, environ) == Cluster(
        source="slurm", num_workers=5, task_index=3, addresses=("gpu08", "gpu08", "gpu09", "gpu09", "big1")
    )
    unclear = find(tmp_path, {**environ, "SLURM_STEP_TASKS_PER_NODE": "?"})
    assert (unclear.num_workers, unclear.addresses) == (5, ())


def test_slurm_batch_script_and_single_task_work_alone(tmp_path):
    assert find(tmp_path, {"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}) is None
    alone = {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_STEP_NODELIST": "gpu1"}
    assert find(tmp_path, alone) is None


def test_slurm_without_a_rank_is_an_error(tmp_path):
    environ = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": "gpu[1-4]"}
    with pytest.raises(HardwareError, match=r"SLURM_PROCID must be .* 0 to 3, since SLURM_STEP_NUM_TASKS=4.*None"):
        find(tmp_path, environ)


def test_kubernetes_indexed_job(tmp_path):
    environ = {"JOB_COMPLETION_INDEX": "1", "JOB_COMPLETIONS": "3"}
    files = {
        "/etc/hostname": "train-1\n",
        "/etc/hosts": "127.0.0.1 localhost\n10.1.2.3\ttrain-1.workers.default.svc.cluster.local\ttrain-1\n",
    }
    domain = "workers.default.svc.cluster.local"
    assert find(tmp_path, environ, files) == Cluster(
        source="kubernetes", num_workers=3, task_index=1, addresses=tuple(f"train-{i}.{domain}" for i in range(3))
    )
    assert find(tmp_path / "no_service", environ).addresses == ()
    assert find(tmp_path, {"JOB_COMPLETION_INDEX": "1"}) is None  # pods of independent work look like this


def test_cloud_tpu_workers(tmp_path):
    environ = {"TPU_WORKER_HOSTNAMES": "10.0.0.1,10.0.0.2", "TPU_WORKER_ID": "1"}
    assert find(tmp_path, environ) == Cluster(
        source="cloud_tpu", num_workers=2, task_index=1, addresses=("10.0.0.1", "10.0.0.2")
    )
    assert find(tmp_path, {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}) is None
    with pytest.raises(HardwareError, match=r"TPU_WORKER_ID must be .* 0 to 1.*Received: TPU_WORKER_ID='2'"):
        find(tmp_path, {**environ, "TPU_WORKER_ID": "2"})


def test_tf_config_counts_before_the_scheduler(tmp_path):
    slurm = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2", "SLURM_STEP_NODELIST": "gpu[1-4]"}
    assert find(tmp_path, slurm).source == "slurm"
    assert find(tmp_path, {**slurm, **tf_config({"worker": ["a:1", "b:2"]})}).source == "tf_config"


def test_detection_of_a_whole_machine_with_and_without_its_cluster(tmp_path):
    environ = tf_config({"worker": ["a:1", "b:2"]}, index=1)
    hardware = detect_hardware(machine=make_machine(tmp_path, environ=environ))
    assert hardware.cluster.task_index == 1
    assert (hardware.num_usable_cores, hardware.memory_bytes, hardware.devices) == (2, 16 * 2**30, ())
    broken = make_machine(tmp_path, environ={"TF_CONFIG": "oops"})
    with pytest.raises(HardwareError, match="TF_CONFIG is not JSON"):
        detect_hardware(machine=broken)
    assert detect_machine(broken).cluster is None
