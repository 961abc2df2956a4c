"""Estimates as values, and the estimate of a whole training step beside closed formulas."""

import pytest

from tfaccel.errors import PlanError, WorkloadError
from tfaccel.hardware.hardware import Device, Hardware
from tfaccel.measuring.batch_report import BatchReport, BatchTrial
from tfaccel.measuring.memory_estimate import BatchMemory, MemoryEstimate, ways_to_save
from tfaccel.measuring.report import Candidate
from tfaccel.planning.plan import Plan
from tfaccel.training.run.performance import TimedWindow

PLAN = Plan(strategy="none", devices=("CPU:0",), global_batch_size=256)
PARAMETERS = 128 * 512 + 512 + 512 * 10 + 10


def estimate(**changes):
    """An estimate of 100 bytes and 10 for each example."""
    batches = tuple(
        BatchMemory(
            replica_batch_size=size,
            input_bytes=0,
            activations_bytes=9 * size,
            temporaries_bytes=0,
            recomputed_activations_bytes=3 * size,
            num_segments=3,
            total_bytes=100 + 10 * size,
        )
        for size in (8, 4)
    )
    fields = {"workload": "made_up", "device": "GPU:0", "optimizer": "SGD", "num_parameters": 1, "weights_bytes": 4}
    return MemoryEstimate(**{**fields, "gradients_bytes": 4, "optimizer_bytes": 0, "batches": batches, **changes})


def test_totals_lie_on_a_line():
    found = estimate(device_bytes=1000)
    assert [found.total_bytes(size) for size in (1, 4, 6, 8, 80)] == [110, 140, 160, 180, 900]
    assert found.fits(80)
    assert not found.fits(81)
    assert estimate().fits(1) is None
    assert found.batches[0].recomputed_total_bytes == 140 - 36 + 12
    assert MemoryEstimate.from_json(found.to_json()) == found
    with pytest.raises(PlanError, match=r"needs at least one batch size\. Received: batches=\(\)"):
        estimate(batches=())


def test_what_each_plan_field_saves():
    sizes = {"weights_bytes": 40, "gradients_bytes": 40, "optimizer_bytes": 80, "device_bytes": 222}
    found = estimate(**sizes, embedding_bytes=24, embedding_slots_bytes=48)
    ways = {way.field: way for way in ways_to_save(found, replica_batch_size=8, num_devices=4)}
    totals = {field: (way.total_bytes, way.saved_bytes, way.fits) for field, way in ways.items()}
    assert totals == {
        "as planned": (180, 0, True),
        "optimizer_state=sharded": (120, 60, True),
        "optimizer_state=host": (100, 80, True),
        "pipeline_stages=4": (180 - 30 - 60 - 54, 144, True),
        "embeddings_on=host": (180 - 24 - 48, 72, True),
        "rematerialization=true": (132, 48, True),
    }
    assert ways["pipeline_stages=4"].row()[1] == "0.0 MiB"
    alone = ways_to_save(estimate(**{**sizes, "device_bytes": 190}), replica_batch_size=8, num_devices=1)
    assert [(way.field, way.fits) for way in alone] == [
        ("as planned", False),
        ("optimizer_state=host", True),
        ("rematerialization=true", True),
    ]


def test_the_fastest_batch_is_recommended():
    def trial(size, seconds, *, fits=True):
        plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=size)
        windows = (TimedWindow(seconds=seconds, num_steps=1, loss=0.0),)
        return BatchTrial(candidate=Candidate(plan=plan, axis="batch", windows=windows), fits=fits)

    trials = (trial(8, 2.0), trial(16, 2.0), trial(32, 3.99), trial(64, 0.1, fits=False))
    report = BatchReport(workload="made_up", trials=trials, memory_limit_bytes=None, seconds=1.0, fastest=16)
    assert (report.largest, report.fastest) == (32, 16)
    assert "--global_batch_size=16" in report.recommendation
    assert [row[-1] for row in report.rows()] == ["fits", "fits, fastest", "fits, largest", "does not fit"]
    assert BatchReport.from_json(report.to_json()) == report
    none = BatchReport(workload="made_up", trials=(trials[-1],), memory_limit_bytes=None, seconds=1.0)
    assert none.recommendation.startswith("No batch size fits.")


