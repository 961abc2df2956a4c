"""Options of a search that are refused: wrong values, options that exclude each other, missing packages."""

import pytest

from tfaccel.errors import SearchError
from tfaccel.tuning.options import SearchOptions
from tfaccel.tuning.search import _checked


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "tpee"}, "must be one of .*tpe, cmaes, nsga2.*Did you mean 'tpe'"),
        ({"pruning": "percentile"}, "pruning='percentile' needs one of Optuna's .*Received: algorithm='random'"),
        ({"pruning_options": {"upper": 1.0}}, "pruning_options needs one of Optuna's algorithms"),
        ({"algorithm": "cmaes", "objective": ("a:min", "b:min")}, "CMA-ES optimizes a single objective"),
        ({"algorithm": "nsga2", "objective": "a:min,b:min", "pruning": "median"}, "Optuna prunes .* single objective"),
        ({"num_initial_points": 3}, "algorithm='random' does not use num_initial_points"),
        ({"num_initial_points": 0, "algorithm": "tpe"}, "`num_initial_points` must be a whole number of at least 1"),
        ({"algorithm_options": {"beta": 1.0}}, "takes these algorithm_options: none. Received: beta=1.0"),
        ({"algorithm": "hyperband", "algorithm_options": {"factor": 1}}, r"factor \(at least 2\), hyperband_iter"),
        ({"tune_new_entries": False}, "tune_new_entries=False needs hyperparameters"),
        ({"hyperparameters": 3}, "hyperparameters must be a keras_tuner.HyperParameters. Received: 3"),
        ({"objective": 5}, "An objective is the name of a metric, .* a keras_tuner.Objective.*Received: 5"),
        ({"executions_per_trial": 0}, "`executions_per_trial` must be a whole number of at least 1. Received"),
        ({"max_retries_per_trial": -1}, "`max_retries_per_trial` must be a whole number of at least 0. Received"),
        ({"keep_models": 1}, "`keep_models` must be True or False"),
        ({"max_epochs": 3}, "A search has no option 'max_epochs'. Use epochs"),
        ({"distribution_strategy": None}, "Use plan_fields="),
        ({"overwrite": True}, "Use a new run_dir, or resume='auto'"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(SearchError, match=message):
        SearchOptions.of(options)


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setattr("tfaccel.tuning.options.find_spec", lambda name: None)
    with pytest.raises(SearchError, match=r"algorithm='tpe' needs optuna, .*Run: pip install 'tfaccel\[optuna\]'\."):
        SearchOptions(algorithm="tpe")
    with pytest.raises(SearchError, match=r"algorithm='cmaes' needs optuna and cmaes"):
        SearchOptions(algorithm="cmaes")


def test_cma_es_needs_numbers(logical_devices):
    import keras_tuner

    hp = keras_tuner.HyperParameters()
    hp.Float("rate", 0.1, 1.0)
    hp.Choice("kind", ["a", "b"])
    found = {"space": hp.get_config(), "metrics": ["val_loss"]}
    with pytest.raises(SearchError, match=r"CMA-ES needs at least two .* Received: rate\. Use algorithm="):
        _checked(found, SearchOptions(algorithm="cmaes"))
    hp.Int("units", 1, 9)
    assert _checked({**found, "space": hp.get_config()}, SearchOptions(algorithm="cmaes")).name == "val_loss"


def test_arguments_that_optuna_does_not_take_are_refused(logical_devices):
    from tfaccel.tuning.optuna_oracle import make_pruner, make_sampler

    with pytest.raises(SearchError, match=r"Optuna's TPESampler cannot be created with .*algorithm_options.*gama"):
        make_sampler(SearchOptions(algorithm="tpe", algorithm_options={"gama": 3}))
    with pytest.raises(SearchError, match=r"Optuna's ThresholdPruner cannot be created with .*pruning_options"):
        make_pruner(SearchOptions(algorithm="tpe", pruning="threshold"), epochs=3)
