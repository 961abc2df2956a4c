"""Embedding tables in main memory: the results of tables on the device, with only the rows of a batch on their way."""

import math
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from test_row_updates import BATCH, IDS, LAZY, OPTIMIZERS, SIZE, OwnStep, Y, assert_same

import tfaccel
from tfaccel.costs.private_graphs import sent_tensors
from tfaccel.errors import DataError, PlanError
from tfaccel.training.fit import plan_of_model

pytestmark = pytest.mark.usefixtures("logical_devices")

ROWS = 50
HOST = {"embedding_updates": "rows", "embeddings_on": "host"}
ONE, TWO = ("CPU:1",), ("CPU:1", "CPU:2")


def strategy_of(devices):
    if not devices:
        return tf.distribute.get_strategy()
    return tf.distribute.OneDeviceStrategy(*devices) if len(devices) == 1 else tf.distribute.MirroredStrategy(devices)


def built(make_optimizer, devices=(), *, kind=keras.Model, policy="float32", built_optimizer=False, **table):
    """A model with a table that two inputs share, a frozen one and one of its own."""
    keras.utils.set_random_seed(3)
    with strategy_of(devices).scope():
        ids = keras.Input((3,), dtype="int32")
        shared = keras.layers.Embedding(ROWS, SIZE, dtype=policy, name="shared", **table)
        first, second = shared(ids[:, :2]), shared(ids[:, 2:])
        frozen = keras.layers.Embedding(ROWS, SIZE, trainable=False, name="frozen")(ids[:, :1])
        joined = keras.layers.Concatenate(axis=1, dtype="float32")([first, second, frozen])
        model = kind(ids, keras.layers.Dense(1)(keras.layers.Flatten()(joined)))
        model.compile(make_optimizer(), keras.losses.BinaryCrossentropy(from_logits=True))
        if built_optimizer:
            model.optimizer.build(model.trainable_variables)
    return model


def get_variables(model):
    return [np.asarray(value) for value in [*model.weights, *model.optimizer.variables]]


def trained(model, **fields):
    """Weights, slots and predictions, and the losses of training and evaluation."""
    plan = plan_of_model(model, batch_size=BATCH, **(fields or {"sum_duplicate_indices": True}))
    losses = tfaccel.fit(model, IDS, Y, batch_size=BATCH, epochs=2, verbose=0, shuffle=False, plan=plan)
    loss = tfaccel.evaluate(model, IDS, Y, batch_size=BATCH, verbose=0)
    predicted = tfaccel.predict(model, IDS, batch_size=BATCH, verbose=0)
    return [*get_variables(model), predicted], [*losses.history["loss"], loss]


