"""Updates of the rows of embedding tables: as summed dense updates where that holds, refused by name where not."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfaccel
from tfaccel.errors import DataError, PlanError
from tfaccel.training.fit import plan_of_model

pytestmark = pytest.mark.usefixtures("logical_devices")

ROWS, SIZE, BATCH = 50, 4, 16
RANDOM = np.random.default_rng(0)
IDS = RANDOM.integers(-5, 40, (5 * BATCH, 3)).astype("int32")  # rows 40 to 44 are never looked up
IDS[:, 1] = IDS[:, 0]  # repeated within each batch
Y = RANDOM.integers(0, 2, (5 * BATCH, 1)).astype("float32")
OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.SGD(0.5),
    "Adagrad": lambda: keras.optimizers.Adagrad(0.5),
    "clipnorm": lambda: keras.optimizers.Adagrad(0.5, clipnorm=0.01),
    "clipvalue": lambda: keras.optimizers.SGD(0.5, clipvalue=0.001),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adagrad(0.5)),
    "schedule": lambda: keras.optimizers.Adagrad(keras.optimizers.schedules.CosineDecay(0.5, 5)),
}
LAZY = {
    "Adam": lambda: keras.optimizers.Adam(0.05),
    "Nadam": lambda: keras.optimizers.Nadam(0.05),
    "RMSprop": lambda: keras.optimizers.RMSprop(0.05, centered=True, momentum=0.9),
    "Adadelta": lambda: keras.optimizers.Adadelta(0.5),
    "Adamax": lambda: keras.optimizers.Adamax(0.05),
    "Lion": lambda: keras.optimizers.Lion(0.05),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
}


class OwnStep(keras.Model):
    """Trains in a step of its own."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        weights = self.trainable_weights
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


def built(make_optimizer, *, num_replicas=1, kind=keras.Model, jit_compile=False, policy="float32"):
    """A model with a table that two inputs share, and one of its own."""
    keras.utils.set_random_seed(3)
    devices = [f"CPU:{index}" for index in range(num_replicas)]
    strategy = tf.distribute.MirroredStrategy(devices) if num_replicas > 1 else tf.distribute.get_strategy()
    with strategy.scope():
        ids = keras.Input((3,), dtype="int32")
        shared = keras.layers.Embedding(ROWS, SIZE, dtype=policy, name="shared")
        first, second = shared(ids[:, :2]), shared(ids[:, 2:])
        own = keras.layers.Embedding(ROWS, SIZE, name="own")(ids[:, :1])
        joined = keras.layers.Concatenate(axis=1, dtype="float32")([first, second, own])
        model = kind(ids, keras.layers.Dense(1)(keras.layers.Flatten()(joined)))
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        model.compile(make_optimizer(), loss, jit_compile=jit_compile)
    return model


def trained(make_optimizer, ids=IDS, **arguments):
    """Weights and slots, and the loss of each epoch."""
    fields = {"embedding_updates": arguments.pop("how")} if "how" in arguments else {"sum_duplicate_indices": True}
    model = built(make_optimizer, **arguments)
    plan = plan_of_model(model, batch_size=BATCH, **fields)
    history = tfaccel.fit(model, ids, Y, batch_size=BATCH, epochs=2, verbose=0, shuffle=False, plan=plan)
    return [np.asarray(value) for value in [*model.weights, *model.optimizer.variables]], history.history["loss"]


def assert_same(received, expected, tolerance=1e-6):
    for one, other in zip(received[0], expected[0], strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)
    assert received[1] == pytest.approx(expected[1], abs=1e-6)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("SGD", "Adagrad") else pytest.mark.slow) for name in OPTIMIZERS]
)
def test_rows_end_where_summed_dense_updates_do(name):
    assert_same(trained(OPTIMIZERS[name], how="rows"), trained(OPTIMIZERS[name]))


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_replicas": 2},
        pytest.param({"num_replicas": 4, "kind": OwnStep}, marks=pytest.mark.slow),
        pytest.param({"kind": OwnStep}, marks=pytest.mark.slow),
        pytest.param({"jit_compile": True}, marks=pytest.mark.slow),
        pytest.param({"jit_compile": True, "num_replicas": 2}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_so_they_do_elsewhere(arguments):
    received = trained(OPTIMIZERS["Adagrad"], how="rows", **arguments)
    if arguments.get("num_replicas", 1) > 1 and "kind" in arguments:  # logs of an own step are of one replica
        assert_same((received[0], []), (trained(OPTIMIZERS["Adagrad"])[0], []))
    else:
        assert_same((received[0], received[1]), (trained(OPTIMIZERS["Adagrad"])[0], received[1]))


def test_half_precision_of_a_layer_changes_nothing():
    exact = trained(OPTIMIZERS["Adagrad"], policy="mixed_bfloat16")
    assert_same(trained(OPTIMIZERS["Adagrad"], how="rows", policy="mixed_bfloat16"), exact)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("Adam",) else pytest.mark.slow) for name in LAZY]
)
def test_lazy_updates_are_kerass_where_each_batch_has_all_rows(name):
    ids = np.concatenate([np.stack([RANDOM.permutation(BATCH)] * 3, axis=1) for _ in range(5)]).astype("int32")
    lazy, usual = trained(LAZY[name], ids, how="rows_lazy"), trained(LAZY[name], ids)
    for one, other in zip(lazy[0], usual[0], strict=True):
        rows = BATCH if one.shape == (ROWS, SIZE) else None
        np.testing.assert_allclose(one[:rows] if rows else one, other[:rows] if rows else other, rtol=0, atol=1e-6)


