"""Plan field `logit_chunks`: the usual loss, gradients and metrics, without the logits of all tokens."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfaccel import Plan, fit
from tfaccel.errors import PlanError
from tfaccel.layers import TokenCrossentropy
from tfaccel.training.fit import plan_of_model
from tfaccel.training.steps.chunked_logits import logits_in_chunks

pytestmark = pytest.mark.usefixtures("logical_devices")

LENGTH, WIDTH, NUM_TOKENS = 6, 8, 20
ROUNDING = 2e-6


def language_model(head="dense", policy="float32"):
    inputs = keras.Input((LENGTH,), dtype="int32")
    if head == "tied":
        table = layers.ReversibleEmbedding(NUM_TOKENS, WIDTH, dtype=policy)
        x = layers.LSTM(WIDTH, return_sequences=True, dtype=policy)(table(inputs))
        return keras.Model(inputs, table(x, reverse=True))
    x = layers.Embedding(NUM_TOKENS, WIDTH, mask_zero=head == "masked", dtype=policy)(inputs)
    x = layers.LSTM(WIDTH, return_sequences=True, dtype=policy)(x)
    if head == "einsum":
        last = layers.EinsumDense("abc,cd->abd", (None, NUM_TOKENS), bias_axes="d", dtype=policy)
    else:
        last = layers.Dense(NUM_TOKENS, "softmax" if head == "softmax" else None, dtype=policy, name="last")
    return keras.Model(inputs, last(x))


def texts(num_rows=24):
    numbers = np.random.default_rng(0)
    x = numbers.integers(0, NUM_TOKENS, (num_rows, LENGTH))
    return x, np.roll(x, -1, 1), numbers.random((num_rows, LENGTH)).astype("float32")


def trained(  # in three steps of SGD
    chunks,
    *,
    head="dense",
    policy="float32",
    loss=None,
    replicas=1,
    xla=False,
    accumulates=None,
    weights=False,
    **other,
):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]) if replicas == 2 else tf.distribute.get_strategy()
    keras.utils.set_random_seed(3)
    are_logits = head != "softmax"
    with strategy.scope():
        model = language_model(head, policy)
        usual = keras.losses.SparseCategoricalCrossentropy(from_logits=are_logits)
        metrics = ["accuracy", keras.metrics.SparseCategoricalCrossentropy(from_logits=are_logits)]
        metrics += [keras.metrics.SparseTopKCategoricalAccuracy(3)] if policy == "float32" else []
        optimizer = keras.optimizers.SGD(0.5, gradient_accumulation_steps=accumulates)
        model.compile(optimizer, loss() if loss else usual, metrics=metrics, jit_compile=xla)
    x, y, sample_weight = texts()
    plan = plan_of_model(model, batch_size=8, logit_chunks=chunks, **other)
    data = {"sample_weight": sample_weight if weights else None, "validation_data": (x[:5], y[:5])}
    history = fit(model, x, y, epochs=1, verbose=0, shuffle=False, plan=plan, **data).history
    return [value[0] for _, value in sorted(history.items())], model.get_weights(), model


def ignores_zero():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)


CASES = {
    "dense": {},
    "tied": {"head": "tied"},
    "softmax": {"head": "softmax"},
    "einsum": {"head": "einsum"},
    "masked": {"head": "masked", "weights": True},
    "ignored": {"loss": ignores_zero},
    "smoothed": {"loss": lambda: TokenCrossentropy(0.1), "weights": True},
    "XLA": {"xla": True},
    "replicas": {"replicas": 2, "head": "masked", "weights": True},
    "replicas and XLA": {"replicas": 2, "xla": True},
    "accumulation": {"accumulates": 2, "head": "masked"},
    "accumulation on replicas": {"accumulates": 2, "replicas": 2, "head": "masked"},
    "kernels": {"fused_kernels": True},
    "rematerialization": {"rematerialization": True},
    "sharded": {"replicas": 2, "optimizer_state": "sharded"},
}


@pytest.mark.parametrize("name", CASES)
def test_training_is_the_same(name):
    history, weights, _ = trained(1, **CASES[name])
    others, in_chunks, _ = trained(5, **CASES[name])  # which does not divide the number of tokens
    np.testing.assert_allclose(others, history, rtol=1e-5)
    for one, other in zip(weights, in_chunks, strict=True):
        np.testing.assert_allclose(other, one, atol=ROUNDING)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_low_precision_is_as_near_to_float32_as_without(policy, fused):
    _, exact, _ = trained(1)
    distances = []
    for chunks in (1, 5):
        _, weights, _ = trained(chunks, policy=policy, fused_kernels=fused)
        distances.append(max(np.abs(a - b).max() for a, b in zip(exact, weights, strict=True)))
    assert distances[1] < 1.5 * distances[0]


def test_no_operation_that_is_needed_holds_the_logits_of_all_tokens():
    model = language_model()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    x, y, _ = texts(8)

    def largest(chunks):
        with logits_in_chunks(model, num_chunks=chunks):
            step = tf.function(model.train_step, autograph=False)
            step = step.get_concrete_function((tf.constant(x), tf.constant(y)))
        needed, waiting = set(), [*(one.op for one in step.outputs), *step.graph.control_outputs]
        while waiting:
            operation = waiting.pop()
            if operation not in needed:
                needed.add(operation)
                waiting += [*(one.op for one in operation.inputs), *operation.control_inputs]
        sizes = [out.shape for one in needed for out in one.outputs if out.shape.rank and out.shape[-1] == NUM_TOKENS]
        return max(shape.num_elements() for shape in sizes if shape.num_elements())

    assert largest(6) == WIDTH * NUM_TOKENS  # of the kernel


def test_the_model_is_saved_and_predicts_as_usual(tmp_path):
    _, _, model = trained(4)
    x, _, _ = texts(4)
    logits = model.predict(x, verbose=0)
    assert logits.shape == (4, LENGTH, NUM_TOKENS)
    assert "call" not in vars(model.get_layer("last"))
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(keras.models.load_model(tmp_path / "model.keras").predict(x, verbose=0), logits)


def test_a_model_in_layers_of_its_own():
    from tfaccel.layers import TransformerLanguageModel

    found = []
    for chunks in (1, 3):
        keras.utils.set_random_seed(0)
        inputs = keras.Input((LENGTH,), dtype="int32")
        writer = TransformerLanguageModel(NUM_TOKENS, max_length=LENGTH, width=WIDTH, num_blocks=1)
        model = keras.Model(inputs, writer(inputs))
        model.compile(keras.optimizers.SGD(0.1), TokenCrossentropy())
        x, y, _ = texts()
        fit(model, x, y, verbose=0, plan=plan_of_model(model, batch_size=8, logit_chunks=chunks))
        found.append(model.get_weights())
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, one, atol=ROUNDING)


def refusal(last, loss="sparse_categorical_crossentropy"):
    model = keras.Sequential([keras.Input((LENGTH,)), layers.Dense(WIDTH), *last], name="mine")
    model.compile("sgd", loss)
    with pytest.raises(PlanError) as caught:
        x = np.ones((8, LENGTH), "float32")
        fit(model, x, x[:, :1] * 0, verbose=0, plan=plan_of_model(model, batch_size=8, logit_chunks=2))
    return str(caught.value)


def test_what_cannot_be_divided_is_refused():
    message = refusal([layers.Dense(NUM_TOKENS), layers.LayerNormalization()])
    assert "model 'mine'" in message
    assert "stands between" in message
    assert message.endswith("Use logit_chunks=1.")
    assert "none of its losses is a sparse categorical cross-entropy" in refusal([layers.Dense(1)], "mse")


@pytest.mark.parametrize(
    "fields",
    [
        {"strategy": "tpu", "devices": ("TPU:0",), "tpu": "local"},
        {"strategy": "none", "devices": ("CPU:0", "CPU:1"), "num_logical_cpus": 2, "pipeline_stages": 2},
    ],
)
def test_stages_and_tpus_are_refused(fields):
    with pytest.raises(PlanError, match="`logit_chunks` is not supported with pipeline stages, nor on TPUs"):
        Plan(**fields, global_batch_size=8, logit_chunks=2)