def workload(**compile_args):
    import keras
    import numpy as np

    from tfaccel import Workload

    def build():
        layers = [keras.layers.Dense(512, activation="relu"), keras.layers.Dense(10)]
        return keras.Sequential([keras.Input((128,)), *layers])

    x, y = np.zeros((512, 128), "float32"), np.zeros((512, 10), "float32")
    return Workload.of(build, x, y, batch_size=256, loss="mse", **compile_args)


def test_what_a_step_keeps_and_holds(logical_devices):
    from tfaccel.measuring.step_memory import estimate_here

    found = estimate_here(workload(optimizer="adam"), PLAN, batch_sizes=(256, 512), device_bytes=2**33)
    assert found.num_parameters == PARAMETERS
    assert found.gradients_bytes == 4 * PARAMETERS
    assert 4 * PARAMETERS <= found.weights_bytes <= 4 * PARAMETERS + 1000  # and metrics
    assert 8 * PARAMETERS <= found.optimizer_bytes <= 8 * PARAMETERS + 1000  # two slots
    assert found.optimizer == "Adam"
    one, two = found.batches[:2]
    assert one.activations_bytes == pytest.approx(4 * 256 * (512 + 2 * 10), rel=0.05)
    assert two.activations_bytes == pytest.approx(2 * one.activations_bytes, rel=0.01)
    assert found.largest_replica_batch_size > 10**5
    assert found.fits(found.largest_replica_batch_size)
    assert not found.fits(int(1.05 * found.largest_replica_batch_size))
    assert found.process_bytes > 2**26


def test_policies_optimizers_and_micro_batches(logical_devices):
    from tfaccel.measuring.step_memory import estimate_here

    half = Plan(strategy="none", devices=("GPU:0",), global_batch_size=256, dtype_policy="mixed_bfloat16")
    found = estimate_here(workload(optimizer="sgd"), half, batch_sizes=(256,), device_bytes=100)
    assert found.optimizer_bytes < 100  # no slots
    assert found.weights_bytes >= 4 * PARAMETERS  # Keras keeps float32
    assert found.batches[0].activations_bytes < 4 * 256 * 512
    assert (found.runtime_bytes, found.process_bytes) == (0, 0)
    assert found.largest_replica_batch_size == 0
    assert any("traced on the CPU" in note for note in found.notes)
    two = Plan(strategy="none", devices=("CPU:0",), global_batch_size=256, accumulation_steps=2)
    micro = estimate_here(workload(optimizer="sgd"), two, batch_sizes=(256,))
    assert micro.batches[0].activations_bytes == pytest.approx(4 * 128 * (512 + 2 * 10), rel=0.05)
    assert micro.optimizer_bytes >= 4 * PARAMETERS  # the accumulated gradients
    with pytest.raises(PlanError, match=r"divisible by accumulation_steps\. Received: 255, accumulation_steps=2"):
        estimate_here(workload(optimizer="sgd"), two, batch_sizes=(255,))


def test_plan_fields_that_save_optimizer_state(logical_devices):
    from tfaccel.measuring.step_memory import estimate_here

    adam = workload(optimizer="adam")
    fields = {"strategy": "mirrored", "devices": ("GPU:0", "GPU:1"), "global_batch_size": 256}
    changes = ({}, {"optimizer_slots_dtype": "bfloat16"}, {"optimizer_state": "sharded"}, {"optimizer_state": "host"})
    found = [estimate_here(adam, Plan(**fields, **change), batch_sizes=(128,)) for change in changes]
    whole, halved, sharded, on_host = (one.optimizer_bytes for one in found)
    assert halved == sharded == whole // 2
    assert on_host == 0
    assert [found[0].total_bytes(128) - one.total_bytes(128) for one in found[1:]] == [whole - halved, halved, whole]
    assert found[0].reduced_bytes == found[0].gradients_bytes  # two replicas exchange them


