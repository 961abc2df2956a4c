"""Predicted scaling, beside numbers computed by hand; refused options; JSON both ways."""

from dataclasses import replace

import pytest

from tfaccel.errors import HardwareError, PlanError
from tfaccel.extras.estimates.interconnect import KNOWN_INTERCONNECTS, Interconnect, known_interconnect
from tfaccel.extras.estimates.scaling import ScalingEstimate, ScalingOptions, scaling_rows
from tfaccel.planning.step_of_one_device import StepOfOneDevice

LINK = Interconnect(name="slow", machine_latency_seconds=0.01, machine_bytes_per_second=1e6)
STEP = StepOfOneDevice(step_seconds=0.1, batch_size=32, gradient_bytes=(60_000, 40_000), num_train_examples=1000)


def test_weak_scaling_by_hand():
    one, four = scaling_rows(STEP, LINK, [4, 1], ScalingOptions())
    assert (one.num_replicas, one.communication_seconds, one.efficiency) == (1, 0, 1)
    assert one.step_seconds == STEP.step_seconds
    # 6 steps of 10 ms, and 6 / 4 of 100 kB at 1 MB/s.
    assert four.communication_seconds == pytest.approx(0.06 + 0.15)
    assert four.step_seconds == pytest.approx(0.31)
    assert (four.global_batch_size, four.replica_batch_size, four.num_machines) == (128, 32, 4)
    assert four.examples_per_second == pytest.approx(128 / 0.31)
    assert four.efficiency == pytest.approx(0.1 / 0.31)
    assert four.epoch_seconds == pytest.approx(1000 * 0.31 / 128)


def test_strong_scaling_by_hand():
    step = StepOfOneDevice(step_seconds=0.1, fixed_seconds=0.02, batch_size=32, gradient_bytes=(100_000,))
    [three] = scaling_rows(step, LINK, [3], ScalingOptions(scaling="strong"))
    assert (three.global_batch_size, three.replica_batch_size) == (32, 11)
    assert three.compute_seconds == pytest.approx(0.02 + 0.08 * 11 / 32)
    assert three.efficiency == pytest.approx(0.1 / three.step_seconds / 3)
    assert three.epoch_seconds is None


def test_costs():
    options = ScalingOptions(price_per_device_hour=3.6)
    one, four = scaling_rows(STEP, LINK, [1, 4], options)
    assert one.cost_per_million_examples == pytest.approx(1e6 / 320 * 0.001)
    assert one.cost_per_epoch == pytest.approx(1000 / 320 * 0.001)
    assert four.cost_per_million_examples == pytest.approx(one.cost_per_million_examples / four.efficiency)


def test_overlap_hides_at_most_the_backward_pass():
    def step_seconds(overlap, bandwidth=1e6):
        link = Interconnect(name="a", machine_latency_seconds=0.0, machine_bytes_per_second=bandwidth)
        [row] = scaling_rows(STEP, link, [2], ScalingOptions(overlap=overlap))
        return row.step_seconds

    assert step_seconds(0.0) == pytest.approx(0.2)
    assert step_seconds(0.5) == pytest.approx(0.15)
    assert step_seconds(1.0) == pytest.approx(0.2 - 0.1 * 2 / 3)
    assert step_seconds(1.0, bandwidth=1e9) == pytest.approx(0.1)


def test_packs_have_latencies_of_their_own():
    [one], [two] = (scaling_rows(STEP, LINK, [2], ScalingOptions(bytes_per_pack=size)) for size in (0, 50_000))
    assert two.communication_seconds - one.communication_seconds == pytest.approx(2 * 0.01)


def test_estimate_is_the_same_after_json():
    options = ScalingOptions(scaling="strong", price_per_device_hour=2.0)
    rows = scaling_rows(STEP, LINK, [1, 2], options)
    estimate = ScalingEstimate(workload="digits", options=options, step=STEP, interconnect=LINK, rows=rows)
    assert ScalingEstimate.from_json(estimate.to_json()) == estimate
    assert "Communication does not overlap" in " ".join(estimate.assumptions)
    assert "Not modelled: stragglers" in " ".join(estimate.assumptions)


def test_batches_larger_than_the_data_are_named():
    rows = scaling_rows(STEP, LINK, [1, 16, 32, 64], ScalingOptions())
    estimate = ScalingEstimate(workload="a", options=ScalingOptions(), step=STEP, interconnect=LINK, rows=rows)
    assert estimate.assumptions[-1] == "From 32 replicas on, a global batch has more examples than the data."


def estimate_over(link, **fields):
    step = replace(STEP, source="measured", spread=0.04, **fields)
    rows = scaling_rows(step, link, [1, 2], ScalingOptions())
    return ScalingEstimate(workload="a", options=ScalingOptions(), step=step, interconnect=link, rows=rows)


