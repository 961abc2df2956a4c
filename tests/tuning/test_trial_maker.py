"""The models of a search's trials follow the trial's plan, as those of `train` do."""

import keras
import numpy as np
import pytest

from tfaccel import Workload
from tfaccel.errors import WorkloadError
from tfaccel.planning.plan import Plan
from tfaccel.training.steps.batch_statistics import synchronized_layers
from tfaccel.tuning.options import SearchOptions
from tfaccel.tuning.source import SearchSource
from tfaccel.tuning.trial_maker import TrialMaker

pytestmark = pytest.mark.usefixtures("logical_devices")


class OwnFit(keras.Sequential):
    def fit(self, x, y=None, **kwargs):
        return super().fit(0.01 * x, y, **kwargs)


def build(hp, kind=keras.Sequential):
    del hp
    model = kind([keras.Input((1,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def build_own_fit(hp):
    return build(hp, OwnFit)


def made(space, **fields):
    x = np.ones((8, 1), "float32")
    work = Workload.of(lambda: build(None), x, x, optimizer="sgd", loss="mse", batch_size=8, epochs=1)
    maker = TrialMaker.of(SearchSource.of(work, space), SearchOptions(), {})
    plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=8, **fields)
    return maker.model(space(None), work, plan, num_steps=1)


def test_a_trials_model_is_compiled_as_its_plan_says():
    for synchronizes in (True, False):
        model = made(build, synchronize_batch_norm=synchronizes, accumulation_steps=2)
        assert [type(one).__name__ for one in synchronized_layers(model)] == ["BatchNormalization"] * synchronizes
        assert model.optimizer.gradient_accumulation_steps == 2


def test_a_model_whose_own_fit_a_search_would_pass_by_is_refused():
    with pytest.raises(WorkloadError, match=r"The space .*build_own_fit returns a OwnFit, which overrides fit"):
        made(build_own_fit)
