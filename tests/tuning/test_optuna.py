"""Optuna behind a search: the trials are those of its own loop, and nothing is lost or repeated."""

import json
import math

import pytest
import search_cases

from tfaccel.tuning.objective import Objective
from tfaccel.tuning.options import SearchOptions
from tfaccel.tuning.search import search
from tfaccel.tuning.search_result import TrialRow, write_outcome

LOSS = Objective((("val_loss", "min"),))
BOTH = Objective((("val_loss", "min"), ("size", "min")))


def space(hp):
    """All kinds of hyperparameters, in Keras Tuner's words."""
    hp.Float("rate", 1e-4, 1.0, sampling="log")
    hp.Int("units", 16, 100, step=16)
    hp.Float("dropout", 0.0, 0.5, step=0.1)
    hp.Choice("kind", ["narrow", "wide"])
    hp.Boolean("bias")
    hp.Fixed("depth", 3)
    hp.Int("power", 2, 64, step=2, sampling="log")
    hp.Float("tenfold", 0.001, 10.0, step=10, sampling="log")
    hp.Float("reverse", 1e-3, 1.0, sampling="reverse_log")
    hp.Int("whole", 1, 1000, sampling="log")
    with hp.conditional_scope("kind", ["narrow"]):
        hp.Int("size", 1, 4)
    with hp.conditional_scope("kind", ["wide"]):
        hp.Float("size", 5.0, 9.0)
    return hp


def suggested(trial):
    """The same space in Optuna's words."""
    values = {
        "rate": trial.suggest_float("rate", 1e-4, 1.0, log=True),
        "units": trial.suggest_int("units", 16, 96, step=16),
        "dropout": trial.suggest_float("dropout", 0.0, 0.5, step=0.1),
        "kind": trial.suggest_categorical("kind", ["narrow", "wide"]),
        "bias": trial.suggest_categorical("bias", [False, True]),
        "depth": 3,
        "power": 2 ** (trial.suggest_int("power", 0, 5) + 1),
        "tenfold": 10.0 ** (trial.suggest_int("tenfold", 0, 4) - 3),
    }
    values["reverse"] = 1.001 - 1e-3 * 1000.0 ** (1 - trial.suggest_float("reverse", 0.0, 1.0))
    values["whole"] = trial.suggest_int("whole", 1, 1000, log=True)
    if values["kind"] == "narrow":
        values["size"] = trial.suggest_int("size where kind in ['narrow']", 1, 4)
    else:
        values["size"] = trial.suggest_float("size where kind in ['wide']", 5.0, 9.0)
    return values


def loss(values):
    return (math.log10(values["rate"]) + 2) ** 2 + values["dropout"] + abs(values["units"] - 64) / 64 + values["size"]


def oracle(folder, objective=LOSS, **options):
    import keras_tuner

    from tfaccel.tuning.oracles import make_oracle

    options = SearchOptions(**options)
    config = space(keras_tuner.HyperParameters()).get_config()
    found = make_oracle(config, options, objective, run_dir=folder, epochs=9, on_row=lambda row: None)
    found._set_project_dir(str(folder), "tuner")
    found.go_on()
    return found


def end(found, trial, objective=LOSS, **row):
    """Ends a trial as its worker does."""
    values = dict(trial.hyperparameters.values)
    metrics = {"val_loss": loss(values), "size": float(values["units"])}
    row = {"status": "completed", "score": objective.value(metrics), "metrics": metrics, **row}
    write_outcome(found.run_dir, TrialRow(trial_id=trial.trial_id, hyperparameters=values, seconds=1.0, **row))
    found.finish(trial.trial_id)
    return values


def run(found, objective=LOSS):
    tried = []
    while (trial := found.create_trial("worker")).status != "STOPPED":
        tried.append(end(found, trial, objective))
    return tried


def same(one, other):
    return one.keys() == other.keys() and all(
        one[name] == (pytest.approx(value) if isinstance(value, float) else value) for name, value in other.items()
    )


