"""`Resume`: the callback with which a script that calls `tfaccel.fit` continues after any interruption."""

from __future__ import annotations

import os
from typing import Any

import keras

from tfaccel.argument_types import checks_types
from tfaccel.errors import RunDirError, WorkloadError
from tfaccel.known_names import did_you_mean, suggests_names
from tfaccel.local_path import local_path
from tfaccel.planning.option_checks import check_counts

EXACT, REPLAY, RESTART = DATA_MODES = ("exact", "replay", "restart")
STATE_MODES = (EXACT, RESTART)

_ELSEWHERE = (
    "tfaccel.Resume works with tfaccel.fit(model, ..., callbacks=[...]), which knows what Model.fit hides: where it "
    "is in the data. Call tfaccel.fit; tfaccel.train needs no such callback, since it saves checkpoints in "
    "its run_dir."
)


@suggests_names
@checks_types(WorkloadError)
class Resume(keras.callbacks.Callback):
    """Saves the training state of `tfaccel.fit`, and continues from it when the script is started again.

    After a crash, SIGKILL or a power failure, in the middle of an epoch too, the same script ends with the same
    weights, to the last bit, and the same history as without the interruption. Saved are weights, optimizer, seeds,
    metrics, history, the numbers of the other callbacks (best value, patience) and the position in the data. When
    training is complete, `fit` restores its result and returns at once, so that the script can be repeated as a whole.

    SIGTERM and Ctrl-C stop training after the steps in progress, with a checkpoint; a script that does not catch
    `RunStopped` ends with status 138. Checkpoints are written in a thread. With several workers, the chief writes.

    Use a directory of its own for each call of `fit`, as for the two phases of fine-tuning. Build the model and the
    data alike in each start; a directory with the state of another model, batch size or data is refused, with what
    differs.

    Args:
        directory: for the checkpoints; created if it does not exist.
        save_freq: "epoch" for a checkpoint after each epoch (or after several if epochs are so short that saving would
            take more than 2 % of the time), or a number of batches between checkpoints.
        keep: number of the newest checkpoints to keep.
        data: how the data continue. "exact": the same batches as without an interruption, or an error before training
            if that is not certain. "replay": you know that the data yield the same batches in each start, for example
            a generator with a seed of its own: batches before the position are read again. "restart": the rest of an
            interrupted epoch begins anew with the data, so some examples are repeated or left out.
        state: what the training step keeps that no checkpoint holds: that of `tf.random.normal` and the like (the state
            of `keras.random` is saved), variables that the model does not track, Python code. "exact": an error before
            the first step. "restart": it begins anew, so results differ from those without an interruption.

    Raises:
        RunDirError: by `fit`, if the directory holds something else, is in use by another process, or cannot be
            written.
        DataError: by `fit`, before training, if the data cannot be resumed exactly; the message offers the choice.
        WorkloadError: by `fit`, before the first step, if the step cannot be resumed exactly, or if the model or this
            object has already been through a call of `fit` with the directory.
        RunStopped: by `fit`, after SIGTERM.
        WorkloadError: for invalid arguments.

    Example:

    >>> import tempfile, keras, numpy as np, tfaccel
    >>> x = np.ones((64, 4))
    >>> def script(folder):
    ...     model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    ...     model.compile("sgd", "mse")
    ...     resume = tfaccel.Resume(folder, save_freq=1)
    ...     return tfaccel.fit(model, x, x[:, :1], epochs=3, callbacks=[resume], verbose=0).history
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     history = script(folder)
    ...     again = script(folder)  # nothing left to do
    >>> again == history
    True
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        save_freq: str | int = "epoch",
        *,
        keep: int = 2,
        data: str = EXACT,
        state: str = EXACT,
    ) -> None:
        super().__init__()
        if not isinstance(directory, str | os.PathLike) or not os.fspath(directory):
            raise WorkloadError(f"`directory` must be the path of a directory. Received: directory={directory!r}.")
        if save_freq != "epoch":
            if isinstance(save_freq, str):
                raise WorkloadError(
                    f'`save_freq` must be "epoch" or a number of batches. Received: save_freq={save_freq!r}.'
                    f"{did_you_mean(save_freq, ('epoch',))}"
                )
            check_counts(save_freq=save_freq)
        check_counts(keep=keep)
        if data not in DATA_MODES:
            hint = did_you_mean(data, DATA_MODES) if isinstance(data, str) else ""
            raise WorkloadError(f'`data` must be "exact", "replay" or "restart". Received: data={data!r}.{hint}')
        if state not in STATE_MODES:
            hint = did_you_mean(state, STATE_MODES) if isinstance(state, str) else ""
            raise WorkloadError(f'`state` must be "exact" or "restart". Received: state={state!r}.{hint}')
        self.directory = local_path(directory, RunDirError)
        self.save_freq, self.keep, self.data, self.state = save_freq, keep, data, state

    def on_train_begin(self, logs: Any = None) -> None:
        """Refuses to run within another training loop than `tfaccel.fit`, which does not call it."""
        raise WorkloadError(_ELSEWHERE)


def taken_out(callbacks: Any) -> tuple[Resume | None, list[keras.callbacks.Callback]]:
    """The `Resume` among the callbacks of `fit`, if there is one, and the others.

    Raises:
        WorkloadError: if there are several, or another callback that restores the training state.
    """
    if isinstance(callbacks, keras.callbacks.CallbackList):
        if any(isinstance(one, Resume) for one in callbacks.callbacks):
            raise WorkloadError("tfaccel.Resume must be given in a list of callbacks. Received: a CallbackList.")
        return None, []
    every = [one for one in keras.tree.flatten(callbacks) if one is not None]
    found = [one for one in every if isinstance(one, Resume)]
    others = [one for one in every if not isinstance(one, Resume)]
    if len(found) > 1:
        places = ", ".join(str(one.directory) for one in found)
        raise WorkloadError(f"`fit` takes one tfaccel.Resume. Received: {len(found)}, for {places}.")
    if found and any(isinstance(one, keras.callbacks.BackupAndRestore) for one in others):
        raise WorkloadError(
            "tfaccel.Resume and BackupAndRestore both restore the training state. Leave out BackupAndRestore."
        )
    return (found[0] if found else None), others


def refuse_own_loop(resume: Resume | None, model: keras.Model) -> None:
    """Raises RunDirError if Keras's own loop runs the steps of a model, whose position it hides."""
    if resume is not None:
        raise RunDirError(
            f"{type(model).__name__} overrides make_train_function, so that Keras's own loop trains it, which cannot "
            "continue within its data: tfaccel.Resume is not possible. Override train_step instead."
        )
