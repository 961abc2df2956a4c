"""`tfaccel.Resume`: a script that is started again ends, to the last bit, as if it had never been interrupted."""

import json
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest

from tfaccel import Resume
from tfaccel.errors import WorkloadError
from tfaccel.training.fit import fit

HERE = Path(__file__).parent
ALL_PLACES = ("0.1", "1.2", "1.test", "2.end")
KINDS = ("arrays", "unseeded", "executions", "part", "alike", "repeated", "replayed", "batches", "workers")
KINDS = (*KINDS, "hooks", "generator", "mirrored")


def outcomes(run_python, *kinds, places=ALL_PLACES):
    code = f"from resume_program import main\nmain(*{kinds!r}, places={places!r})"
    child = run_python(code, env={"PYTHONPATH": str(HERE)})
    return [json.loads(line) for line in child.stdout.splitlines() if line.startswith("[")]


def check(found, kinds):
    assert [kind for kind, *_ in found] == list(kinds)
    for kind, whole, interrupted, again in found:
        assert interrupted == whole, kind
        assert len(whole[1]) > 2, kind
        assert [len(file.splitlines()) for file in whole[-2:]] == [len(whole[1]) + 1] * 2, kind
        assert again == whole, kind


def test_interrupted_fit_ends_as_an_undisturbed_one(run_python):
    check(outcomes(run_python, "shuffled", places=("1.2",)), ["shuffled"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_data(run_python, kind):
    check(outcomes(run_python, kind), [kind])


def started(folder, kind, *where):
    command = [sys.executable, str(HERE / "resume_program.py"), str(folder), kind, *where]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(child):
    out, errors = child.communicate(timeout=300)
    return child.returncode, out.splitlines()[-1] if out else "", errors


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["arrays", "repeated", "unseeded"])
def test_killed_process_starts_again(tmp_path, kind):
    if kind == "unseeded":  # the order of its data is drawn once, and then kept
        assert ended(started(tmp_path / "a", kind, "0.2"))[0] == -9  # the second checkpoint waits for the first
        subprocess.run(["cp", "-r", str(tmp_path / "a"), str(tmp_path / "b")], check=True)
    status, expected, errors = ended(started(tmp_path / "a", kind))
    assert status == 0, errors
    for where in ("0.3", "2.1", "2.test"):
        assert ended(started(tmp_path / "b", kind, where))[0] == -9
    assert ended(started(tmp_path / "b", kind))[:2] == (0, expected)


@pytest.mark.slow
def test_kills_at_random_moments(tmp_path):
    """Each process is killed some time after its first checkpoint; then the directory ends as if nothing had been."""
    began = time.monotonic()
    status, expected, errors = ended(started(tmp_path / "a", "batches"))
    assert status == 0, errors
    seconds, generator = time.monotonic() - began, random.Random(0)
    for _ in range(8):
        child = started(tmp_path / "b", "batches")
        while not list((tmp_path / "b/checkpoints").glob("step_*")) and child.poll() is None:
            time.sleep(0.02)
        time.sleep(generator.uniform(0, seconds))
        child.kill()
        child.communicate()
    assert ended(started(tmp_path / "b", "batches"))[:2] == (0, expected)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 138), (signal.SIGINT, -2)])
def test_signal_ends_a_script_with_a_checkpoint(tmp_path, number, status):
    command = [sys.executable, "resume_refusals.py", str(tmp_path)]
    child = subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while len(list((tmp_path / "checkpoints").glob("step_*"))) < 2 and child.poll() is None:
        time.sleep(0.05)
    child.send_signal(number)
    _, errors = child.communicate(timeout=120)
    assert child.returncode == status, errors
    newest = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())[-1]
    assert f"the checkpoint is {tmp_path}/checkpoints/{newest}. To continue: start the same script again." in errors