def test_a_plan_that_recomputes_keeps_fewer_activations(logical_devices):
    import keras
    import numpy as np

    from tfaccel import Workload
    from tfaccel.measuring.step_memory import estimate_here

    def build():
        hidden = [keras.layers.Dense(256, activation="gelu") for _ in range(4)]
        return keras.Sequential([keras.Input((8,)), *hidden, keras.layers.Dense(1)])

    x = np.zeros((2048, 8), "float32")
    work = Workload.of(build, x, x[:, :1], batch_size=1024, loss="mse", optimizer="sgd")
    fields = {"strategy": "none", "devices": ("GPU:0",), "global_batch_size": 1024}
    kept, recomputed = (
        estimate_here(work, Plan(**fields, rematerialization=recomputes), batch_sizes=(1024,), device_bytes=2**30)
        for recomputes in (False, True)
    )
    inputs_of_layers = 4 * 1024 * 4 * 256
    assert recomputed.batches[0].activations_bytes == pytest.approx(inputs_of_layers, rel=0.05)
    assert recomputed.batches[0].activations_bytes < 0.6 * kept.batches[0].activations_bytes
    assert recomputed.total_bytes(1024) < 0.8 * kept.total_bytes(1024)
    assert recomputed.largest_replica_batch_size > 1.2 * kept.largest_replica_batch_size


def test_a_model_of_one_batch_size(logical_devices):
    import keras
    import numpy as np

    from tfaccel import Workload
    from tfaccel.measuring.step_memory import estimate_here

    def build():
        eight_rows = keras.layers.Lambda(lambda x: keras.ops.reshape(x, (8, 3)))
        return keras.Sequential([keras.Input((3,), batch_size=8), eight_rows, keras.layers.Dense(1)])

    work = Workload.of(build, np.zeros((16, 3)), np.zeros((16, 1)), batch_size=8, loss="mse")
    plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=8)
    found = estimate_here(work, plan, device_bytes=2**40)
    assert [one.replica_batch_size for one in found.batches] == [8]
    assert found.largest_replica_batch_size is None
    assert any("no other batch size" in note for note in found.notes)
    with pytest.raises(PlanError, match=r"only 8 rows can be estimated\. Received: 4"):
        estimate_here(work, plan, batch_sizes=(4,))


def test_bad_requests():
    from tfaccel import find_batch_size
    from tfaccel.estimates import estimate_memory
    from tfaccel.measuring.batch_report import BatchOptions

    with pytest.raises(PlanError, match=r"head_room must be a number from 0 to below 1\. Received: head_room=1"):
        estimate_memory("image_classification", head_room=1)
    with pytest.raises(PlanError, match=r"batch_sizes must be whole numbers of at least 1\. Received: 0"):
        estimate_memory("image_classification", batch_sizes=(0,))
    with pytest.raises(WorkloadError, match="There is no recipe 'imag'"):
        find_batch_size("imag")
    with pytest.raises(PlanError, match=r"budget_seconds must be positive\. Received: budget_seconds=0"):
        BatchOptions(budget_seconds=0)
    with pytest.raises(PlanError, match=r"head_room must be a number from 0 to below 1"):
        BatchOptions(head_room=-0.1)


def test_targets_without_inputs_are_refused():
    from tfaccel import find_batch_size, find_fastest, find_learning_rate
    from tfaccel.estimates import estimate_memory, roofline

    for verb in (estimate_memory, find_batch_size, find_fastest, find_learning_rate, roofline):
        with pytest.raises(WorkloadError, match=r"y is the target of x\. Received: y without x\. Pass both"):
            verb("image_classification", y=[1, 2])


def test_memory_of_the_smallest_device():
    from tfaccel.measuring.estimate_memory import device_bytes

    gpus = tuple(Device(kind="GPU", index=index, memory_bytes=size) for index, size in enumerate((16, 8)))
    two = Plan(strategy="mirrored", devices=("GPU:0", "GPU:1"), global_batch_size=8)
    assert device_bytes(two, Hardware(devices=gpus, memory_bytes=100)) == 8
    assert device_bytes(two, Hardware(devices=(), memory_bytes=100)) is None
    assert device_bytes(PLAN, Hardware(devices=gpus, memory_bytes=100)) == 100
