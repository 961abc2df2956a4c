"""Searches with real processes: what their rows and files hold, for all kinds of spaces, options and plans."""

import json
from pathlib import Path

import pytest
import search_cases
from search_cases import by_ending, lines

from tfaccel.errors import RunDirError, SearchError
from tfaccel.tuning.search import search
from tfaccel.tuning.search_result import SearchResult

HERE = Path(__file__).parent
FLOAT32 = {"dtype_policy": "float32"}


@pytest.fixture(autouse=True)
def where_workers_find_the_cases(monkeypatch):
    monkeypatch.chdir(HERE)


def sessions(folder):
    """What TensorBoard's view of hyperparameters reads: for each trial its hyperparameters and scalars."""
    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
    from tensorboard.plugins.hparams import metadata

    events = EventMultiplexer().AddRunsFromDirectory(str(folder))
    events.Reload()
    found = {}
    for run, tags in events.PluginRunToTagToContent("hparams").items():
        if metadata.SESSION_START_INFO_TAG in tags:
            start = metadata.parse_session_start_info_plugin_data(tags[metadata.SESSION_START_INFO_TAG])
            scalars = {tag: events.Scalars(run, tag)[0].value for tag in events.Runs()[run]["scalars"]}
            found[run] = (set(start.hparams), scalars)
    return found


def test_trials_fail_one_by_one_in_the_dtype_policy_of_the_plan(tmp_path):
    seen = []
    run_dir = tmp_path / "run"
    result = search(
        search_cases.workload,
        search_cases.end_softly,
        run_dir=run_dir,
        algorithm="grid",
        plan_fields={"dtype_policy": "mixed_bfloat16"},
        on_row=seen.append,
    )
    rows = by_ending(result)
    assert {ending: row.status for ending, row in rows.items()} == {
        "well": "completed",
        "raises": "failed",
        "nan": "failed",
        "well again": "completed",
    }
    assert rows["raises"].cause == "ValueError: this one is broken"
    assert "NaN or infinite" in rows["nan"].cause
    assert rows["well"].score == rows["well again"].score == rows["well"].metrics["val_mae"]  # the same seed
    assert result.objective.name == "val_mae"
    assert result.best == rows["well"]
    assert result.best_hyperparameters == {"ending": "well"}
    assert seen == list(result.rows)
    assert [line["trial_id"] for line in lines(run_dir)] == [row.trial_id for row in result.rows]
    assert SearchResult.from_json(json.loads((run_dir / "search.json").read_text())) == result
    names = {path.name for path in run_dir.iterdir()}
    assert names == {
        "config.json",
        "logs",
        "parallel_coordinates.png",
        "search.json",
        "space.json",
        "tensorboard",
        "trials.jsonl",
        "tuner",
    }
    assert {path.name for path in (run_dir / "tensorboard").iterdir() if path.is_dir()} == {r.trial_id for r in seen}
    with pytest.raises(RunDirError, match=r"already holds a run"):
        search(search_cases.workload, search_cases.end_softly, run_dir=run_dir, algorithm="grid")
    with pytest.raises(RunDirError, match=r"holds another run: algorithm is 'grid' there and 'random' here"):
        search(
            search_cases.workload,
            search_cases.end_softly,
            run_dir=run_dir,
            resume="auto",
            plan_fields={"dtype_policy": "mixed_bfloat16"},
        )


@pytest.mark.slow
def test_metrics_may_be_nan_and_hyperparameters_conditional(tmp_path, logical_devices):
    result = search(
        search_cases.workload,
        search_cases.odd_metrics,
        run_dir=tmp_path / "run",
        max_trials=4,
        objective="val_mae",
        plan_fields=FLOAT32,
    )
    assert {row.status for row in result.rows} == {"completed"}
    assert all("width" not in row.hyperparameters for row in result.rows if row.hyperparameters["kind"] == "narrow")
    for line in lines(tmp_path / "run"):
        assert line["metrics"]["val_never"] is None
        assert line["hyperparameters"]["momentum"] == 0.5
    shown = sessions(tmp_path / "run" / "tensorboard")
    assert {trial_id: hparams for trial_id, (hparams, _) in shown.items()} == {
        row.trial_id: set(row.hyperparameters) for row in result.rows
    }
    for row in result.rows:
        assert shown[row.trial_id][1] == pytest.approx({**row.finite_metrics, "score": row.score})


