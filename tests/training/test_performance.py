"""What `train` reports of its own speed, that it changes no weight, and the traces of its steps."""

import json
from pathlib import Path

import pytest

from tfaccel.errors import WorkloadError
from tfaccel.training.run.performance import Performance
from tfaccel.training.run.result import TrainResult
from tfaccel.training.run.run_options import StepRange

HERE = Path(__file__).parent
KNOWN = {"examples_per_second": 640.0, "step_seconds": 0.05, "peak_memory_bytes": 10**9}


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"input_wait_share": 0.62, "cpu_utilization": 0.9}, "input", "62 % of the step time is spent waiting"),
        ({"input_wait_share": 0.01, "cpu_utilization": 0.9, "mfu": 0.41}, "compute", "MFU 0.41, CPU busy 90 %"),
        ({"cpu_utilization": 0.9}, "compute", "MFU unknown, CPU busy 90 %"),
        ({"input_wait_share": 0.01, "cpu_utilization": 0.4}, "host", "the CPU cores are idle 60 % of the time"),
        (
            {"cpu_utilization": 0.9, "gpu_utilization": 0.3, "gpu_peak_memory_bytes": 5},
            "host",
            "the GPUs are idle 70 % of the time",
        ),
        (
            {"cpu_utilization": 0.1, "gpu_utilization": 0.95, "gpu_peak_memory_bytes": 5, "mfu": 0.5},
            "compute",
            "MFU 0.50, GPUs busy 95 %",
        ),
        ({"cpu_utilization": 0.9, "gpu_peak_memory_bytes": 5}, "unknown", "install nvidia-ml-py"),
    ],
)
def test_what_holds_a_run_back(given, kind, text):
    performance = Performance(**{**KNOWN, **given})
    assert performance.bottleneck.kind == kind
    assert text in performance.bottleneck.text
    assert Performance.from_json(json.loads(json.dumps(performance.to_json()))) == performance