def test_the_device_of_the_step_is_named():
    a100 = known_interconnect("dgx_a100")
    on_cpu = estimate_over(a100, device="CPU:0", device_model="EPYC")
    assert "step of one device: 0.1 s (measured on CPU:0 (EPYC), spread 4%), 32 examples" in on_cpu.assumptions
    warning = "Warning: the step is that of a CPU, but dgx_a100 connects GPUs. Measure on a machine with such a GPU"
    assert on_cpu.assumptions[-1].startswith(warning)
    assert on_cpu.to_json()["step"]["device"] == "CPU:0"
    assert ScalingEstimate.from_json(on_cpu.to_json()) == on_cpu
    others = [estimate_over(a100, device="GPU:0"), estimate_over(a100), estimate_over(LINK, device="CPU:0")]
    assert not any("Warning" in line for one in others for line in one.assumptions)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ScalingOptions(scaling="other"), r"scaling must be one of weak, strong\. Received: scaling='other'"),
        (lambda: ScalingOptions(algorithm="tree"), r"algorithm must be one of auto, ring, hierarchical\. Received:"),
        (lambda: ScalingOptions(overlap=1.5), r"overlap must be a fraction from 0 to 1\. Received: overlap=1\.5"),
        (lambda: ScalingOptions(bytes_per_pack=-1), r"bytes_per_pack must be a whole number of at least 0\. Received:"),
        (lambda: ScalingOptions(price_per_device_hour=-1), r"price_per_device_hour must be a number of at least 0"),
        (lambda: ScalingOptions(fixed_step_seconds=float("nan")), r"fixed_step_seconds must be a number of at least 0"),
        (lambda: StepOfOneDevice(step_seconds=0, batch_size=1, gradient_bytes=()), r"step_seconds must be positive"),
        (
            lambda: StepOfOneDevice(step_seconds=1, fixed_seconds=2, batch_size=1, gradient_bytes=()),
            r"fixed_seconds must be from 0 to step_seconds=1\. Received: fixed_seconds=2",
        ),
        (lambda: StepOfOneDevice(step_seconds=1, batch_size=0, gradient_bytes=()), r"batch_size must be at least 1"),
        (lambda: scaling_rows(STEP, LINK, [], ScalingOptions()), r"replicas must be whole numbers from 1 to 1,000,000"),
        (lambda: scaling_rows(STEP, LINK, [2, 0], ScalingOptions()), r"Received: \[2, 0\]"),
        (
            lambda: scaling_rows(STEP, LINK, [64], ScalingOptions(scaling="strong")),
            r"32 examples has too few for 64 replicas\. With scaling='strong', use at most 32 replicas",
        ),
    ],
)
def test_refused(make, message):
    with pytest.raises(PlanError, match=message):
        make()


def test_interconnects_of_the_table():
    for link in KNOWN_INTERCONNECTS.values():
        assert link.source
        assert Interconnect.from_json(link.to_json()) == link
    with pytest.raises(HardwareError, match=r"no interconnect 'dgx_a10'\. Did you mean 'dgx_a100'\? Known: dgx1_v100,"):
        known_interconnect("dgx_a10")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"machine_latency_seconds": -1}, r"machine_latency_seconds must be a number of at least 0\. Received:"),
        ({"machine_bytes_per_second": 0}, r"machine_bytes_per_second must be a positive number\. Received:"),
        ({"machine_bytes_per_second": float("inf")}, r"machine_bytes_per_second must be a positive number"),
        ({"machine_latency_seconds": True}, r"machine_latency_seconds must be a number"),
        ({"devices_per_machine": 0}, r"devices_per_machine must be a whole number of at least 1"),
        ({"devices_per_machine": 2}, r"with several devices per machine needs device_bytes_per_second"),
        ({"name": 3}, r"`name` must be a text"),
        ({"device_kind": "gpu"}, r"device_kind must be one of CPU, GPU, TPU\. Received: device_kind='gpu'"),
    ],
)
def test_refused_interconnects(fields, message):
    given = {"name": "a", "machine_latency_seconds": 1e-5, "machine_bytes_per_second": 1e9, **fields}
    with pytest.raises(HardwareError, match=message):
        Interconnect(**given)


def test_interconnect_files(tmp_path):
    import json

    file = tmp_path / "link.json"
    file.write_text(json.dumps(LINK.to_json()))
    assert Interconnect.load(file) == LINK
    gpu = {"kind": "GPU", "index": 0}
    for beside, kind in (
        ({"hardware": {"devices": [gpu]}}, "GPU"),
        ({"devices": [gpu]}, "GPU"),
        ({"hardware": {"devices": []}}, "CPU"),
        ({"hardware": {}}, None),
    ):
        file.write_text(json.dumps({**beside, "interconnect": LINK.to_json()}))
        assert Interconnect.load(file) == replace(LINK, device_kind=kind)
    file.write_text(json.dumps({"devices": [gpu], "interconnect": replace(LINK, device_kind="CPU").to_json()}))
    assert Interconnect.load(file).device_kind == "CPU"
    file.write_text(json.dumps({"hardware": {}}))
    with pytest.raises(HardwareError, match=r'link\.json.*not what connects machines\. Add an "interconnect" object'):
        Interconnect.load(file)
    file.write_text('{"name": "a"}')
    with pytest.raises(HardwareError, match=r"lacks machine_latency_seconds, machine_bytes_per_second"):
        Interconnect.load(file)
    file.write_text("{")
    with pytest.raises(HardwareError, match=r"is not JSON"):
        Interconnect.load(file)
    with pytest.raises(HardwareError, match=r"Cannot read the hardware file '.*nowhere\.json': No such file"):
        Interconnect.load(tmp_path / "nowhere.json")
