"""Untested versions log a warning or raise an error that names the tested versions."""

import types

import keras
import pytest
import tensorflow as tf

from tfaccel import tested_versions
from tfaccel.errors import PlanError, VersionError
from tfaccel.training.private import private_api
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.steps.windows import needs_each_batch

pytestmark = pytest.mark.usefixtures("logical_devices")


@pytest.fixture
def versions_not_yet_checked():
    tested_versions.warn_if_untested.cache_clear()
    yield
    tested_versions.warn_if_untested.cache_clear()


@pytest.mark.usefixtures("versions_not_yet_checked")
def test_tested_versions_are_not_warned_of():
    private_api.check_versions()


@pytest.mark.usefixtures("versions_not_yet_checked")
@pytest.mark.parametrize(("module", "version"), [(keras, "3.99.1"), (tf, "2.98.0")])
def test_untested_version_is_warned_of_once(monkeypatch, module, version):
    monkeypatch.setattr(module, "__version__", version)
    with pytest.warns(UserWarning, match=rf"was tested with {module.__name__} .*; {version} is installed") as caught:
        private_api.check_versions()
        private_api.check_versions()
    assert len(caught) == 1
    assert f"install {module.__name__}==" in str(caught[0].message)


def test_missing_part_names_the_version_that_has_it():
    with pytest.raises(
        VersionError, match=rf"keras {keras.__version__} has no `_symbolic_build`.*pip install 'keras=="
    ):
        tested_versions.private_part(types.SimpleNamespace(), "_symbolic_build")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (tf.distribute.ParameterServerStrategy, r"ParameterServerStrategy.*under MultiWorkerMirroredStrategy instead"),
        (tf.distribute.experimental.CentralStorageStrategy, r"CentralStorageStrategy.*under MirroredStrategy instead"),
    ],
)
def test_unsupported_strategies_are_refused(kind, text):
    with pytest.raises(PlanError, match=text):
        Replicas(object.__new__(kind))


class OwnCheckpoint(keras.callbacks.ModelCheckpoint):
    def on_train_batch_end(self, batch, logs=None):
        pass


class OwnWindows(keras.callbacks.Callback):
    tfaccel_windows = True

    def on_train_batch_end(self, batch, logs=None):
        pass


@pytest.mark.parametrize(
    ("callback", "train", "test"),
    [
        (keras.callbacks.History(), False, False),
        (keras.callbacks.ProgbarLogger(), False, False),
        (keras.callbacks.EarlyStopping(), False, False),
        (keras.callbacks.TerminateOnNaN(), True, False),
        (keras.callbacks.ModelCheckpoint("a.keras"), False, False),
        (keras.callbacks.ModelCheckpoint("a.keras", save_freq=3), True, False),
        (keras.callbacks.BackupAndRestore("a"), False, False),
        (keras.callbacks.BackupAndRestore("a", save_freq=3), True, False),
        (keras.callbacks.TensorBoard("a"), False, False),
        (keras.callbacks.TensorBoard("a", update_freq=2), True, True),
        (keras.callbacks.TensorBoard("a", profile_batch=(2, 3)), True, False),
        (keras.callbacks.LambdaCallback(on_epoch_end=print), False, False),
        (keras.callbacks.LambdaCallback(on_train_batch_end=print), True, False),
        (OwnCheckpoint("a.keras"), True, False),
        (OwnWindows(), False, False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_callbacks_that_need_each_batch(callback, train, test):
    assert needs_each_batch(callback, "train") is train
    assert needs_each_batch(callback, "test") is test
