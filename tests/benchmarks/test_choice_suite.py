"""The benchmark of choices: its space, its figures, what it keeps, and a very short run."""

import json

import pytest

from tfaccel.benchmarks import choice_suite, family_stages, plan_sweep, synthetic_data
from tfaccel.benchmarks.choice_tasks import FAMILIES, workload
from tfaccel.benchmarks.plan_sweep import speed, sweep_space
from tfaccel.benchmarks.report import Report
from tfaccel.benchmarks.timed_race import Timing
from tfaccel.hardware.hardware import Hardware
from tfaccel.measuring.plan_search import MeasureOptions
from tfaccel.measuring.report import Candidate
from tfaccel.planning.moves import moves
from tfaccel.planning.plan import Plan
from tfaccel.training.run.performance import TimedWindow

HARDWARE = Hardware(num_usable_cores=2, cpu_features=("AVX2", "AVX512F", "AVX512_BF16"))
REFERENCE = Plan(strategy="none", devices=("CPU:0",), global_batch_size=128)
XLA = Plan(strategy="none", devices=("CPU:0",), global_batch_size=128, jit_compile=True)


def test_the_bounds_are_those_of_find_fastest():
    options = MeasureOptions()
    assert (options.max_candidates, options.budget_seconds) == (family_stages.MAX_CANDIDATES, None)


def test_space_has_every_combination_and_every_move():
    work = workload("mlp")
    space = sweep_space(HARDWARE, work)
    kinds = {(plan.dtype_policy, plan.grappler_bfloat16) for plan in space.combined}
    assert kinds == {("float32", False), ("mixed_bfloat16", False), ("float32", True)}
    threads = {(plan.intra_op_threads, plan.inter_op_threads) for plan in space.combined}
    assert threads == {(None, None), (2, 1), (1, 2)}
    # 3 precisions x 3 compilations x 3 threads, without Grappler's bfloat16 under XLA, and without the reference
    assert len(space.combined) == len(set(space.combined)) == 27 - 3 - 1
    assert space.reference not in space.combined
    assert [move.changes for move in space.single if move.axis == "oneDNN"] == [(("onednn", False),)]
    reachable = moves(HARDWARE, work, {})
    swept = {axis for axes in plan_sweep.COMBINED for axis in axes} | {move.axis for move in space.single}
    assert {move.axis for move in reachable} <= swept


def test_onednn_is_combined_where_it_is_off_by_default():
    space = sweep_space(Hardware(num_usable_cores=2, cpu_features=("AVX2",)), workload("mlp"))
    assert {(plan.onednn, plan.fused_kernels) for plan in space.combined} >= {(True, True), (None, True), (True, False)}
    assert len(space.combined) == 2 * 3 * 3 - 1
    assert "oneDNN" not in {move.axis for move in space.single}


def window(seconds):
    return TimedWindow(seconds=seconds, num_steps=4, loss=1.0)


def timing(*seconds, failure=""):
    return Timing(global_batch_size=128, windows=tuple(map(window, seconds)), failure=failure).to_json()


def results(*, chosen, best, fit, num_plans=5, seconds=25.0):
    candidates = [Candidate(plan=XLA, axis="XLA", windows=(window(1.0),))] * num_plans
    report = {"candidates": [one.to_json() for one in candidates], "chosen": 0}
    swept = [Candidate(plan=plan, axis="sweep", speedup=1.0) for plan in (REFERENCE, XLA)]
    race = {
        "timings": {"chosen plan": timing(*chosen), "sweep 1": timing(*best), "Model.fit": timing(*fit)},
        "reached_by_sweep": ["sweep 1", "chosen plan"],
        "failures": {},
        "plans": {"chosen plan": XLA.to_json(), "sweep 1": REFERENCE.to_json()},
    }
    return {
        "search": {"seconds": seconds, "cached_seconds": 0.1, "report": report},
        "sweep": [one.to_json() for one in swept],
        "race": race,
    }


