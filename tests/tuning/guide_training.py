"""Fits and tuners of one's own, as in Keras Tuner's guides, written anew for `tfaccel.search`."""

import os

import keras
import keras_tuner
import numpy as np
from guide_cases import CLASSES, SIDE, classifier, regressor
from keras import layers


class TunedShuffle(keras_tuner.HyperModel):
    """A fit that passes on what it gets, and searches an argument of Model.fit."""

    def build(self, hp):
        return classifier(layers.Dense(hp.Int("units", 8, 32, step=8), "relu"))

    def fit(self, hp, model, *args, **kwargs):
        return model.fit(*args, shuffle=hp.Boolean("shuffle"), **kwargs)


class TunedBatch(TunedShuffle):
    """A fit that searches the batch size and the epochs, which a search would give too."""

    def fit(self, hp, model, *args, **kwargs):
        assert isinstance(args[0], np.ndarray)
        assert len(args) == 2
        return model.fit(*args, batch_size=hp.Choice("batch", [8, 16]), epochs=hp.Int("epochs", 2, 3), **kwargs)


class TunedPreprocessing(TunedShuffle):
    """A fit that works on the data."""

    def fit(self, hp, model, x, y, **kwargs):
        if hp.Boolean("normalize"):
            x = layers.Normalization()(x)
        return model.fit(x, y, shuffle=hp.Boolean("shuffle"), **kwargs)


class TunedCrop(keras_tuner.HyperModel):
    """A hyperparameter that build asks for and fit takes up: models with inputs other than the data's."""

    def build(self, hp):
        size = hp.Int("image_size", 4, SIDE)
        inputs = keras.Input((size, size))
        outputs = layers.Dense(CLASSES, activation="softmax")(layers.Flatten()(inputs))
        model = keras.Model(inputs, outputs)
        model.compile("adam", "categorical_crossentropy", metrics=["accuracy"])
        return model

    def fit(self, hp, model, x, y, validation_data=None, **kwargs):
        size = hp.get("image_size")
        if validation_data:
            validation_data = (validation_data[0][:, :size, :size, 0], validation_data[1])
        return model.fit(x[:, :size, :size, 0], y, validation_data=validation_data, **kwargs)


class ReturnsNumber(keras_tuner.HyperModel):
    """A fit that returns the number to keep low."""

    def build(self, hp):
        return regressor(hp, optimizer="adam", loss="mse")

    def fit(self, hp, model, x, y, validation_data, **kwargs):
        model.fit(x, y, **kwargs)
        targets = validation_data[1]
        return np.mean(np.abs(model.predict(validation_data[0], verbose=0) - targets))


class ReturnsDictionary(ReturnsNumber):
    """A fit that returns several metrics."""

    def fit(self, hp, model, x, y, validation_data, **kwargs):
        error = super().fit(hp, model, x, y, validation_data, **kwargs)
        return {"metric_a": -error, "metric_b": error**2}


class OwnLoop(keras_tuner.HyperModel):
    """A model that is not compiled, trained by a loop of its own, which tells the callbacks how it goes."""

    def build(self, hp):
        return regressor(hp)

    def fit(self, hp, model, x, y, validation_data, callbacks=None, **kwargs):
        import tensorflow as tf

        optimizer, loss_fn = (
            keras.optimizers.Adam(hp.Float("rate", 1e-4, 1e-2, sampling="log")),
            keras.losses.mean_squared_error,
        )
        rows = tf.data.Dataset.from_tensor_slices((x, y)).batch(hp.Int("batch_size", 16, 32, step=16))
        held_out = tf.data.Dataset.from_tensor_slices(validation_data).batch(32)
        for callback in callbacks:
            callback.set_model(model)
        best = float("inf")
        for epoch in range(2):
            for inputs, targets in rows:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(loss_fn(targets, model(inputs)))
                gradients = tape.gradient(loss, model.trainable_variables)
                optimizer.apply(gradients, model.trainable_variables)
            losses = [tf.reduce_mean(loss_fn(targets, model(inputs))) for inputs, targets in held_out]
            score = float(tf.reduce_mean(losses))
            for callback in callbacks:
                callback.on_epoch_end(epoch, logs={"my_metric": score})
            best = min(best, score)
        return best


class AnyFunction(keras_tuner.RandomSearch):
    """A search of any function."""

    def run_trial(self, trial, *args, **kwargs):
        x = trial.hyperparameters.Float("x", min_value=-1.0, max_value=1.0)
        return x * x + 1


class CodeApart(keras_tuner.RandomSearch):
    """Keras code that knows nothing of the search."""

    def run_trial(self, trial, **kwargs):
        hp = trial.hyperparameters
        units, optimizer = hp.Int("units", 8, 32, 8), hp.Choice("optimizer", ["adam", "adadelta"])
        model = keras.Sequential([layers.Dense(units, "relu"), layers.Dense(1)])
        model.compile(optimizer=optimizer, loss="mse")
        x = np.random.default_rng(0).random((64, 10))
        model.fit(x, x.sum(axis=1), verbose=0)
        model.save(os.path.join(self.get_trial_dir(trial.trial_id), "mine.keras"))
        return float(np.mean(np.abs(model.predict(x, verbose=0)[:, 0] - x.sum(axis=1))))


class TunedByTuner(keras_tuner.BayesianOptimization):
    """Further hyperparameters for Keras Tuner's own run_trial."""

    def run_trial(self, trial, *args, **kwargs):
        kwargs["batch_size"] = trial.hyperparameters.Int("batch_size", 8, 32, step=8)
        return super().run_trial(trial, *args, **kwargs)


class TellsOracle(keras_tuner.Tuner):
    """A loop that tells the oracle how it goes, and returns nothing."""

    def run_trial(self, trial, x, y):
        model = self.hypermodel.build(trial.hyperparameters)
        for epoch in range(2):
            self.on_epoch_begin(trial, model, epoch)
            loss = model.train_on_batch(x, y, return_dict=True)["loss"]
            self.oracle.update_trial(trial.trial_id, {"loss": loss}, step=epoch)


class NeedsMore(keras_tuner.Tuner):
    """A run_trial with an argument that a search does not have."""

    def run_trial(self, trial, train_ds):
        return 0.0


class OwnEnd(AnyFunction):
    """A Tuner that overrides what a search does itself."""

    def on_trial_end(self, trial):
        super().on_trial_end(trial)