def test_what_cannot_be_resumed_is_refused(run_python):
    child = run_python("from resume_refusals import main\nmain()", env={"PYTHONPATH": str(HERE)})
    said = json.loads(child.stdout.splitlines()[-1])
    exact = "DataError: The data cannot be resumed exactly. "
    for kind, reason in REASONS.items():
        assert said.pop(kind).startswith(exact + reason), kind
    exact = "WorkloadError: The training cannot be resumed exactly. The training step "
    choice = ". Or choose: tfaccel.Resume(..., state='restart') to begin that state anew when training is resumed."
    for kind, reason in STATES.items():
        received = said.pop(f"state: {kind}")
        assert re.sub(r"sequential\w*/noise_1", "LAYER", received).startswith(exact + reason), received
        assert received.endswith(choice), kind
    another = "RunDirError: The run directory FOLDER/whole holds another run: "
    for part, difference in DIFFERENCES.items():
        assert said.pop(part).startswith(another + difference), part
    assert said.pop("in use").startswith("RunDirError: Another run is using the run directory FOLDER/used (process ")
    assert said == OTHERS


REASONS = {
    "unseeded": "The dataset is shuffled without a seed: write `.shuffle(..., seed=NUMBER)`. Or choose: ",
    "random": "The dataset's functions draw random numbers (RandomStandardNormal): use `tf.random.stateless_uniform`",
    "python": "The dataset runs Python code (a generator, `numpy_function` or `py_function`)",
    "generator": "x is a generator or an iterator (generator): pass a PyDataset or arrays",
    "hooks": "HalfBatches defines on_epoch_end, which may change its batches",
    "random batches": "RandomBatches[0] differs when it is read twice",
}
DRAWS = "draws random numbers from a state that no checkpoint holds "
CHANGES = "changes a variable that no checkpoint holds "
STATES = {
    "tf.random": f"{DRAWS}(RandomStandardNormal of LAYER/random_normal): call `keras.random` with a "
    "`keras.random.SeedGenerator` that is an attribute of the layer or model. Or",
    "in a branch": f"{DRAWS}(RandomUniform of LAYER/cond/random_uniform): call",
    "generator": f"{DRAWS}(RngReadAndSkip of LAYER/stateful_uniform): call",
    "loose seed": f"{CHANGES}(seed_generator/seed_generator_state): make it with `add_weight`, or make the seed "
    "generator, layer or metric that it belongs to an attribute of the model. Or",
    "numpy": "runs Python code (PyFunc of LAYER), which may draw random numbers or keep a state: write it with "
    "`keras.ops` or TensorFlow's operations. Or",
    "variable": f"{CHANGES}(count): make it",
    "iterator": "reads from an iterator of its own (IteratorGetNext of LAYER), whose position no checkpoint holds: "
    "pass all data to `fit`. Or",
    "table": "changes a lookup table (LookupTableInsertV2 of LAYER/None_lookup_table_insert), which no checkpoint "
    "holds: fill it before training. Or",
    "traced before": DRAWS,
}
DIFFERENCES = {
    "model": "units of layer 1 (Dense) is 3 there and 5 here.",
    "batch size": "global_batch_size of the data is 8 there and 4 here.",
    "data": "checksum of the data is '",
    "kind": "kind of the data is 'arrays' there and 'tf.data.Dataset' here.",
}
OTHERS = {
    "state: kept": "[] nothing",
    "state: restarted": "nothing",
    "state: saved": "nothing",
    "python replayed": "nothing",
    "random restarted": "nothing",
    "other files": "RunDirError: The run directory FOLDER/other is not empty and holds no run of tfaccel. Choose a new "
    "directory.",
    "again": "True",
    "Model.fit": "WorkloadError: tfaccel.Resume works with tfaccel.fit(model, ..., callbacks=[...]), which knows what "
    "Model.fit hides: where it is in the data. Call tfaccel.fit; tfaccel.train needs no such callback, since it saves "
    "checkpoints in its run_dir.",
    "two": "WorkloadError: `fit` takes one tfaccel.Resume. Received: 2, for FOLDER/new, FOLDER/second.",
    "backup": "WorkloadError: tfaccel.Resume and BackupAndRestore both restore the training state. Leave out "
    "BackupAndRestore.",
    "SIGTERM": "RunStopped: Training was stopped by SIGTERM after step 0; the checkpoint is "
    "FOLDER/stopped/checkpoints/step_0000000000. To continue: start the same script again.",
    "continued": "nothing",
    "broken": "True",
}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"directory": ""}, "`directory` must be the path of a directory. Received: directory=''."),
        (
            {"save_freq": "epochs"},
            "`save_freq` must be \"epoch\" or a number of batches. Received: save_freq='epochs'.",
        ),
        ({"save_freq": 0}, "save_freq=0"),
        ({"keep": 0}, "keep=0"),
        ({"state": "restarted"}, '`state` must be "exact" or "restart". Received: state=\'restarted\'. Did you mean'),
        ({"data": "exakt"}, '`data` must be "exact", "replay" or "restart". Received: data=\'exakt\'. Did you mean'),
    ],
)
def test_invalid_arguments(arguments, message):
    with pytest.raises(WorkloadError, match=re.escape(message)):
        Resume(**{"directory": "runs/script", **arguments})