def test_figures_of_families_and_of_all():
    raw = {
        "mlp": results(chosen=(1.0, 1.0, 1.0), best=(0.9, 0.8, 0.9), fit=(2.0, 2.0, 4.0)),
        "cnn": results(chosen=(1.0, 1.0, 1.0), best=(1.5, 1.5, 1.5), fit=(0.5, 0.5, 0.5), seconds=61.0),
    }
    figures = {(figure.name, figure.quantity): figure for figure in choice_suite.choice_figures(raw)}
    to_best = figures["mlp", "throughput chosen plan (jit_compile=True) / best of 2 swept (float32)"]
    assert to_best.values == pytest.approx((0.9, 0.8, 0.9))
    # Where the chosen plan is the best one, it is compared with itself.
    ours = figures["cnn", "throughput chosen plan (jit_compile=True) / best of 2 swept (jit_compile=True)"]
    assert ours.values == (1.0, 1.0, 1.0)
    everything = {quantity: figure for (name, quantity), figure in figures.items() if name == "all families"}
    assert everything["chosen plan / best of a sweep, 2 of 7 families, worst"].values == pytest.approx((0.9,))
    assert everything["chosen plan / best of a sweep, 2 of 7 families, median"].median == pytest.approx(0.95)
    mean = everything["chosen plan / Model.fit, 2 of 7 families, geometric mean"]
    assert (mean.median, mean.met) == (pytest.approx(1.0), False)
    assert figures["cnn", "throughput chosen plan / Model.fit"].met is False
    assert figures["mlp", "seconds of choosing"].met is True
    assert figures["cnn", "seconds of choosing"].met is False


def test_figures_of_a_plan_that_was_chosen_after_another_models():
    part = results(chosen=(1.0, 1.0), best=(0.9, 0.9), fit=(2.0, 2.0))
    part["taught"] = {**part["search"], "seconds": 21.0}
    part["race"]["timings"]["chosen plan, taught"] = timing(0.9, 0.9)
    part["race"]["plans"]["chosen plan, taught"] = REFERENCE.to_json()
    figures = {figure.quantity: figure for figure in choice_suite.choice_figures({"mlp": part})}
    taught = "throughput chosen plan, taught (float32) / best of 2 swept (float32)"
    assert (figures[taught].median, figures["seconds, if taught"].met) == (1.0, False)
    everything = "{} / best of a sweep, 1 of 7 families, worst"
    assert figures[everything.format("chosen plan, taught")].met is True
    assert figures[everything.format("chosen plan")].median == pytest.approx(0.9)


def test_figures_of_a_family_that_was_interrupted():
    part = results(chosen=(1.0,), best=(1.0,), fit=(1.0,))
    del part["race"]
    assert [figure.quantity for figure in choice_suite.choice_figures({"mlp": part, "input": {}})] == [
        "plans measured",
        "seconds of choosing",
        "seconds, if cached",
    ]


def test_programs_that_varied_or_failed_are_named():
    part = results(chosen=(1.0, 1.0, 2.0), best=(1.0, 1.0, 1.0), fit=(1.0, 1.0, 1.0))
    part["race"]["timings"]["sweep 1"] = timing(failure="The process was killed.")
    varied, failed = choice_suite.noisy_programs({"mlp": part})
    assert varied.startswith("mlp: chosen plan varies by ")
    assert failed == "mlp: sweep 1 failed: The process was killed."


def test_failed_and_rejected_plans_do_not_count():
    plan = Candidate(plan=XLA, axis="XLA", speedup=2.0)
    assert speed(plan) == 2.0
    for name in ("failure", "rejection"):
        assert speed(Candidate(plan=XLA, axis="XLA", speedup=2.0, **{name: "wrong"})) == 0.0


def test_raw_results_come_back():
    raw = {"mlp": results(chosen=(1.0,), best=(1.0,), fit=(1.0,))}
    report = Report(suite="choice", machine={}, measurements={}, figures=(), raw=raw, notes=("busy",))
    again = Report.from_json(json.loads(json.dumps(report.to_json())))
    assert choice_suite.choice_figures(again.raw) == choice_suite.choice_figures(raw)
    assert again.warnings == ["busy"]


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_data_can_be_learned(family):
    x, y = synthetic_data.synthetic_arrays(64, family.input_shape, num_tokens=family.num_tokens)
    assert x.shape == (64, *family.input_shape)
    assert len(y) == 64
    assert len(set(y.tolist())) > 3
    again = synthetic_data.synthetic_arrays(64, family.input_shape, num_tokens=family.num_tokens)
    assert (again[0] == x).all()


