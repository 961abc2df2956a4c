"""`Session`: what puts a run together explains the same faults wherever it is used, and makes no part too early."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfaccel
from tfaccel import Plan, Workload
from tfaccel.errors import WorkloadError
from tfaccel.training.run.augmentation_place import place_augmentation
from tfaccel.training.run.session import Session
from tfaccel.training.runtime import Runtime
from tfaccel.tuning.options import SearchOptions
from tfaccel.tuning.source import SearchSource
from tfaccel.tuning.trial_maker import TrialMaker, discover

pytestmark = pytest.mark.usefixtures("logical_devices")

PLAN = Plan(strategy="none", devices=("CPU:0",), num_logical_cpus=4, global_batch_size=8)
X = np.ones((16, 3), "float32")
WRONG = r"train_data of workload 'rows' returns inputs of shape \(8, 3\), but the model takes \(None, 2\)\. Change the"


def build_model(width=3):
    return keras.Sequential([keras.Input((width,)), keras.layers.Dense(1)])


def rows(global_batch_size, *, seed=0, epoch=0, augmented=True):
    del seed, epoch, augmented
    return tf.data.Dataset.from_tensor_slices((X, X[:, :1])).batch(global_batch_size, drop_remainder=True)


def workload(width=3, **fields):
    compile_args = lambda: {"optimizer": "sgd", "loss": "mse"}  # noqa: E731
    return Workload("rows", lambda: build_model(width), compile_args, rows, global_batch_size=8, epochs=1, **fields)


@contextlib.contextmanager
def opened(work, **options):
    with Runtime(PLAN, seed=0) as runtime, contextlib.ExitStack() as stack:
        yield stack.enter_context(contextlib.closing(Session(work, PLAN, runtime.strategy, seed=0, **options)))


def test_parts_are_made_when_they_are_used():
    with opened(workload(), epochs=2, planned_epochs=3) as session:
        assert session.num_steps == 6
        assert not {"unbuilt_model", "model", "engine", "validation"} & vars(session).keys()
        assert session.unbuilt_model.optimizer.variables == [session.unbuilt_model.optimizer.iterations,
                                                             session.unbuilt_model.optimizer.learning_rate]  # fmt: skip
        assert session.engine.model is session.model is session.unbuilt_model
        assert len(session.train([]).history["loss"]) == 2


def search_for_metrics(work):
    def build(hp):
        model = build_model(2)
        model.compile("sgd", "mse")
        return model

    discover(TrialMaker.of(SearchSource.of(work, build), SearchOptions(), {}))


@pytest.mark.parametrize(
    "use",
    [
        lambda work: place_augmentation(work, PLAN, window_seconds=0.01),
        search_for_metrics,
        lambda work: tfaccel.find_learning_rate(work, plan=PLAN),
    ],
    ids=["augmentation", "search", "learning rate"],
)
def test_batches_that_the_model_does_not_take_are_explained_everywhere(use):
    with pytest.raises(WorkloadError, match=WRONG):
        use(workload(2, augment=lambda batch: batch))


def test_validation_data_are_checked_for_every_run():
    def wrong(global_batch_size):
        return rows(global_batch_size).map(lambda x, y: (x[:, :2], y))

    message = r"^validation_data of workload 'rows' returns inputs of shape \(8, 2\)"
    with opened(workload(validation_data=wrong)) as session, pytest.raises(WorkloadError, match=message):
        session.train([])