@pytest.mark.parametrize(("algorithm", "seed"), [("tpe", 1), ("tpe", 2), ("cmaes", 3), ("nsga2", 4)])
def test_trials_are_those_of_optunas_own_loop(tmp_path, logical_devices, algorithm, seed):
    import optuna

    options = {"num_initial_points": 5} if algorithm == "nsga2" else {}
    own = run(oracle(tmp_path, algorithm=algorithm, seed=seed, max_trials=25, **options))
    sampler = {
        "tpe": lambda: optuna.samplers.TPESampler(seed=seed),
        "cmaes": lambda: optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False),
        "nsga2": lambda: optuna.samplers.NSGAIISampler(seed=seed, population_size=5),
    }[algorithm]()
    study = optuna.create_study(sampler=sampler)
    alone = []

    def objective(trial):
        alone.append(suggested(trial))
        return loss(alone[-1])

    study.optimize(objective, n_trials=25)
    assert len(own) == 25
    for one, other in zip(own, alone, strict=True):
        assert same(one, other)
    assert min(map(loss, own)) == pytest.approx(study.best_value)


def test_a_search_goes_on_where_it_was(tmp_path, logical_devices):
    first = oracle(tmp_path, algorithm="tpe", max_trials=20)
    tried = [end(first, first.create_trial("worker")) for _ in range(6)]
    running = first.create_trial("worker")
    asked = len(first.study.trials)
    first.study.ask()  # killed before a trial was made of it
    with (tmp_path / "tuner" / "optuna.journal").open("a") as file:
        file.write('{"op_code":4,"work')  # and while it wrote
    again = oracle(tmp_path, algorithm="tpe", max_trials=20)
    assert again.study.trials[asked].state.name == "FAIL"
    trial = again.create_trial("worker")
    assert (trial.trial_id, dict(trial.hyperparameters.values)) == (running.trial_id, running.hyperparameters.values)
    tried.append(end(again, trial))
    tried += run(again)
    assert len(tried) == 20
    assert len({json.dumps(values) for values in tried}) == 20  # other numbers are drawn than at first
    assert [t.state.name for t in again.study.trials].count("COMPLETE") == 20
    assert {"RUNNING"} & {t.state.name for t in again.study.trials} == set()
    # killed between Optuna and Keras Tuner: told once only
    end(again, running, status="failed", score=None)
    assert [t.state.name for t in again.study.trials].count("COMPLETE") == 20


def test_optuna_is_told_how_trials_ended(tmp_path, logical_devices):
    found = oracle(tmp_path, algorithm="tpe", max_trials=4, max_retries_per_trial=1)
    failed, pruned, too_large, good = (found.create_trial(f"worker-{n}") for n in range(4))
    assert {trial.state.name for trial in found.study.trials} == {"RUNNING"}  # the sampler knows of them
    end(found, failed, status="failed", score=None, metrics={}, cause="ValueError: no")
    assert found.study.trials[0].state.name == "RUNNING"  # it is begun anew
    assert not (tmp_path / "trials.jsonl").exists()
    assert found.create_trial("worker-0").trial_id == failed.trial_id
    end(found, failed, status="failed", score=None, metrics={}, cause="ValueError: no")
    end(found, pruned, status="pruned", cause="others were better")
    end(found, too_large, status="failed", score=None, metrics={}, cause="FailedTrialError: too large")  # for good
    end(found, good)
    assert [trial.state.name for trial in found.study.trials] == ["FAIL", "PRUNED", "FAIL", "COMPLETE"]
    assert [row.status for row in found.rows.rows] == ["failed", "pruned", "failed", "completed"]


def test_several_objectives_are_told_one_by_one(tmp_path, logical_devices):
    found = oracle(tmp_path, BOTH, algorithm="nsga2", max_trials=30, num_initial_points=6)
    tried = run(found, BOTH)
    assert [trial.values for trial in found.study.trials] == [[loss(v), float(v["units"])] for v in tried]
    front = {
        (loss(v), v["units"])
        for v in tried
        if not any(loss(w) <= loss(v) and w["units"] <= v["units"] and w != v for w in tried)
    }
    assert {tuple(trial.values) for trial in found.study.best_trials} == front


