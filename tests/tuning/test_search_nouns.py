"""What a search is asked for and gives: options, objectives, rows, rules of pruning, device groups, importance."""

import json

import pytest

from tfaccel.errors import PlanError, RunDirError, SearchError
from tfaccel.hardware.hardware import Device, Hardware
from tfaccel.hardware.machine import Machine
from tfaccel.training.run.run_dir import RunDir
from tfaccel.tuning.objective import Objective, checked_objective, infer_direction
from tfaccel.tuning.options import SearchOptions
from tfaccel.tuning.search import _checked, _held, importances
from tfaccel.tuning.search_processes import DeviceGroup, device_groups
from tfaccel.tuning.search_result import SearchResult, TrialRow, TrialRows, best_row, pareto_front, read_rows
from tfaccel.tuning.trial_callbacks import prune_cause

NAMES = ["loss", "accuracy", "val_loss", "val_accuracy"]


def row(trial_id, score=0.5, status="completed", **metrics):
    return TrialRow(
        trial_id=trial_id, hyperparameters={"a": 1}, status=status, score=score, seconds=1.0, metrics=metrics
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "randm"}, "`algorithm` must be one of random, grid, bayesian, hyperband.*Did you mean 'random'"),
        ({"pruning": "media"}, "Did you mean 'median'"),
        ({"algorithm": "hyperband", "pruning": "median"}, "Hyperband stops trials itself"),
        ({"max_trials": 0}, "`max_trials` must be a whole number of at least 1, or None. Received: max_trials=0"),
        ({"parallel": None}, "`parallel` must be a whole number of at least 1. Received"),
        ({"seed": 0}, "`seed` must be a whole number of at least 1"),
        ({"trial_seconds": 0}, "`trial_seconds` must be a number of seconds above 0, or None"),
        ({"stall_seconds": -1.0}, "`stall_seconds` must be a number of seconds above 0. Received"),
        ({"workload_options": {"a": object()}}, "`workload_options` must be a dictionary of JSON values"),
        ({"max_trails": 3}, "A search has no option 'max_trails'. Did you mean 'max_trials'"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(SearchError, match=message):
        SearchOptions.of(options)


def test_plan_fields_are_checked():
    with pytest.raises(PlanError, match=r"Did you mean 'dtype_policy'"):
        SearchOptions(plan_fields={"dtype_polici": "float32"})


def test_options_know_what_identifies_a_search_as_json():
    options = SearchOptions(objective=("val_accuracy", "size"), max_trials=4, workload_options={"dropout": 0.1})
    assert json.loads(json.dumps(options.identity())) == options.identity()
    more = SearchOptions(
        objective=("val_accuracy", "size"), max_trials=9, workload_options={"dropout": 0.1}, parallel=2
    )
    assert more.identity() == options.identity() != SearchOptions().identity()


@pytest.mark.parametrize(
    ("wanted", "parts"),
    [
        (None, (("val_accuracy", "max"),)),
        ("val_loss", (("val_loss", "min"),)),
        ("accuracy:min", (("accuracy", "min"),)),
        (
            ("val_accuracy", "latency", "size"),
            (("val_accuracy", "max"), ("latency_seconds", "min"), ("model_bytes", "min")),
        ),
    ],
)
def test_objectives(wanted, parts):
    objective = checked_objective(wanted, NAMES)
    assert objective.parts == parts
    assert Objective.from_json(json.loads(json.dumps(objective.to_json()))) == objective


@pytest.mark.parametrize(
    ("wanted", "names", "message"),
    [
        ("val_acuracy", NAMES, "No trial has the metric 'val_acuracy'. Did you mean 'val_accuracy'"),
        (("val_loss", "siz"), NAMES, "No trial has the metric 'siz'"),
        ("fitness", ["fitness"], "The name 'fitness' does not imply whether higher is better"),
        ("loss:up", NAMES, "written NAME, NAME:max or NAME:min"),
        (None, ["fitness"], "The objective cannot be inferred from the metrics.*Metrics: fitness"),
    ],
)
def test_bad_objectives_are_refused(wanted, names, message):
    with pytest.raises(SearchError, match=message):
        checked_objective(wanted, names)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["loss", "val_loss", "divergence_loss", "val_divergence_loss"], ("val_loss", "min")),  # of several outputs
        (["loss", "val_loss", "val_nats_per_character"], ("val_nats_per_character", "min")),
        (["loss", "generator_loss", "val_recognised"], ("val_recognised", "max")),
        (["loss"], ("loss", "min")),
    ],
)
def test_what_is_bettered_where_nothing_is_said(names, expected):
    assert checked_objective(None, names).parts == (expected,)