@pytest.mark.slow
def test_sweep_rejects_wrong_losses_and_keeps_failures(run_python):
    run_python(SWEEP, fresh=True)


SWEEP = """
from tfaccel.benchmarks.choice_tasks import FAMILIES
from tfaccel.benchmarks.family_stages import Racers
from tfaccel.benchmarks.plan_sweep import PlanSweep, SweepSpace, speed
from tfaccel.benchmarks.suite_options import SuiteOptions
from tfaccel.planning.moves import Move
from tfaccel.planning.plan import Plan

size = FAMILIES["cnn"].global_batch_size
reference = Plan(strategy="none", devices=("CPU:0",), global_batch_size=size)
two = Move("threads", (("intra_op_threads", 1),)).applied_to(reference)
gone = Move("devices", (("devices", ("GPU:7",)),)).applied_to(reference)
halves = Move("micro-batches", (("accumulation_steps", 2),))
space = SweepSpace(reference=reference, combined=(two, gone), single=(halves,))
with Racers("cnn", SuiteOptions(repetitions=1, progress=print)) as racers:
    first, second, missing, split = PlanSweep(space, racers.servers, racers.task, progress=print).run()
assert (first.plan, first.speedup) == (reference, 1.0)
assert second.speedup > 0 and second.axis == "intra_op_threads=1", second
assert "GPU:7" in missing.failure and speed(missing) == 0, missing
assert "batch normalization" in split.rejection and speed(split) == 0, split
"""


@pytest.mark.slow
def test_short_run_is_written_and_continued(run_python, tmp_path):
    out = tmp_path / "choice.json"
    options = ["--figures=embedding", "--scale=0.1", "--repetitions=2", f"--out={out}", "--json"]
    done = run_python("tfaccel.scripts.benchmark", "choice", *options, check=False)
    data = json.loads(done.stdout)
    assert json.loads(out.read_text()) == data
    assert done.returncode == (0 if data["met"] else 1)
    assert list(data["raw"]["embedding"]) == ["search", "taught", "sweep", "race"]
    assert len(data["raw"]["embedding"]["race"]["timings"]["Model.fit"]["windows"]) == 2
    del data["raw"]["embedding"]["race"]
    out.write_text(json.dumps(data))
    again = run_python("tfaccel.scripts.benchmark", "choice", *options, check=False)
    assert "find_fastest" not in again.stderr
    assert "round 2 of 2" in again.stderr
    assert set(json.loads(again.stdout)["raw"]["embedding"]) == {"search", "taught", "sweep", "race"}
    other = run_python("tfaccel.scripts.benchmark", "choice", *options, "--repetitions=3", check=False)
    assert other.returncode == 2
    assert (
        f"--out: {out} was measured with another value of repetitions, so it cannot be continued: with "
        "repetitions = 2; now it is 3. Name another file."
    ) in other.stderr


@pytest.mark.slow
def test_plain_pipeline_reads_the_same_images(run_python, tmp_path):
    run_python(PIPELINES, tmp_path)


PIPELINES = """
import sys
import contextlib
from pathlib import Path
import numpy as np
from tfaccel.benchmarks import input_program
from tfaccel.benchmarks.input_figures import KERAS, PLAIN

folder = Path(sys.argv[1])
input_program.write_images(folder, 256)
sums = {}
stack = contextlib.ExitStack()
pipelines = input_program.PIPELINES | input_program.served_pipelines(folder, stack)
for name, prepare in pipelines.items():
    batches = [(x.numpy(), y.numpy()) for x, y in prepare(folder)(0)]
    assert [x.shape for x, _ in batches] == [(128, 128, 128, 3)] * 2, name
    assert sum(y.sum(axis=0) for _, y in batches).tolist() == [128.0, 128.0], name
    sums[name] = np.sort(np.concatenate([x.sum(axis=(1, 2, 3), dtype=np.float64) for x, _ in batches]))
stack.close()
wanted = sums.pop(PLAIN)
sums.pop(KERAS)  # resizes without anti-aliasing
for name, found in sums.items():
    np.testing.assert_allclose(found, wanted, err_msg=name)
"""