def test_rows_that_no_batch_has_stay_as_they_are():
    before = [np.asarray(weight) for weight in built(LAZY["Adam"]).weights]
    after, _ = trained(LAZY["Adam"], how="rows_lazy")
    for index in range(2):
        np.testing.assert_array_equal(after[index][40:45], before[index][40:45])
        assert not np.array_equal(after[index][:40], before[index][:40])


CLIPPING = [
    {"global_clipnorm": 0.01},
    *(pytest.param(one, marks=pytest.mark.slow) for one in ({"clipnorm": 0.01}, {"clipvalue": 0.001})),
]


@pytest.mark.parametrize("clipping", CLIPPING, ids=str)
def test_clipping_leaves_other_rows_alone(clipping):
    """Keras's `global_clipnorm` makes gradients dense, with which Adam would move every row."""
    before = [np.asarray(weight) for weight in built(LAZY["Adam"]).weights]
    after, _ = trained(lambda: keras.optimizers.Adam(0.05, **clipping), how="rows_lazy")
    np.testing.assert_array_equal(after[0][40:45], before[0][40:45])


def with_tables_left_out():
    optimizer = keras.optimizers.Adagrad(0.5, weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_names=["embeddings"])
    return optimizer


def test_weight_decay_of_other_weights_is_kept():
    assert_same(trained(with_tables_left_out, how="rows"), trained(with_tables_left_out))


@pytest.mark.parametrize(
    ("make", "how", "message"),
    [
        (lambda: keras.optimizers.Adam(), "rows", "its moments decay at each step.* Received: Adam. Use SGD without"),
        (lambda: keras.optimizers.RMSprop(), "rows", "its moments decay at each step.* Received: RMSprop"),
        (lambda: keras.optimizers.SGD(momentum=0.9), "rows", "momentum moves rows that are not in the batch"),
        (lambda: keras.optimizers.Adagrad(global_clipnorm=1.0), "rows", "global_clipnorm sums the gradients"),
        (lambda: keras.optimizers.Adagrad(weight_decay=0.1), "rows", "weight decay changes every row of a table"),
        (lambda: keras.optimizers.Adam(use_ema=True), "rows_lazy", r"the moving average of the weights \(use_ema\)"),
        (lambda: keras.optimizers.SGD(gradient_accumulation_steps=2), "rows", "accumulated|whole tables"),
        (lambda: keras.optimizers.Lamb(), "rows_lazy", "is for optimizers that update each weight by itself"),
        (lambda: type("Mine", (keras.optimizers.SGD,), {})(), "rows", "Received: Mine. Use one of SGD, Adagrad"),
    ],
)
def test_what_would_not_be_keras_is_refused(make, how, message):
    with pytest.raises(PlanError, match=message):
        trained(make, how=how)


def test_layers_are_refused_by_name():
    class Doubled(keras.layers.Embedding):
        def call(self, inputs):
            return 2 * super().call(inputs)

    for layer, message in (
        (Doubled(ROWS, SIZE, name="mine"), r"layer 'mine' of Doubled, which has a `call` of its own"),
        (keras.layers.Dense(SIZE), r"is for models with keras.layers.Embedding. Received: model '.*', which has none"),
    ):
        model = keras.Sequential([keras.Input((3,), dtype="int32"), layer, keras.layers.Flatten()])
        model.compile("sgd", "mse")
        with pytest.raises(PlanError, match=message):
            tfaccel.fit(model, IDS, Y, verbose=0, plan=plan_of_model(model, batch_size=32, embedding_updates="rows"))


class WithSpareTable(keras.Model):
    """Never calls one of its layers."""

    def __init__(self):
        super().__init__()
        self.table, self.spare = keras.layers.Embedding(ROWS, SIZE), keras.layers.Embedding(ROWS, SIZE)

    def build(self, input_shape):
        self.table.build(input_shape)
        self.built = True

    def call(self, inputs):
        return keras.ops.mean(self.table(inputs), axis=(1, 2))[:, None]


def with_lora():
    layers = [keras.Input((3,), dtype="int32"), keras.layers.Embedding(ROWS, SIZE, lora_rank=2), keras.layers.Flatten()]
    return keras.Sequential([*layers, keras.layers.Dense(1)])


@pytest.mark.parametrize("build", [WithSpareTable, with_lora])
def test_tables_that_no_optimizer_updates_are_left_out(build):
    def get_layer_weights(**fields):
        keras.utils.set_random_seed(3)
        model = build()
        model.compile(keras.optimizers.Adagrad(0.5, weight_decay=0.0 if build is WithSpareTable else 0.1), "mse")
        plan = plan_of_model(model, batch_size=BATCH, **fields)
        tfaccel.fit(model, IDS, Y, batch_size=BATCH, verbose=0, shuffle=False, plan=plan)
        return [np.asarray(weight) for weight in model.weights]

    received, expected = get_layer_weights(embedding_updates="rows"), get_layer_weights(sum_duplicate_indices=True)
    for one, other in zip(received, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("how", ["keras", "rows"])
def test_id_beyond_the_table_is_named(how):
    model = built(OPTIMIZERS["SGD"])
    plan = plan_of_model(model, batch_size=BATCH, embedding_updates=how)
    with pytest.raises(DataError, match=r"Received: id 60, for a table of 50 rows, whose ids are 0 to 49"):
        tfaccel.fit(model, np.full_like(IDS, 60), Y, batch_size=BATCH, verbose=0, plan=plan)