def test_directions():
    rising = ["val_sparse_categorical_accuracy", "top_k_accuracy", "auc", "val_f1_score", "r2_score", "mean_io_u_iou"]
    rising += ["true_positives", "val_true_negatives", "true_negatives_1"]
    falling = ["val_mean_absolute_error", "rmse", "perplexity", "kl_divergence", "pinball_loss", "model_bytes"]
    falling += ["false_positives", "val_false_negatives_2"]
    assert {infer_direction(name) for name in rising} == {"max"}
    assert {infer_direction(name) for name in falling} == {"min"}
    for unknown in ("negatives", "val_positives"):
        with pytest.raises(SearchError, match=f"The name '{unknown}' does not imply whether higher is better"):
            infer_direction(unknown)


def test_several_objectives_weigh_size_by_its_logarithm():
    objective = Objective.of("val_accuracy,size")
    small, large = ({"val_accuracy": 0.9, "model_bytes": size} for size in (1e4, 1e5))
    assert objective.value(large) - objective.value(small) == pytest.approx(0.1)
    assert objective.better(objective.value(small), objective.value(large))


def test_rows_stand_once_each_in_whole_lines(tmp_path):
    rows = TrialRows(tmp_path / "trials.jsonl")
    assert rows.add(row("0", float("nan")))
    assert not rows.add(row("0"))
    assert rows.add(row("1", status="failed", score=None))
    lines = (tmp_path / "trials.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    assert list(first)[:6] == ["trial_id", "hyperparameters", "status", "score", "seconds", "cause"]
    assert first["score"] is None
    assert len(lines) == 2
    assert [r.trial_id for r in TrialRows(tmp_path / "trials.jsonl").rows] == ["0", "1"]
    assert read_rows(tmp_path / "none.jsonl") == []


def test_best_row_is_the_first_of_equals_and_never_a_failed_one():
    rows = [row("2", 0.9), row("1", 0.9), row("0", 0.1), row("3", None, "failed"), row("4", 0.2, "pruned")]
    assert best_row(rows, Objective.of("accuracy")).trial_id == "1"
    assert best_row(rows, Objective.of("loss")).trial_id == "0"
    assert best_row(rows[3:4], Objective.of("loss")) is None


def test_result_goes_to_json_and_back():
    rows = [row("0", 0.1, loss=0.1), row("1", None, "failed")]
    result = SearchResult.of("runs/a", rows, Objective.of("loss"), algorithm="random", wall_seconds=1.5)
    assert result.best_hyperparameters == {"a": 1}
    assert [entry.trial_id for entry in result.pareto] == ["0"]
    assert SearchResult.from_json(json.loads(json.dumps(result.to_json()))) == result


@pytest.mark.parametrize(
    ("rule", "own", "others", "ends"),
    [
        ("none", [9.0], [[1.0]] * 5, False),
        ("median", [9.0], [[1.0], [2.0]], False),  # too few
        ("median", [9.0], [[1.0], [2.0], [3.0]], True),
        ("median", [9.0, 1.5], [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]], False),
        ("median", [9.0, 8.0], [[1.0], [2.0], [3.0]], False),  # none has come so far
        ("halving", [2.5], [[1.0], [2.0], [3.0], [4.0], [5.0]], True),
        ("halving", [1.5], [[1.0], [2.0], [3.0], [4.0], [5.0]], False),
        ("halving", [2.5, 2.5], [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]], False),  # not looked at after epoch 2
    ],
)
def test_pruning_of_a_loss(rule, own, others, ends):
    assert (prune_cause(rule, own, others, Objective((("val_loss", "min"),))) is not None) == ends
    turned = [[-value for value in values] for values in others]
    rising = Objective((("val_accuracy", "max"),))
    assert (prune_cause(rule, [-value for value in own], turned, rising) is not None) == ends


def groups(parallel, *, cores=4, usable=None, gpus=0, memory=None, visible=None):
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    machine = Machine(root="", environ=environ, cpu_affinity=frozenset(range(cores)))
    devices = tuple(Device(kind="GPU", index=index, memory_bytes=memory) for index in range(gpus))
    hardware = Hardware(num_usable_cores=usable or cores, devices=devices)
    return device_groups(parallel, hardware, machine)