@pytest.mark.parametrize(
    ("devices", "optimizer", "arguments"),
    [
        ((), "Adagrad", {}),
        pytest.param(ONE, "SGD", {"built_optimizer": True}, marks=pytest.mark.slow),
        pytest.param(ONE, "loss scale", {"policy": "mixed_bfloat16"}, marks=pytest.mark.slow),
        pytest.param(ONE, "clipnorm", {"kind": OwnStep}, marks=pytest.mark.slow),
        pytest.param(TWO, "Adagrad", {"built_optimizer": True}, marks=pytest.mark.slow),
        pytest.param(TWO, "schedule", {}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_host_ends_where_summed_dense_updates_do(devices, optimizer, arguments):
    make = OPTIMIZERS[optimizer]
    model = built(make, devices, **arguments)
    expected = trained(built(make, **{key: value for key, value in arguments.items() if key != "built_optimizer"}))
    assert_same(trained(model, **HOST), expected)
    tables = [model.get_layer(name).embeddings for name in ("shared", "frozen")]
    slots = [one for one in model.optimizer.variables if "shared" in one.path]
    assert all(one.value.device.endswith("CPU:0") for one in [*tables, *slots])
    assert not devices or model.layers[-1].kernel.value.device.endswith("CPU:1")


@pytest.mark.slow
def test_lazy_updates_are_those_of_the_device():
    lazy = {"embedding_updates": "rows_lazy"}
    for devices in (ONE, TWO):
        received = trained(built(LAZY["Adam"], devices), **lazy, embeddings_on="host")
        assert_same(received, trained(built(LAZY["Adam"]), **lazy))


def test_only_rows_and_their_gradients_travel():
    """24.6 kB each way for the 192 distinct rows of a batch, of a table of 6.4 MB."""
    with strategy_of(ONE).scope():
        layers = [keras.Input((4,), dtype="int32"), keras.layers.Embedding(50_000, 32, name="table")]
        model = keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(1, name="dense")])
        model.compile("adagrad", "mse")
    ids = np.random.default_rng(0).integers(0, 50_000, (64, 4)).astype("int32")
    ids[:, 1] = ids[:, 0]
    plan = plan_of_model(model, batch_size=64, **HOST)
    sent = sent_tensors(lambda: tfaccel.fit(model, ids, ids[:, :1] / 50_000, batch_size=64, verbose=0, plan=plan))
    of_step = [one for one in sent if one.dtype.is_floating and "/body/" in one.name]
    shapes = {"table/Gather": (len(np.unique(ids)), 32), "while/UnsortedSegmentSum": (len(np.unique(ids)), 32)}
    shapes |= {"while/GatherV2_1": (64, 1), "Cast/ReadVariableOp": ()}  # labels and learning rate
    num_bytes = {"CPU:0": 0, "CPU:1": 0}
    for one in of_step:
        *_, scope, name = one.name.split("/")
        if name != "NoOp":
            num_bytes[one.source] += 4 * math.prod(shapes.pop(f"{re.sub('_[0-9]+', '', scope)}/{name}"))
    assert num_bytes == {"CPU:0": 192 * 32 * 4 + 64 * 4, "CPU:1": 192 * 32 * 4 + 4}
    assert not shapes


@pytest.mark.parametrize("devices", [pytest.param(ONE, marks=pytest.mark.slow), TWO], ids=str)
@pytest.mark.parametrize("build_on", [pytest.param("in build_model", marks=pytest.mark.slow), "at the first batch"])
def test_train_creates_tables_on_the_host(devices, build_on, tmp_path):
    def build_model():
        inputs = [keras.Input((3,), dtype="int32")] if build_on == "in build_model" else []
        layers = [keras.layers.Embedding(ROWS, SIZE), keras.layers.Flatten(), keras.layers.Dense(1)]
        return keras.Sequential([*inputs, *layers])

    def result(name, strategy, devices, **fields):
        seen = []
        plan = tfaccel.Plan(strategy=strategy, devices=devices, num_logical_cpus=4, global_batch_size=BATCH, **fields)
        callback = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: seen.append(callback.model.layers[0].embeddings.value.device[-5:])
        )
        found = tfaccel.train(
            build_model,
            IDS,
            Y,
            plan=plan,
            optimizer="adagrad",
            loss="mse",
            batch_size=BATCH,
            epochs=2,
            verbose=0,
            callbacks=[callback],
            run_dir=tmp_path / name,
        )
        return found.history["loss"], seen[-1]

    expected, _ = result("plain", "none", ("CPU:0",), sum_duplicate_indices=True)
    strategy = "one_device" if len(devices) == 1 else "mirrored"
    received, device = result("host", strategy, devices, **HOST)
    assert received == pytest.approx(expected, abs=1e-6)
    assert device == "CPU:0"


@pytest.mark.slow
def test_a_run_goes_on_elsewhere(tmp_path):
    """Halfway on the host, then on the device, and the other way round."""
    expected = None
    for first, second in ((HOST, {"embedding_updates": "rows"}), ({"embedding_updates": "rows"}, HOST), (HOST, HOST)):
        for devices, fields, epochs in ((ONE, first, 1), (TWO, second, 2)):
            model = built(OPTIMIZERS["Adagrad"], devices)
            plan = plan_of_model(model, batch_size=BATCH, **fields)
            resume = tfaccel.Resume(tmp_path / f"{first}{second}")
            tfaccel.fit(model, IDS, Y, batch_size=BATCH, epochs=epochs, verbose=0, callbacks=[resume], plan=plan)
        expected = expected or get_variables(model)
        for one, other in zip(get_variables(model), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"embeddings_regularizer": "l2"}, "layer 'shared' with a regularizer, which needs the whole table"),
        ({"embeddings_constraint": "non_neg"}, "layer 'shared' with a constraint, which needs the whole table"),
        ({"lora_rank": 2}, "layer 'shared' with LoRA, which needs the whole table"),
    ],
)
def test_layers_that_need_the_whole_table_are_refused(table, message):
    with pytest.raises(PlanError, match=message):
        trained(built(OPTIMIZERS["SGD"], **table), **HOST)