REPORTED = """
import json, logging, os, sys, time
from dataclasses import replace
from pathlib import Path
import keras
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tfaccel import detect_hardware, train
from tfaccel.planning.machine_ceilings import MachineCeilings, keep_ceilings
from tfaccel.training.run import recovery
from train_workload import plan, workload

folder = Path(sys.argv[1])
os.environ["TFACCEL_CACHE"] = str(folder / "cache")
work, flat = workload(), plan("none")

def slow(size, *, seed, epoch):
    def waiting(*batch):
        with tf.control_dependencies([tf.py_function(lambda: time.sleep(0.05), [], [])]):
            return tf.nest.map_structure(tf.identity, batch)
    return work.train_data(size, seed=seed, epoch=epoch).map(waiting)

def run(name, made=work, **options):
    result = train(made, flat, run_dir=folder / name, verbose=0, **{"epochs": 3, **options})
    model = keras.saving.load_model(folder / name / "model.keras", compile=False)
    weights = [array.tolist() for array in model.get_weights()]
    rows = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    return {"result": result.to_json(), "weights": weights, "rows": rows}

found = {"plain": run("plain", epochs=2), "resumed": run("plain", resume="auto", epochs=2)}
ceilings = MachineCeilings(device="CPU", matrix_flops_per_second={"float32": 1e9}, bytes_per_second=1e9)
keep_ceilings(detect_hardware(), flat, replace(ceilings, disturbed=("float32",)))
said = []
logging.getLogger("tfaccel").setLevel("INFO")
logging.getLogger("tfaccel").addFilter(lambda record: said.append(record.getMessage()) or True)
own = recovery.engine_options
recovery.engine_options = lambda plan: replace(own(plan), times_input=False)
found["untimed"] = run("untimed", epochs=2)
recovery.engine_options = own
found["said"] = said[:]
keep_ceilings(detect_hardware(), flat, ceilings)
found["slow"] = run("slow", replace(work, train_data=slow), profile="8:9")
events = EventAccumulator(str(folder / "slow" / "tensorboard" / "train"))
events.Reload()
found["tags"] = events.Tags()["scalars"]
found["traces"] = [path.name for path in (folder / "slow").rglob("*.pb")]
found["other_traces"] = [path.name for path in (folder / "plain").rglob("*.pb")]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(run_python, tmp_path_factory):
    folder = tmp_path_factory.mktemp("performance")
    return json.loads(run_python(REPORTED, str(folder), env={"PYTHONPATH": str(HERE)}).stdout.splitlines()[-1])


def test_epochs_and_result_have_the_performance(found):
    names = set(Performance.__dataclass_fields__)
    assert [set(row["performance"]) for row in found["plain"]["rows"]] == [names, names]
    result = found["plain"]["result"]
    assert set(result["performance"]) == names
    assert result["performance"]["mfu"] is None  # no ceilings are known
    assert result["performance"]["peak_memory_bytes"] > 10**7
    assert set(result["bottleneck"]) == {"kind", "text"}
    assert "performance" not in result["history"]
    assert found["resumed"]["result"] == result


def test_timing_the_input_changes_no_weight(found):
    assert found["untimed"]["weights"] == found["plain"]["weights"]
    assert found["untimed"]["result"]["history"] == found["plain"]["result"]["history"]
    assert found["untimed"]["result"]["performance"]["input_wait_share"] is None


def test_ceilings_that_were_disturbed_give_no_mfu(found):
    assert found["untimed"]["result"]["performance"]["mfu"] is None
    (line,) = [line for line in found["said"] if "MFU" in line]
    assert line.startswith("MFU is not reported. The limits (float32) were measured while other programs ran")


def test_slow_input_is_found_and_ceilings_give_mfu(found):
    slow = found["slow"]["result"]
    assert slow["performance"]["input_wait_share"] > 0.3
    assert slow["bottleneck"]["kind"] == "input"
    assert slow["bottleneck"]["text"].startswith("input-bound: ")
    assert 0 < slow["performance"]["mfu"] < 1
    assert {"performance/input_wait_share", "performance/mfu", "epoch_loss"} <= set(found["tags"])


def test_trace_of_steps_is_written_where_asked_for(found):
    assert len(found["traces"]) == 1
    assert found["traces"][0].endswith(".xplane.pb")
    assert found["other_traces"] == []


def test_result_of_an_earlier_version(found):
    old = {name: value for name, value in found["plain"]["result"].items() if name not in ("performance", "bottleneck")}
    result = TrainResult.from_json(old)
    assert result.performance is None
    assert TrainResult.from_json(result.to_json()) == result
    assert TrainResult.from_json(found["plain"]["result"]).performance is not None


def test_steps_to_profile():
    assert StepRange.of("3:3") == StepRange(3, 3)
    for text in ("a:b", "5", "5:", "1:2:3", "", "-1:2", "1.5:2"):
        with pytest.raises(WorkloadError, match=r"profile must be two optimizer steps, such as 10:12\. Received: "):
            StepRange.of(text)
    for text in ("5:3", "0:2"):
        with pytest.raises(WorkloadError, match=f"the first one not after the last one.* Received: {text}"):
            StepRange.of(text)
    with pytest.raises(WorkloadError, match=r"which has 9 optimizer steps\. Received: 3:10\."):
        StepRange(3, 10).check_length(9)


BOUNDARIES = """
from pathlib import Path
from tfaccel.training.run.train_callbacks import ProfileSteps
from tfaccel.training.run.run_options import StepRange

profile = ProfileSteps(StepRange(3, 4), Path("unused"), batches_per_step=2, batches_before=0)
assert [profile.steps_to_boundary(done) for done in (0, 3, 4, 7, 8)] == [4, 1, 4, 1, None]
profile.on_train_batch_end(4)
profile.on_epoch_end(0)
assert profile.steps_to_boundary(0) == 3
"""


def test_graph_calls_end_where_a_trace_begins_and_ends(run_python):
    run_python(BOUNDARIES)