def test_cores_are_shared_out():
    assert [group.cores for group in groups(3)] == [(0,), (1,), (2, 3)]
    assert [group.cores for group in groups(3, cores=2)] == [(0,), (1,), (0,)]
    assert groups(1) == [DeviceGroup()]
    quota = groups(2, cores=64, usable=8)  # a quota binds to no core
    assert [(group.cores, dict(group.plan_fields)) for group in quota] == [((), {"intra_op_threads": 4})] * 2


def test_gpus_are_shared_out():
    assert [group.visible_gpus for group in groups(2, gpus=4)] == ["0,1", "2,3"]
    assert [group.visible_gpus for group in groups(2, gpus=2, visible="5, GPU-abc")] == ["5", "GPU-abc"]
    shared = groups(2, gpus=1, memory=10 * 2**30)
    assert [group.visible_gpus for group in shared] == ["0", "0"]
    assert dict(shared[0].plan_fields) == {"gpu_memory_limit_bytes": int(4.5 * 2**30)}


def test_a_tpu_has_one_process():
    hardware = Hardware(devices=(Device(kind="TPU", index=0),))
    with pytest.raises(SearchError, match=r"Only one process at a time can use a TPU. Received: parallel=2"):
        device_groups(2, hardware, Machine(root="", environ={}))


def test_importance_finds_what_decides():
    trials = [{"rate": rate, "kind": kind} for rate in (1e-4, 1e-3, 1e-2, 1e-1) for kind in ("a", "b")]
    scores = [0.1 if trial["rate"] > 1e-3 else 0.9 for trial in trials]
    del trials[0]["kind"]
    shares = importances(trials, scores, names=["kind", "rate"], logarithmic=["rate"])
    assert list(shares) == ["rate", "kind"]
    assert shares["rate"] > 0.8
    assert sum(shares.values()) == pytest.approx(1.0)
    assert importances(trials[:3], scores[:3], names=["kind"]) is None
    assert set(importances(trials, [1.0] * 8, names=["rate"]).values()) == {0.0}


def space_of(*entries):
    return {"space": [{"class_name": kind, "config": {"name": "a", **config}} for kind, config in entries]}


@pytest.mark.parametrize(
    "entries",
    [
        (),
        (("Fixed", {"value": 3}),),
        (("Choice", {"values": [3, 3]}),),
        (("Int", {"min_value": 2, "max_value": 2}),),
    ],
)
def test_a_space_without_a_free_parameter_is_refused(entries):
    with pytest.raises(SearchError, match=r"The space has no free parameter"):
        _checked({"space": space_of(*entries), "metrics": NAMES}, SearchOptions())


def test_a_directory_holds_one_space(tmp_path):
    space = {"space": [{"class_name": "Int", "config": {"name": "width", "min_value": 1, "max_value": 4}}]}
    wider = {"space": [{"class_name": "Int", "config": {"name": "width", "min_value": 1, "max_value": 8}}]}
    with _held(RunDir(tmp_path / "run", {"search": "a"}), space):
        again = _held(RunDir(tmp_path / "run", {"search": "a"}, resume="auto"), space)
        with (
            pytest.raises(RunDirError, match=r"Another run is using .*/run \(process .*\. Wait for it"),
            again,
        ):
            pass
    with _held(RunDir(tmp_path / "run", {"search": "a"}, resume="auto"), space):
        pass
    other = _held(RunDir(tmp_path / "run", {"search": "a"}, resume="auto"), wider)
    with pytest.raises(RunDirError, match=r"another space: the hyperparameter 'width' differs"), other:
        pass
    assert json.loads((tmp_path / "run" / "space.json").read_text()) == space
    with pytest.raises(RunDirError, match=r"The run directory /proc/1/none cannot be created: /proc/1 is not a"):
        RunDir("/proc/1/none", {})


def test_metrics_that_were_not_finite_are_left_out():
    odd = TrialRow.from_json(row("0", val_loss=0.5, odd=None, odder=float("nan")).to_json())
    assert odd.finite_metrics == {"val_loss": 0.5}
    with_both = [row("0", a=None, b=1.0), row("1", a=1.0, b=2.0)]
    assert [found.trial_id for found in pareto_front(with_both, Objective((("a", "max"), ("b", "min"))))] == ["1"]


def test_without_an_objective_what_a_fit_of_ones_own_returns_is_kept_low():
    found = {"space": space_of(("Boolean", {})), "metrics": None}
    assert _checked(found, SearchOptions()).parts == (("default_objective", "min"),)
    assert _checked(found, SearchOptions(objective="mine:max")).parts == (("mine", "max"),)
    assert _checked({**found, "space": space_of()}, SearchOptions()).name == "default_objective"  # it finds some