@pytest.mark.slow
def test_hyperband_goes_on_with_its_best_and_several_objectives_have_a_front(tmp_path):
    result = search(
        search_cases.workload,
        search_cases.build,
        run_dir=tmp_path / "a",
        algorithm="hyperband",
        epochs=4,
        parallel=2,
        objective=("val_loss", "size", "latency"),
        plan_fields=FLOAT32,
        retrain=True,
    )
    rows = {row.trial_id: row for row in result.rows}
    assert {row.status for row in result.rows} == {"completed"}
    went_on = [row for row in result.rows if "tuner/trial_id" in row.hyperparameters]
    assert went_on
    for row in went_on:
        before = rows[row.hyperparameters["tuner/trial_id"]]
        assert row.epochs == row.hyperparameters["tuner/epochs"] - row.hyperparameters["tuner/initial_epoch"]
        assert row.hyperparameters["width"] == before.hyperparameters["width"]
        assert row.metrics["val_loss"] < before.metrics["val_loss"]  # it did not begin anew
    assert 0 < len(result.pareto) <= len(rows)
    smallest = min(result.rows, key=lambda row: row.metrics["model_bytes"])
    assert smallest.metrics["model_bytes"] in {row.metrics["model_bytes"] for row in result.pareto}
    assert all(row.metrics["latency_seconds"] > 0 for row in result.rows)
    assert Path(result.best_run_dir, "model.keras").exists()


@pytest.mark.slow
def test_pruned_and_oversized_trials_and_a_fit_of_ones_own(tmp_path):
    result = search(
        search_cases.workload,
        search_cases.build,
        run_dir=tmp_path / "a",
        epochs=6,
        max_trials=12,
        pruning="median",
        max_parameters=40,
        objective="val_loss",
        plan_fields=FLOAT32,
    )
    statuses = {row.status for row in result.rows}
    assert statuses == {"completed", "pruned", "failed"}
    for row in result.rows:
        if row.status == "pruned":
            assert row.epochs < 6
            assert row.cause.startswith("At epoch ")
        if row.status == "failed":
            assert "parameters; the limit (max_parameters) is 40" in row.cause
            assert 3 * row.hyperparameters["width"] + 1 > 40
    own = search(
        search_cases.workload,
        "own_fit_case:OwnFit",
        run_dir=tmp_path / "b",
        max_trials=2,
        objective="half_loss:min",
        plan_fields={**FLOAT32, "jit_compile": True},
    )
    assert [row.metrics for row in own.rows] == [{"half_loss": row.score, "xla": 1.0} for row in own.rows]


@pytest.mark.slow
def test_trials_are_built_under_the_strategy_of_the_plan(tmp_path):
    plan_fields = {
        "strategy": "mirrored",
        "devices": ("CPU:0", "CPU:1"),
        "num_logical_cpus": 2,
        "dtype_policy": "mixed_bfloat16",
    }
    result = search(
        search_cases.workload, search_cases.under_two_replicas, run_dir=tmp_path, max_trials=3, plan_fields=plan_fields
    )
    assert [(row.status, row.cause) for row in result.rows] == [("completed", None)] * 3


@pytest.mark.slow
def test_trials_on_two_replicas_score_as_on_one_device(tmp_path):
    def scores(devices, **plan_fields):
        run_dir = tmp_path / f"{devices} {plan_fields}"
        space, fields = search_cases.build_with_batch_normalization, {**FLOAT32, **plan_fields}
        options = {"algorithm": "grid", "devices": devices, "plan_fields": fields}
        result = search(search_cases.workload, space, run_dir=run_dir, objective="val_loss", **options)
        return [row.score for row in result.rows]

    one_device = scores(1)
    assert len(one_device) == 2
    assert scores(2, synchronize_batch_norm=True) == pytest.approx(one_device, rel=1e-5)
    assert scores(2, synchronize_batch_norm=False) != pytest.approx(one_device, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("space", "options", "message"),
    [
        (search_cases.nothing_free, {}, "The space has no free parameter"),
        (search_cases.build, {"objective": "val_los"}, "No trial has the metric 'val_los'. Did you mean 'val_loss'"),
        ("search_cases:NUM_ROWS", {}, "search_cases:NUM_ROWS must be a function of hp, or a keras_tuner.HyperModel"),
        (search_cases.uncompiled, {}, "returned a model that is not compiled"),
        (search_cases.wrong_argument, {}, "cannot be called like this|unexpected keyword argument 'lerning_rate'"),
    ],
)
def test_bad_spaces_leave_nothing(tmp_path, space, options, message):
    with pytest.raises(SearchError, match=message):
        search(search_cases.workload, space, run_dir=tmp_path / "run", **options)
    assert list(tmp_path.iterdir()) == []
