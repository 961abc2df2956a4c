"""KerasHub tasks in `train`: their preprocessor prepares the data as in the task's own `fit`, on replicas too."""

import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

import tfaccel
from tfaccel.errors import DataError, WorkloadError

WORDS = ["the", "film", "was", "good", "bad", "dull"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
NUM_ROWS = 21
models = keras_hub.models


def bert(preprocessor, task, **options):
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 8, "max_sequence_length": 8}
    backbone = models.BertBackbone(vocabulary_size=len(SPECIAL + WORDS), dropout=0.0, **sizes)
    tokenizer = models.BertTokenizer(vocabulary=[*SPECIAL, *WORDS])
    return task(backbone, preprocessor=preprocessor(tokenizer, sequence_length=8), **options)


def text_classifier():
    model = bert(models.BertTextClassifierPreprocessor, models.BertTextClassifier, num_classes=2, dropout=0.0)
    model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def image_classifier():
    converter = keras_hub.layers.ViTImageConverter(image_size=(8, 8), scale=1 / 255.0)
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 8}
    backbone = models.ViTBackbone(image_shape=(8, 8, 3), patch_size=(4, 4), **sizes)
    preprocessor = models.ViTImageClassifierPreprocessor(converter)
    model = models.ViTImageClassifier(backbone, num_classes=3, preprocessor=preprocessor)
    model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def texts():
    rng = np.random.default_rng(0)
    rows = [" ".join(rng.choice(WORDS, size=rng.integers(2, 6))) for _ in range(NUM_ROWS)]
    return np.array(rows), rng.integers(0, 2, NUM_ROWS)


def images():
    rng = np.random.default_rng(0)
    return (255 * rng.random((NUM_ROWS, 10, 12, 3))).astype("float32"), rng.integers(0, 3, NUM_ROWS)


def trained(make, data, folder, *, is_dataset=False, **options):
    """The losses of a task's own `fit`, those of `train`, and how far the weights are apart."""
    keras.utils.set_random_seed(1)
    plain, task = make(), make()
    for own, other in zip(plain.weights, task.weights, strict=True):
        other.assign(own)
    dataset = tf.data.Dataset.from_tensor_slices(data).batch(8)
    expected = plain.fit(dataset, epochs=2, validation_data=dataset, shuffle=False, verbose=0).history
    given = (dataset,) if is_dataset else data
    how = {"validation_data": dataset if is_dataset else data, "epochs": 2, "verbose": 0, "run_dir": folder}
    how |= {} if is_dataset else {"batch_size": 8, "shuffle": False}
    found = tfaccel.train(task, *given, **how, **options)
    assert {"loss", "val_loss"} <= set(found.history)
    for name in ("loss", "val_loss"):
        np.testing.assert_allclose(found.history[name], expected[name], rtol=1e-5)
    for own, other in zip(plain.get_weights(), task.get_weights(), strict=True):
        np.testing.assert_allclose(own, other, atol=1e-5)
    return task


@pytest.mark.usefixtures("logical_devices")
@pytest.mark.parametrize("is_dataset", [False, True])
def test_texts_are_tokenized(is_dataset, tmp_path):
    task = trained(text_classifier, texts(), tmp_path / "run", is_dataset=is_dataset)
    saved = keras.models.load_model(tmp_path / "run" / "model.keras", compile=False)  # with its vocabulary
    assert np.array_equal(saved.predict(texts()[0][:5], verbose=0), task.predict(texts()[0][:5], verbose=0))


@pytest.mark.usefixtures("logical_devices")
def test_images_are_resized_for_two_replicas(tmp_path):
    trained(image_classifier, images(), tmp_path / "run", devices=2)


@pytest.mark.usefixtures("logical_devices")
def test_a_stopped_run_continues(tmp_path):
    def run(folder, epochs, **how):
        keras.utils.set_random_seed(1)
        task = text_classifier()
        tfaccel.train(task, *texts(), batch_size=8, epochs=epochs, verbose=0, run_dir=folder, **how)
        return task.get_weights()

    whole = run(tmp_path / "whole", 3)
    run(tmp_path / "run", 1)
    for one, other in zip(whole, run(tmp_path / "run", 3, resume="extend"), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.usefixtures("logical_devices")
def test_what_cannot_be_prepared_is_told(tmp_path):
    x, y = texts()
    with pytest.raises(DataError, match=r"BertTextClassifier takes arrays, or a tf.data.Dataset of batches. Rec.*list"):
        tfaccel.train(text_classifier(), x.tolist(), y, epochs=1, run_dir=tmp_path / "run")
    with pytest.raises(DataError, match=r"preprocessor of ViTImageClassifier cannot prepare the data"):
        tfaccel.train(image_classifier(), x, y, epochs=1, run_dir=tmp_path / "run")
    with pytest.raises(
        WorkloadError, match=r"pass the KerasHub task itself instead.*train\(task, x, y, \.\.\.\) prepares"
    ):
        tfaccel.train(image_classifier, *images(), epochs=1, run_dir=tmp_path / "run")
    masked = bert(models.BertMaskedLMPreprocessor, models.BertMaskedLM)
    with pytest.raises(DataError, match=r"The preprocessor of BertMaskedLM draws random numbers, which a resumed run"):
        tfaccel.train(masked, x, epochs=1, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
