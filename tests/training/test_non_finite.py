"""A loss or gradients that are not finite: training stops with the cause, skips the batch, or rolls back."""

import json
import sys
from pathlib import Path

import pytest

from tfaccel.errors import WorkloadError
from tfaccel.planning.option_checks import check_policy
from tfaccel.processes.local_cluster import run_local_cluster
from tfaccel.training.steps.left_out import LeftOutCount

HERE = Path(__file__).parent
CODE = "import sys; from non_finite_program import main; main(*sys.argv[1:])"


def outcomes(run_python, folder, *cases):
    child = run_python(CODE, folder, *cases, cwd=HERE, timeout_seconds=900)
    return json.loads(child.stdout.splitlines()[-1])


@pytest.mark.slow
def test_spoiled_batches_are_skipped_or_stop_the_run(run_python, tmp_path):
    found = outcomes(run_python, tmp_path, "two_replicas", "errors", "own_step")
    is_same, left_out, total, of_good, distance = found["two_replicas"]
    assert is_same
    assert (left_out, total, of_good) == ([3, 3], 6, [0, 0])
    assert distance < 1e-4
    assert found["own_step"] == [True, True, True]
    errors = found["errors"]
    assert errors["input"]["text"].startswith(
        "The loss became NaN or infinite at step 2 of epoch 1. The input of row 13 of the data is not finite. Repair"
    )
    assert errors["input"]["kept"] == ["step_0000000001"]
    assert errors["loss"]["text"].startswith(
        "The loss became NaN or infinite at step 4 of epoch 1. The inputs are finite, but not the loss of row 29 of the"
    )
    for name, step, row in (("gradient", 4, 29), ("last", 7, 55)):
        error = errors[name]
        assert f"A gradient became NaN or infinite at step {step} of epoch 1. It is that of " in error["text"]
        assert (
            f"hidden/kernel, sequential/hidden/bias, sequential/batch_normalization/gamma and 3 more for row {row}"
            in (error["text"])
        )
        assert error["place"] == [1, step]
        assert error["examples"] == [row]
    assert errors["gradient"]["kept"] == ["step_0000000002"]  # the weights are spoiled at step 4
    assert errors["last"]["kept"] == ["step_0000000004", "step_0000000006"]
    assert not any(error["model"] for error in errors.values())
    assert errors["all"]["text"].startswith("All 7 batches of epoch 1 were left out: their loss or gradients")
    assert errors["in a row"]["text"].startswith("10 batches in a row were left out, up to step 10 of epoch 1: their")


@pytest.mark.slow
def test_every_way_to_run_steps_skips_batches(run_python, tmp_path):
    found = outcomes(run_python, tmp_path, "one_device", "combinations", "loss_scale", "fitted")
    assert found["one_device"] == [True, [3, 3], 6, [0, 0]]
    assert found["combinations"] == [True] * 8
    assert found["loss_scale"] == [[0, 0], True, [3, 3], 6, [0, 0]]
    goes_on, stops, skips, has_same_steps = found["fitted"]
    assert goes_on
    assert stops.startswith("The loss became NaN or infinite at step 2 of epoch 1. Try a lower learning rate")
    assert skips
    assert has_same_steps


@pytest.mark.slow
def test_rolled_back_run_is_as_if_the_batches_were_not_in_the_data(run_python, tmp_path):
    is_same, is_resumed, left_out, after_resuming, endless = outcomes(run_python, tmp_path, "rollback")["rollback"]
    assert is_same
    assert is_resumed
    assert left_out == after_resuming == [3, 3]
    assert (
        "10 batches have already been left out of this run, so training stops; earlier checkpoints" in endless["text"]
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_workers_agree_on_batches(tmp_path):
    def of_workers(kind, on_nonfinite):
        found = "from non_finite_program import worker; worker(*sys.argv[1:])"
        code = f"import sys; sys.path.insert(0, {str(HERE)!r}); {found}"
        command = [sys.executable, "-c", code, str(tmp_path / f"{on_nonfinite}-{kind}"), kind, on_nonfinite]
        workers = run_local_cluster(command, num_workers=2, time_limit_seconds=300)
        found = [json.loads(worker.stdout.splitlines()[-1]) for worker in workers]
        assert found[0] == found[1]
        return found[0]

    stopped = of_workers("bad", "stop")
    assert stopped["text"].startswith(
        "The loss became NaN or infinite at step 2 of epoch 1. The input of row 13 of the data is not finite."
    )
    skipped, less = of_workers("bad", "skip"), of_workers("less", "skip")
    assert skipped["left_out"] == [3, 3]
    assert (skipped["weights"], skipped["history"]) == (less["weights"], less["history"])
    rolled_back = of_workers("bad", "rollback")
    assert (rolled_back["weights"], rolled_back["left_out"]) == (of_workers("less", "stop")["weights"], [3])


def test_unknown_policy_is_refused():
    with pytest.raises(WorkloadError, match=r"must be 'stop', 'skip' or 'rollback'. Received: 'skipp'. Did you mean"):
        check_policy("skipp")
    with pytest.raises(WorkloadError, match=r"must be None, 'stop' or 'skip'. Received: 'rollback'"):
        check_policy("rollback", (None, "stop", "skip"))
    with pytest.raises(WorkloadError, match=r"Received: True"):
        check_policy(True)


def test_batches_in_a_row_are_counted_across_windows():
    count = LeftOutCount()
    count.begin_epoch()
    count.add(0, range(9), range(9))
    count.add(0, range(9, 10), [])  # a good step in between
    count.add(0, range(10, 19), range(10, 19))
    assert count.of_epoch == 18
    with pytest.raises(ArithmeticError, match="10 batches in a row were left out, up to step 20 of epoch 1"):
        count.add(0, range(19, 30), [19])
