import dataclasses
import json

import pytest

from tfaccel.errors import HardwareError
from tfaccel.hardware.hardware import Cluster, Device, Hardware


def make_full() -> Hardware:
    return Hardware(
        cpu_model="AMD EPYC 9454",
        num_physical_cores=48,
        num_usable_cores=16,
        cpu_features=("AVX2", "AVX512F"),
        memory_bytes=2**38,
        devices=(
            Device(kind="GPU", index=0, model="NVIDIA H100", memory_bytes=2**36, compute_capability=(9, 0)),
            Device(kind="GPU", index=1, driver_version="580.65.06"),
            Device(kind="TPU", index=0),
        ),
        cluster=Cluster(source="tf_config", num_workers=2, task_index=1, addresses=("a:1", "b:2")),
        tpu_environment="cloud",
    )


def test_json_round_trip_through_text():
    hardware = make_full()
    assert Hardware.from_json(json.loads(json.dumps(hardware.to_json()))) == hardware
    assert hash(hardware) == hash(Hardware.from_json(hardware.to_json()))


def test_defaults_make_a_machine_in_one_line():
    node = Hardware(devices=tuple(Device(kind="GPU", index=i) for i in range(8)))
    assert [gpu.name for gpu in node.gpus] == [f"GPU:{i}" for i in range(8)]
    assert node.tpus == ()
    assert Hardware.from_json({}) == Hardware()


def test_kinds_are_told_apart():
    hardware = make_full()
    assert [device.name for device in hardware.gpus] == ["GPU:0", "GPU:1"]
    assert [device.name for device in hardware.tpus] == ["TPU:0"]


def test_lists_and_sets_are_frozen():
    hardware = Hardware(cpu_features={"AVX512F", "AVX2"}, devices=[Device(kind="GPU", index=0)])
    assert hardware.cpu_features == ("AVX2", "AVX512F")
    assert isinstance(hardware.devices, tuple)
    assert Device(kind="GPU", index=0, compute_capability=[8, 6]).compute_capability == (8, 6)
    with pytest.raises(dataclasses.FrozenInstanceError):
        hardware.memory_bytes = 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Device(kind="NPU", index=0), "one of CPU, GPU, TPU. Received: kind='NPU'"),
        (lambda: Device(kind="GPU", index=-1), "index must be a whole number of at least 0. Received: index=-1"),
        (lambda: Device(kind="GPU", index=True), "Received: index=True"),
        (lambda: Device(kind="GPU", index=0, memory_bytes=0), "memory_bytes must be .* at least 1"),
        (lambda: Device(kind="GPU", index=0, compute_capability="9.0"), r"such as \[9, 0\]. Received: .*'9.0'"),
        (lambda: Device(kind="GPU", index=0, model=None), "model must be a string"),
        (lambda: Cluster(source="mpi", num_workers=1, task_index=0), "Received: source='mpi'"),
        (lambda: Cluster(source="slurm", num_workers=2, task_index=2), "smaller than num_workers"),
        (lambda: Cluster(source="slurm", num_workers=2, task_index=0, addresses=("a",)), "one address for each"),
        (lambda: Hardware(num_usable_cores=0), "num_usable_cores must be .* Received: num_usable_cores=0"),
        (lambda: Hardware(memory_bytes=1.5), "Received: memory_bytes=1.5"),
        (lambda: Hardware(cpu_features="AVX2"), "cpu_features must be a list of strings"),
        (lambda: Hardware(devices=(Device(kind="CPU", index=0),)), "accelerators only.*Received: CPU"),
        (lambda: Hardware(devices=(Device(kind="GPU", index=0),) * 2), "more than once: GPU:0"),
        (lambda: Hardware(devices={"kind": "GPU"}), "devices must be a sequence of Device"),
        (lambda: Hardware(cluster="slurm"), "cluster must be a Cluster or None"),
    ],
)
def test_impossible_fields_are_refused(make, message):
    with pytest.raises(HardwareError, match=message):
        make()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], r"Hardware must be a JSON object. Received: \[\]"),
        ({"gpus": 8}, "Hardware has no such field. Expected: cpu_model, .* Received: gpus"),
        ({"devices": [{"kind": "GPU"}]}, "Device lacks index. Received: {'kind': 'GPU'}"),
        ({"devices": ["GPU:0"]}, "Device must be a JSON object. Received: 'GPU:0'"),
        ({"cluster": {"source": "slurm"}}, "Cluster lacks num_workers, task_index"),
    ],
)
def test_json_errors_name_the_field(data, message):
    with pytest.raises(HardwareError, match=message):
        Hardware.from_json(data)


def test_load_reads_what_was_written(tmp_path):
    path = tmp_path / "node.json"
    path.write_text(json.dumps(make_full().to_json()))
    assert Hardware.load(path) == make_full()
    path.write_text(json.dumps({"hardware": make_full().to_json(), "versions": {}}))  # what `tfaccel env --json` prints
    assert Hardware.load(path) == make_full()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{oops", r"node.json' is not JSON: Expecting property name.*tfaccel env --json"),
        (b"\xff\xfe\x00", "node.json' is not UTF-8"),
        (b'{"memory_bytes": "much"}', "In the hardware file .*node.json': memory_bytes must be .*'much'"),
    ],
)
def test_load_names_the_file_and_the_fault(tmp_path, content, message):
    path = tmp_path / "node.json"
    path.write_bytes(content)
    with pytest.raises(HardwareError, match=message):
        Hardware.load(path)


def test_load_names_a_file_that_is_not_there(tmp_path):
    with pytest.raises(HardwareError, match=r"Cannot read the hardware file .*none\.json': No such file"):
        Hardware.load(tmp_path / "none.json")