@pytest.mark.parametrize("pruning", ["median", "percentile", "halving", "hyperband", "threshold"])
def test_pruners_are_optunas(tmp_path, logical_devices, pruning):
    import optuna

    from tfaccel.tuning.optuna_oracle import epoch_pruner

    options = {"algorithm": "tpe", "max_trials": 12, "pruning": pruning}
    if pruning == "threshold":
        options["pruning_options"] = {"upper": 5.0}
    found, causes = oracle(tmp_path, **options), []
    for number in range(12):
        trial = found.create_trial("worker")
        prune_cause = epoch_pruner(tmp_path, SearchOptions(**options), LOSS, epochs=9, trial_id=trial.trial_id)
        cause, values = None, []
        for epoch in range(1, 10):
            values.append(float(number) + 1 / epoch)  # each one worse than all before
            cause = prune_cause(values)
            if cause is not None:
                break
        causes.append(cause)
        end(found, trial, status="completed" if cause is None else "pruned", cause=cause)
    assert causes[0] is None
    assert any(causes)
    name = type(found.study.pruner).__name__
    assert name != "NopPruner"
    assert all(cause is None or cause.startswith(f"Optuna's {name} pruned it at epoch ") for cause in causes)
    states = {trial.state for trial in found.study.trials}
    assert states == {optuna.trial.TrialState.PRUNED, optuna.trial.TrialState.COMPLETE}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # of a fit to so few trials
def test_keras_tuner_has_one_thread_and_as_many_random_trials_as_asked_for(tmp_path, logical_devices, monkeypatch):
    from keras_tuner import oracles
    from threadpoolctl import threadpool_info, threadpool_limits

    seen = []
    vectorize = oracles.BayesianOptimizationOracle._vectorize_trials

    def watched(self):
        seen.extend(part["num_threads"] for part in threadpool_info() if part["user_api"] == "blas")
        return vectorize(self)

    monkeypatch.setattr(oracles.BayesianOptimizationOracle, "_vectorize_trials", watched)
    with threadpool_limits(limits=2, user_api="blas"):
        run(oracle(tmp_path, algorithm="bayesian", max_trials=6, num_initial_points=5))
    assert set(seen) == {1}
    assert len(seen) / len([part for part in threadpool_info() if part["user_api"] == "blas"]) == 1  # the last trial


@pytest.mark.slow
def test_a_search_by_optuna(tmp_path, monkeypatch):
    monkeypatch.chdir(search_cases.__file__.rpartition("/")[0])
    options = {
        "algorithm": "tpe",
        "parallel": 2,
        "plan_fields": {"dtype_policy": "mixed_bfloat16"},
        "max_trials": 6,
        "num_initial_points": 2,
    }
    result = search(search_cases.workload, search_cases.end_softly, run_dir=tmp_path / "run", **options)
    assert {row.status for row in result.rows} <= {"completed", "failed"}
    assert result.best is not None
    import optuna

    from tfaccel.tuning.optuna_oracle import STUDY_NAME, open_storage

    study = optuna.load_study(study_name=STUDY_NAME, storage=open_storage(tmp_path / "run"))
    states = {"completed": "COMPLETE", "failed": "FAIL"}
    assert sorted(trial.state.name for trial in study.trials) == sorted(states[row.status] for row in result.rows)
    more = search(
        search_cases.workload,
        search_cases.end_softly,
        run_dir=tmp_path / "run",
        resume="auto",
        **{**options, "max_trials": 7},
    )
    assert more.rows[:6] == result.rows
    assert len(more.rows) == 7


@pytest.mark.slow
def test_a_search_with_pruning_and_one_with_several_objectives(tmp_path, monkeypatch):
    monkeypatch.chdir(search_cases.__file__.rpartition("/")[0])
    options = {"plan_fields": {"dtype_policy": "float32"}, "parallel": 2}
    pruned = search(
        search_cases.workload,
        search_cases.build,
        run_dir=tmp_path / "a",
        algorithm="tpe",
        epochs=6,
        max_trials=14,
        pruning="median",
        objective="val_loss",
        **options,
    )
    assert {row.status for row in pruned.rows} == {"completed", "pruned"}
    assert all(row.epochs < 6 for row in pruned.rows if row.status == "pruned")
    both = search(
        search_cases.workload,
        search_cases.build,
        run_dir=tmp_path / "b",
        algorithm="nsga2",
        max_trials=12,
        num_initial_points=4,
        objective=("val_loss", "size"),
        **options,
    )
    assert 0 < len(both.pareto) < 12