@pytest.mark.usefixtures("logical_devices")
def test_a_second_call_with_the_same_model_or_callback_is_refused(tmp_path):
    def compiled():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    def phase(model, resume, epochs=2):
        return fit(model, np.ones((8, 2)), np.ones((8, 1)), epochs=epochs, verbose=0, callbacks=[resume]).history

    model, resume = compiled(), Resume(tmp_path / "one")
    history = phase(model, resume)
    for again, epochs in ((resume, 2), (Resume(tmp_path / "one"), 2), (Resume(tmp_path / "one"), 4)):
        with pytest.raises(WorkloadError, match=r"This model has been through a call of `fit`.*train less than asked"):
            phase(model, again, epochs)
    with pytest.raises(WorkloadError, match=r"This tfaccel\.Resume has been through a call"):
        phase(compiled(), resume)
    assert phase(compiled(), Resume(tmp_path / "one")) == history  # as a script that is started again
    phase(model, Resume(tmp_path / "two"))
    assert int(model.optimizer.iterations.numpy()) == 4


@pytest.mark.usefixtures("logical_devices")
def test_batches_that_were_skipped_stay_skipped_and_are_counted_after_an_interruption(tmp_path, caplog):
    x = np.linspace(-1, 1, 40, dtype="float32").reshape(20, 2)
    y = x[:, :1].copy()
    x[5] = np.nan

    class Interrupted(Exception):
        pass

    def stop(batch, logs):
        if batch == 3:
            raise Interrupted

    def script(folder, *others):
        caplog.clear()
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        options = {"batch_size": 4, "epochs": 2, "shuffle": False, "on_nonfinite": "skip", "verbose": 0}
        history = fit(model, x, y, callbacks=[*others, Resume(folder, save_freq=1)], **options).history
        skipped = [text for text in caplog.messages if "batches were left out" in text]
        return history, [weight.numpy().tolist() for weight in model.weights], skipped

    whole = script(tmp_path / "whole")
    with pytest.raises(Interrupted):
        script(tmp_path / "stopped", keras.callbacks.LambdaCallback(on_train_batch_end=stop))
    assert any((tmp_path / "stopped" / "checkpoints").glob("step_*3"))
    history, weights, skipped = script(tmp_path / "stopped")
    assert (history, weights) == whole[:2]
    assert [text.partition(" batches")[0] for text in skipped] == ["Epoch 1: 1 of 5", "Epoch 2: 1 of 5"]


def launched(folder, how):
    """The status, what each worker ended with, and the launcher's lines."""
    program = [sys.executable, str(HERE / "resume_launched_program.py"), str(folder), how]
    launch = [sys.executable, "-m", "tfaccel.scripts.main", "launch", "--num_workers=2", f"--log_dir={folder}/logs"]
    child = subprocess.run([*launch, "--", *program], capture_output=True, text=True, timeout=500, check=False)
    ends = {line.partition("] ended ")[2] for line in child.stdout.splitlines() if "] ended " in line}
    return child.returncode, ends, child.stderr


@pytest.mark.slow
def test_launched_script_ends_as_if_no_worker_had_been_killed(tmp_path):
    status, expected, _ = launched(tmp_path / "well", "well")
    assert (status, len(expected)) == (0, 1)
    status, received, lines = launched(tmp_path / "killed", "killed")
    assert (status, received) == (0, expected), lines
    assert "Worker 1 of 2 was killed by SIGKILL" in lines
    assert "attempt 2" in lines
