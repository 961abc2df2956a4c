"""The benchmark of a GPU: its registry, results that are continued, steps that fail, and a rehearsal of some steps."""

import importlib
import importlib.util
import inspect
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tfaccel.benchmarks.gpu import step_halves, suite
from tfaccel.benchmarks.gpu.step import Step, StepRun
from tfaccel.benchmarks.gpu.step_result import StepResult
from tfaccel.benchmarks.gpu.steps import STEPS, chosen_steps
from tfaccel.benchmarks.gpu.suite import GpuOptions, get_machine, make_report, run_gpu_suite
from tfaccel.benchmarks.gpu.tasks import TASKS, task_named
from tfaccel.benchmarks.gpu.trial import TrialFailed, in_new_process
from tfaccel.errors import TfaccelError
from tfaccel.hardware.hardware import Device, Hardware
from tfaccel.scripts import benchmark, benchmark_gpu


def step(function, name=None, limit_seconds=60.0, expected_seconds=1.0, **arguments):
    return Step(
        name=name or function,
        about="a test",
        function=f"gpu_steps:{function}",
        arguments=arguments,
        expected_seconds=expected_seconds,
        limit_seconds=limit_seconds,
    )


@pytest.fixture(autouse=True)
def importable_steps(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


def rehearsal(folder, **options):
    return GpuOptions(out=folder, is_rehearsal=True, **options)


def test_each_step_has_a_function_that_takes_its_arguments():
    assert len({one.name for one in STEPS}) == len(STEPS)
    for one in STEPS:
        module, _, name = one.function.partition(":")
        inspect.signature(getattr(importlib.import_module(module), name)).bind("run", **one.arguments)
        assert 0 < one.expected_seconds <= one.limit_seconds <= 120
        assert one.arguments.get("task", "mlp") in TASKS
    names = [one.name for one in STEPS]
    assert names[:2] == ["doctor", "parity"]
    assert names.index("transformer_rules") < names.index("utilization") < names.index("transformer_choice")
    assert names.index("transformer_choice") < names.index("transformer") < names.index("regret_transformer_float32")


def test_a_first_sitting_fits_into_seven_minutes():
    """The machine, parity, both models with PyTorch, FLOP utilization and the MLP, as measured on an H100."""
    first = [one.name for one in STEPS[: [one.name for one in STEPS].index("mlp_fit") + 1]]
    assert first == ["doctor", "parity", "transformer_rules", "resnet_rules", "utilization", "mlp_fit"]
    measured = {
        "doctor": 47,
        "parity": 91,
        "transformer_rules": 103,
        "resnet_rules": 78,
        "utilization": 21,
        "mlp_fit": 43,
    }
    assert sum(measured.values()) < 7 * 60
    assert all(one.expected_seconds >= measured[one.name] - 3 for one in STEPS[: len(first)])


def test_steps_are_chosen_in_the_order_of_the_suite():
    assert [one.name for one in chosen_steps(["float8", "env"])] == ["env", "float8"]
    assert chosen_steps(["all"]) == list(STEPS)


def test_a_step_longer_than_two_minutes_is_refused():
    with pytest.raises(TfaccelError, match=r"ends within 120 seconds. Received: limit_seconds=121 for 'counts'"):
        step("counts", limit_seconds=121)


def test_failures_are_results_and_the_next_step_goes_on(tmp_path):
    steps = [
        step("raises"),
        step("dies"),
        step("hangs", limit_seconds=3.0),
        step("fills_memory"),
        step("counts", number=4),
    ]
    results = run_gpu_suite(steps, rehearsal(tmp_path))
    found = {result.step: (result.status, result.cause) for result in results}
    assert found == {
        "raises": ("failed", "ValueError: the cause"),
        "dies": ("failed", found["dies"][1]),
        "hangs": ("failed", "was ended after 3 seconds; its last words: about to hang"),
        "fills_memory": ("failed", "Out of memory: MemoryError"),
        "counts": ("done", ""),
    }
    assert found["dies"][1].startswith("was killed by SIGSEGV (invalid memory access): ")
    assert [result.results.get("before") for result in results] == [1, 2, 3, None, None]
    assert json.loads((tmp_path / "rehearsal" / "dies.json").read_text())["status"] == "failed"
    report = make_report(steps, results, rehearsal(tmp_path))
    assert report.warnings[0] == "raises: failed: ValueError: the cause"
    assert (report.met, report.raw["counts"]["results"]) == (True, {"half": 2})


def test_what_ended_is_not_run_again(tmp_path):
    first = run_gpu_suite([step("counts", number=4), step("raises")], rehearsal(tmp_path))
    assert [result.status for result in first] == ["done", "failed"]
    cut = StepResult(step="later", machine=first[0].machine, is_rehearsal=True, status="cut short")
    cut.save(tmp_path / "rehearsal")
    said = []
    steps = [step("counts", number=8), step("raises"), step("counts", name="later", number=6)]
    second = run_gpu_suite(steps, rehearsal(tmp_path, progress=said.append))
    assert said == ["3 of 3: later: a test (about 1 s)"]
    assert [result.results for result in second] == [{"half": 2}, {"before": 1}, {"half": 3}]
    again = run_gpu_suite([step("counts", number=8)], rehearsal(tmp_path, again=True))
    assert again[0].results == {"half": 4}


def test_a_time_limit_cuts_a_step_short_and_leaves_the_rest(tmp_path):
    steps = [step("hangs"), step("counts", number=2)]
    results = run_gpu_suite(steps, rehearsal(tmp_path, time_limit_seconds=6.0))
    assert [(result.step, result.status, result.results) for result in results] == [
        ("hangs", "cut short", {"before": 3})
    ]
    assert not results[0].is_final
    warnings = make_report(steps, results, rehearsal(tmp_path)).warnings
    assert warnings == ["counts: did not run: no time was left", f"hangs: cut short: {results[0].cause}"]


def test_a_step_that_would_not_end_in_time_is_passed_over(tmp_path):
    """What it took the last time it ran to its end counts, and otherwise what its author expects."""
    steps = [step("counts", name="long", number=2, expected_seconds=40.0), step("counts", number=2)]
    limited = rehearsal(tmp_path, time_limit_seconds=30.0)
    assert [result.step for result in run_gpu_suite(steps, limited)] == ["counts"]
    known = StepResult.load(tmp_path / "rehearsal", "counts")
    replace(known, step="long", seconds=2.5, machine={}).save(tmp_path / "rehearsal")
    assert suite.expected_seconds(steps[0], limited) == 2.5
    assert [result.step for result in run_gpu_suite(steps, limited)] == ["long", "counts"]


def test_results_are_kept_by_card(tmp_path, monkeypatch):
    """A rehearsal, two cards of one kind, and one of another kind; results with other versions are measured again."""
    run_gpu_suite([step("counts", number=4)], rehearsal(tmp_path))
    for models, name in ((["H200"], "H200"), (["NVIDIA H100 80GB HBM3"] * 2, "2x_NVIDIA_H100_80GB_HBM3")):
        cards = tuple(Device(kind="GPU", index=index, model=model) for index, model in enumerate(models))
        monkeypatch.setattr(suite, "detect_hardware", lambda cards=cards: Hardware(devices=cards))
        options = GpuOptions(out=tmp_path)
        assert options.folder == tmp_path / name
        assert run_gpu_suite([], options) == []
        result = StepResult(step="env", machine=json.loads(json.dumps(get_machine(options))), is_rehearsal=False)
        options.folder.mkdir()
        result.save(options.folder)
        assert run_gpu_suite([], options) == [result]
        replace(result, machine={}).save(options.folder)
        assert run_gpu_suite([], options) == []
    (tmp_path / "rehearsal" / "counts.json").write_text("{}")
    with pytest.raises(TfaccelError, match=r"counts.json is not a result of `tfaccel benchmark gpu` \(KeyError\)"):
        run_gpu_suite([step("counts", number=4)], rehearsal(tmp_path))


def test_figures_are_judged_on_a_gpu_only(tmp_path):
    for is_rehearsal, met in ((False, False), (True, None)):
        run = StepRun(StepResult(step="one", machine={}, is_rehearsal=is_rehearsal), tmp_path)
        run.figure("count", "number", [2.0], at_least=3.0)
        assert StepResult.load(tmp_path, "one").figures[0].met is met
        assert run.one_device["devices"] == (("CPU:0",) if is_rehearsal else ("GPU:0",))


def test_without_a_gpu_the_command_says_how_to_rehearse(monkeypatch):
    monkeypatch.setattr(suite, "detect_hardware", lambda: Hardware())
    with pytest.raises(TfaccelError, match=r"no GPU that TensorFlow could use.*--rehearse"):
        get_machine(GpuOptions(out=Path()))


def test_without_a_gpu_no_folder_is_made(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(suite, "detect_hardware", lambda: Hardware())
    assert benchmark.run(["benchmark", "gpu", f"--out={tmp_path / 'new'}"]) == 2
    assert "no GPU that TensorFlow could use" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_results_of_other_steps_stay_in_the_report(tmp_path):
    machine = json.loads(json.dumps(get_machine(rehearsal(tmp_path))))
    (tmp_path / "rehearsal").mkdir()
    StepResult(step="float8", machine=machine, is_rehearsal=True, status="done").save(tmp_path / "rehearsal")
    results = run_gpu_suite([step("counts", number=4)], rehearsal(tmp_path))
    assert [result.step for result in results] == ["float8", "counts"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps=enf"], "--steps: unknown step 'enf'. Did you mean 'env'? Steps: doctor, parity,"),
        (["--steps="], "--steps: unknown step ''."),
        (["--out=/proc/new", "--rehearse"], "--out: cannot write to '/proc/new'."),
        (["--out=no/such/folder"], "--out: cannot write to 'no/such/folder'. Name a folder, or a new one in an"),
        (["--minutes=0"], "minutes"),
        (["--repetitions=3"], "Unknown command line flag 'repetitions'"),
        (["env"], "unexpected argument 'env'"),
    ],
)
def test_bad_input_is_one_line_and_status_2(capsys, arguments, message):
    status = benchmark.run(["benchmark", "gpu", *arguments])
    said = capsys.readouterr()
    assert (status, said.out, said.err.count("\n")) == (2, "", 1)
    assert said.err.startswith("benchmark gpu: ")
    assert message in said.err


def test_help_lists_the_steps(capsys):
    assert benchmark.run(["benchmark", "gpu", "--help"]) == 0
    assert all(one.name in capsys.readouterr().out.replace("\n", " ") for one in STEPS[:1])


def test_the_largest_size_is_found_by_bisection(tmp_path, monkeypatch):
    """Of sizes that fail from 16 on for lack of memory, and of a way that fails for another reason."""

    def attempt(run, way, size):
        if way == "broken":
            return {"failure": "ValueError: no", "memory": False}
        return (
            {"failure": "Out of memory: x", "memory": True} if size >= 16 else {"loss": [0.5 if way == "fits" else 0.6]}
        )

    monkeypatch.setattr(step_halves, "_attempt", attempt)
    run = StepRun(StepResult(step="halves", machine={}, is_rehearsal=False), tmp_path)
    sizes = (8, 10, 12, 14, 16, 18)
    assert step_halves._largest(run, sizes, ("fits", "broken", "odd")) == {"fits": 14, "broken": 0, "odd": 14}
    assert run.result.notes == ("broken: size 8 failed, and not for lack of memory: ValueError: no",)
    assert list(run.result.results["attempts"]["fits"]) == ["8", "14", "18", "16"]
    [losses] = run.result.figures
    assert (losses.values, losses.met) == ((pytest.approx(0.1 / 0.6),), False)


def test_a_function_in_a_new_process_returns_or_fails_with_its_cause():
    assert in_new_process("gpu_steps:adds", {"one": 1, "other": 2}, limit_seconds=60) == 3
    with pytest.raises(TrialFailed, match=r"TypeError: .*missing 1 required positional argument: 'other'"):
        in_new_process("gpu_steps:adds", {"one": 1}, limit_seconds=60)
    with pytest.raises(TrialFailed, match="ended with status 7"):
        in_new_process("gpu_steps:exits", {}, limit_seconds=60)
    assert TrialFailed("Out of memory: OOM when allocating").ran_out_of_memory
    assert not TrialFailed("ValueError: no").ran_out_of_memory


# 12 layers of BERT's size with 8,000 tokens, a norm and a head; ResNet-50 with 10 classes in place of 1,000.
NUM_PARAMETERS = {
    "mlp": 2 * 33 * 32 + 33 * 10,
    "transformer": 12 * 7_087_872 + 8000 * 768 + 2 * 768 + 769 * 10,
    "resnet": 25_557_032 - 2049 * 990,
}


@pytest.mark.slow
def test_models_have_the_size_of_the_figures(run_python):
    counts = json.loads(run_python(COUNTS).stdout.splitlines()[-1])
    assert counts == NUM_PARAMETERS
    assert task_named("resnet", is_tiny=True).size.global_batch_size == 8


COUNTS = """
import json, math
from tfaccel.benchmarks.gpu.tasks import TASKS
models = {name: task.build_model() for name, task in TASKS.items()}
print(json.dumps({name: sum(math.prod(v.shape) for v in m.trainable_variables) for name, m in models.items()}))
"""


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_torch_models_are_as_large():
    from tfaccel.benchmarks.gpu.torch_models import MODELS

    sizes = {name: MODELS[name](task.size) for name, task in TASKS.items()}
    counts = {name: sum(one.numel() for one in model.parameters()) for name, model in sizes.items()}
    assert counts == NUM_PARAMETERS


@pytest.mark.slow
def test_quick_rehearsal(tmp_path, capsys):
    arguments = ["benchmark", "gpu", "--rehearse", f"--out={tmp_path / 'new'}", "--steps=env,half_card_embeddings"]
    assert benchmark.run([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["raw"]["env"]["results"]["environment"]["packages"]["tensorflow"]
    halves = report["raw"]["half_card_embeddings"]
    assert (halves["status"], halves["notes"]) == ("done", [])
    assert {figure["met"] for figure in halves["figures"]} == {None}
    assert json.loads((tmp_path / "new" / "rehearsal" / benchmark_gpu.REPORT).read_text()) == report
    assert benchmark.run(arguments) == 0
    assert StepResult.load(tmp_path / "new" / "rehearsal", "half_card_embeddings").seconds == halves["seconds"]
    assert "half_card_embeddings" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_whole_rehearsal(tmp_path, capsys):
    assert benchmark.run(["benchmark", "gpu", "--rehearse", f"--out={tmp_path}", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {name: result["status"] for name, result in report["raw"].items()} == {one.name: "done" for one in STEPS}