class Tied(keras.Model):
    """Uses its table for the logits, too."""

    def __init__(self):
        super().__init__()
        self.table = keras.layers.Embedding(ROWS, SIZE)

    def call(self, inputs):
        rows = keras.ops.mean(self.table(inputs), axis=1)
        return keras.ops.matmul(rows, keras.ops.transpose(self.table.embeddings))


def test_a_table_that_is_used_as_a_whole_is_refused():
    model = Tied()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    plan = plan_of_model(model, batch_size=BATCH, **HOST)
    with pytest.raises(PlanError, match=r"Received: .*embeddings, which the model also uses as a whole"):
        tfaccel.fit(model, IDS, Y[:, 0], batch_size=BATCH, verbose=0, plan=plan)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ragged", "sparse"])
def test_ragged_and_sparse_ids_are_looked_up(kind):
    def model(devices):
        keras.utils.set_random_seed(3)
        with strategy_of(devices).scope():
            ids = keras.Input((None if kind == "ragged" else 3,), dtype="int32", **{kind: True})
            sums = keras.layers.Lambda(lambda rows: tf.reduce_sum(rows, axis=1), output_shape=(SIZE,))
            rows = keras.layers.Embedding(ROWS, SIZE)(ids)
            model = keras.Model(ids, keras.layers.Dense(1)(sums(rows)))
            model.compile(OPTIMIZERS["Adagrad"](), "mse")
        return model

    def result(devices, **fields):
        made = model(devices)
        plan = plan_of_model(made, batch_size=BATCH, **fields)
        tfaccel.fit(made, ids, Y, batch_size=BATCH, verbose=0, shuffle=False, plan=plan)
        loss = tfaccel.evaluate(made, ids, Y, batch_size=BATCH, verbose=0)
        return [*get_variables(made), tfaccel.predict(made, ids, batch_size=BATCH, verbose=0)], [loss]

    ragged = tf.RaggedTensor.from_row_lengths(IDS.reshape(-1), np.tile([1, 5], len(IDS) // 2))
    ids = ragged if kind == "ragged" else tf.sparse.from_dense(np.abs(IDS))
    assert_same(result(TWO, **HOST), result((), sum_duplicate_indices=True))


@pytest.mark.parametrize("built_optimizer", [False, True])
def test_a_table_without_weight_decay_is_known_on_the_host(built_optimizer):
    def result(devices, **fields):
        model = built(OPTIMIZERS["SGD"], devices)
        with model.distribute_strategy.scope():
            optimizer = keras.optimizers.Adagrad(0.5, weight_decay=0.1)
            optimizer.exclude_from_weight_decay(var_list=[model.get_layer("shared").embeddings])
            model.compile(optimizer, keras.losses.BinaryCrossentropy(from_logits=True))
            if built_optimizer:
                optimizer.build(model.trainable_variables)
        return trained(model, **fields)

    assert_same(result(ONE, **HOST), result(()))


def test_xla_stays_off_where_tables_are_on_the_host(caplog):
    model = built(OPTIMIZERS["SGD"], ONE)
    expected = trained(model, **HOST)[1][-1]
    with model.distribute_strategy.scope():
        model.compile("sgd", keras.losses.BinaryCrossentropy(from_logits=True), jit_compile=True)
    assert tfaccel.evaluate(model, IDS, Y, batch_size=BATCH, verbose=0) == pytest.approx(expected)
    assert "XLA stays off: it cannot look up rows" in caplog.text


def test_id_beyond_the_table_is_named():
    model = built(OPTIMIZERS["SGD"], ONE)
    plan = plan_of_model(model, batch_size=BATCH, **HOST)
    with pytest.raises(DataError, match=r"Received: id 60, for a table of 50 rows, whose ids are 0 to 49"):
        tfaccel.fit(model, np.full_like(IDS, 60), Y, batch_size=BATCH, verbose=0, plan=plan)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"embedding_updates": "keras"},
            "where only the rows of a batch are updated. Received: embedding_updates='keras'",
        ),
        ({"jit_compile": True}, "XLA cannot look up rows in another memory than that of its device"),
    ],
)
def test_contradicting_fields_are_refused(fields, message):
    with pytest.raises(PlanError, match=message):
        tfaccel.Plan(strategy="none", devices=("CPU:0",), global_batch_size=8, **{**HOST, **fields})
