"""How long a run is, and who tells `compile_args`."""

import functools

import pytest

from tfaccel.errors import WorkloadError
from tfaccel.planning.plan import Plan
from tfaccel.planning.run_length import compile_arguments, get_run_epochs, num_optimizer_steps
from tfaccel.planning.workload import Workload


def made_up(compile_args=dict, **fields):
    return Workload("made_up", object, compile_args, lambda *a, **k: None, **{"global_batch_size": 32, **fields})


def plan(**fields):
    return Plan(strategy="none", devices=("CPU:0",), **{"global_batch_size": 32, **fields})


def test_epochs_are_those_asked_for_or_recommended():
    assert get_run_epochs(made_up(epochs=7), 3) == 3
    assert get_run_epochs(made_up(epochs=7), None) == 7
    with pytest.raises(WorkloadError, match=r"'made_up' does not say how many epochs it needs. Give epochs \(--epochs"):
        get_run_epochs(made_up(), None)


@pytest.mark.parametrize(
    ("of_workload", "of_plan", "of_run", "steps"),
    [
        ({"num_train_examples": 100, "epochs": 5}, None, {}, 15),
        ({"num_train_examples": 100, "epochs": 5}, {}, {"epochs": 2}, 6),
        ({"num_train_examples": 100}, {"global_batch_size": 10}, {"epochs": 2}, 20),
        ({"num_train_examples": 100}, {"accumulation_steps": 4}, {"epochs": 3}, 9),  # 12 batches of 8 in an epoch
        ({"num_train_examples": 100}, {}, {"epochs": 2, "num_batches": 4}, 8),  # a smaller last batch counts
        ({}, {"accumulation_steps": 2}, {"epochs": 3, "num_batches": 5}, 7),
        ({}, {}, {"epochs": 3}, None),
        ({"num_train_examples": 3}, {}, {}, 1),
    ],
)
def test_optimizer_steps(of_workload, of_plan, of_run, steps):
    of_plan = None if of_plan is None else plan(**of_plan)
    assert num_optimizer_steps(made_up(**of_workload), of_plan, **of_run) == steps


def test_compile_args_gets_the_number_where_it_takes_it():
    class Own:
        def __call__(self, num_steps):
            return {"loss": f"over {num_steps}"}

    for taking in (
        lambda num_steps: {"loss": f"over {num_steps}"},
        lambda *, num_steps: {"loss": f"over {num_steps}"},
        functools.partial(lambda x, num_steps: {"loss": f"over {num_steps}"}, 1),
        Own(),
    ):
        assert compile_arguments(made_up(taking), num_steps=9) == {"loss": "over 9"}
        with pytest.raises(WorkloadError, match="takes num_steps, but the number of batches in an epoch is not known"):
            compile_arguments(made_up(taking), num_steps=None)
    for without in (dict, dict, lambda rate=0.1: {}):
        assert compile_arguments(made_up(without), num_steps=9) == {}
        assert compile_arguments(made_up(without), num_steps=None) == {}


def test_what_is_not_a_dict_is_refused():
    with pytest.raises(
        WorkloadError, match=r"compile_args of workload 'made_up' must return a dict .*Received: 'adam'"
    ):
        compile_arguments(made_up(lambda: "adam"), num_steps=1)
