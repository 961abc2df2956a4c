"""The utilization of GPUs, with a made-up driver in place of NVIDIA's."""

from types import SimpleNamespace

from made_up_machine import make_machine

from tfaccel.hardware.gpu import GpuMeter, visible_gpu_ids


class NvmlError(Exception):
    pass


def make_nvml(utilization):
    """A driver with two GPUs, of which only the second one is asked."""

    def rates(handle):
        value = utilization[handle]
        if value is None:
            raise NvmlError
        return SimpleNamespace(gpu=value)

    return SimpleNamespace(
        NVMLError=NvmlError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=lambda: "535",
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: f"GPU-{index}",
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetName=lambda handle: "NVIDIA L4",
        nvmlDeviceGetUUID=lambda handle: handle,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=2**30),
        nvmlDeviceGetCudaComputeCapability=lambda handle: (8, 9),
        nvmlDeviceGetUtilizationRates=rates,
    )


def test_gpus_that_the_plan_uses_are_asked(tmp_path):
    nvml = make_nvml({"GPU-0": 10, "GPU-1": 80})
    machine = make_machine(tmp_path, environ={"CUDA_VISIBLE_DEVICES": "1,0"}, import_nvml=lambda: nvml)
    assert visible_gpu_ids(("GPU:0",), machine=machine) == ("GPU-1",)
    assert visible_gpu_ids(("GPU:0", "GPU:1"), machine=machine) == ("GPU-1", "GPU-0")
    assert visible_gpu_ids(("GPU:2",), machine=machine) == ()
    meter = GpuMeter(("GPU-1",), machine=machine)
    meter.sample()
    meter.sample()  # too early to ask again
    assert meter.mean() == 0.8
    meter.reset()
    assert meter.mean() is None


def test_gpu_that_does_not_report(tmp_path):
    nvml = make_nvml({"GPU-0": None})
    meter = GpuMeter(("GPU-0",), machine=make_machine(tmp_path, import_nvml=lambda: nvml))
    meter.sample()
    assert meter.mean() is None
    without = GpuMeter(("GPU-0",), machine=make_machine(tmp_path))
    without.sample()
    assert without.mean() is None
