"""When a GPU pays: break-even and estimates by hand; the table of GPUs; JSON both ways; refused values."""

import pytest

from tfaccel.errors import HardwareError, PlanError
from tfaccel.extras.estimates.device_comparison import (
    GPUS,
    DeviceComparison,
    DeviceTime,
    GpuAssumptions,
    gpu_peaks,
    gpu_step,
    known_gpu,
)
from tfaccel.hardware.hardware import Device
from tfaccel.scripts.plan_compare import verdict


def time_of(kind, step_seconds, start_seconds=0.0, batch_size=10):
    return DeviceTime(
        kind=kind,
        device="a model",
        source="given",
        batch_size=batch_size,
        step_seconds=step_seconds,
        start_seconds=start_seconds,
    )


def compared(cpu, gpu, epochs):
    return DeviceComparison(workload="a", epochs=epochs, num_examples=None, cpu=cpu, gpu=gpu)


def test_break_even_by_hand():
    # 1 s per example against 0.1 s: 0.9 s gained by each, 9 s lost at the start.
    cpu, gpu = time_of("cpu", 10.0, 1.0), time_of("gpu", 1.0, 10.0)
    assert compared(cpu, gpu, 1).break_even_examples == 11
    assert cpu.total_seconds(10, 1) == pytest.approx(gpu.total_seconds(10, 1))
    assert gpu.total_seconds(11, 1) < cpu.total_seconds(11, 1)
    assert compared(cpu, gpu, 10).break_even_examples == 2


def test_batches_may_differ():
    cpu, gpu = time_of("cpu", 1.0, batch_size=1), time_of("gpu", 1.0, 9.0, batch_size=10)
    assert compared(cpu, gpu, 1).break_even_examples == 11


def test_gpu_never_pays_if_its_steps_are_not_shorter():
    assert compared(time_of("cpu", 1.0), time_of("gpu", 1.0, 5.0), 1).break_even_examples is None
    assert compared(time_of("cpu", 1.0), time_of("gpu", 2.0, 5.0), 100).break_even_examples is None


def test_gpu_that_starts_earlier_pays_for_few_examples_if_it_is_slower():
    cpu, gpu = time_of("cpu", 1.0, 5.0, batch_size=1), time_of("gpu", 2.0, batch_size=1)
    found = DeviceComparison(workload="a", epochs=1, num_examples=4, cpu=cpu, gpu=gpu)
    assert (found.break_even_examples, found.max_gpu_examples, found.gpu_pays) == (None, 4, True)
    assert not DeviceComparison(workload="a", epochs=1, num_examples=5, cpu=cpu, gpu=gpu).gpu_pays
    assert verdict(found) == (
        "The GPU takes less time up to 4 examples per epoch, with 1 epoch(s): it starts sooner, but takes longer per "
        "example. With 4 it pays."
    )
    assert found.to_json()["max_gpu_examples"] == 4
    assert compared(cpu, gpu, 10).max_gpu_examples is None  # 0.4 examples
    assert compared(gpu, cpu, 1).max_gpu_examples is None
    never = compared(gpu, cpu, 1)
    assert verdict(never).startswith("The GPU takes less time from 6 examples per epoch on")


def test_gpu_pays_at_once_if_it_starts_earlier():
    assert compared(time_of("cpu", 1.0, 5.0), time_of("gpu", 0.5), 1).break_even_examples == 1


def test_comparison_says_whether_it_pays_and_survives_json():
    times = {"cpu": time_of("cpu", 10.0, 1.0), "gpu": time_of("gpu", 1.0, 10.0)}
    small, large, unknown = (
        DeviceComparison(workload="a", epochs=1, num_examples=size, **times) for size in (10, 11, None)
    )
    assert (small.gpu_pays, large.gpu_pays) == (False, True)
    data = large.to_json()
    assert data["cpu"]["epoch_seconds"] == pytest.approx(11.0)
    assert data["gpu"]["total_seconds"] == pytest.approx(11.1)
    assert unknown.to_json()["gpu"]["epoch_seconds"] is None
    assert unknown.to_json()["gpu_pays"] is None
    assert DeviceComparison.from_json(data) == large


def test_step_is_bound_by_launches_if_those_take_longer():
    peaks, counts = known_gpu("A100"), {"num_kernels": 1000, "moved_bytes": 10**6, "batch_bytes": 32 * 10**6}
    parts = gpu_step(peaks, GpuAssumptions(), dtype_policy="float32", operations=10**9, counts=counts)
    assert parts["arithmetic"] == pytest.approx(1e9 / (0.3 * 156e12))
    assert parts["memory"] == pytest.approx(1e6 / (0.7 * 1555e9))
    assert parts["transfer"] == pytest.approx(1e-3 / 0.7)
    assert parts["step"] == pytest.approx(parts["launches"] + parts["transfer"]) == pytest.approx(8e-3 + 1e-3 / 0.7)
    parts = gpu_step(peaks, GpuAssumptions(), dtype_policy="mixed_float16", operations=10**13, counts=counts)
    assert parts["arithmetic"] == pytest.approx(1e13 / (0.3 * 312e12))
    assert parts["step"] == pytest.approx(parts["arithmetic"] + parts["memory"] + parts["transfer"])


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("Tesla V100-PCIE-16GB", "V100 PCIe"),
        ("Tesla P100-PCIE-16GB", "P100"),
        ("Tesla P100-SXM2-16GB", "P100 SXM2"),
        ("NVIDIA GeForce RTX 3090 Ti", "RTX 3090 Ti"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
    ],
)
def test_models_as_the_driver_names_them(model, name):
    assert known_gpu(model).name == name


def test_bfloat16_is_fast_from_compute_capability_8_on():
    t4, a100 = known_gpu("T4"), known_gpu("A100")
    assert t4.operations_per_second("mixed_bfloat16") == t4.float32
    assert t4.operations_per_second("mixed_float16") == t4.half
    assert a100.operations_per_second("mixed_bfloat16") == a100.half
    assert known_gpu("NVIDIA GeForce RTX 4090 Laptop GPU") is None


def test_table_is_plausible():
    for gpu in GPUS:
        assert gpu.float32 <= gpu.operations_per_second("float32") <= gpu.operations_per_second("mixed_float16")
        assert gpu.pcie < gpu.memory


def test_unknown_model_of_a_known_capability_has_a_stand_in():
    peaks, found = gpu_peaks(Device(kind="GPU", index=0, model="NVIDIA X1", compute_capability=(8, 9)))
    assert (peaks.name, found) == ("L4", "data sheet of L4, which has the same compute capability 8.9")
    with pytest.raises(HardwareError, match=r"peak rates of GPU:0 are not known\. Received: model='Radeon'.*Known mod"):
        gpu_peaks(Device(kind="GPU", index=0, model="Radeon"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GpuAssumptions(reached_fraction=0), r"reached_fraction must be above 0, and at most 1\. Received:"),
        (lambda: GpuAssumptions(reached_bandwidth_fraction=1.1), r"reached_bandwidth_fraction must be above 0"),
        (lambda: GpuAssumptions(kernel_seconds=-1), r"kernel_seconds must be at least 0\. Received: kernel_seconds=-1"),
        (lambda: GpuAssumptions(start_seconds=float("inf")), r"start_seconds must be at least 0"),
        (lambda: time_of("cpu", 0.0), r"step_seconds must be positive\. Received: step_seconds=0\.0"),
    ],
)
def test_refused(make, message):
    with pytest.raises(PlanError, match=message):
        make()
