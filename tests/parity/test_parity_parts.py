"""What parity cases are made of: data with rows where they matter, references that are right; and cases can fail."""

import pytest

# One child process runs all of these; each prints its name when it holds.
CHECKS = """
import dataclasses
import numpy as np
import keras
from tfaccel.parity import checks, datasets, references
from tfaccel.parity.axes import CHECK_NAMES
from tfaccel.parity.case import ParityCase, Placement
from tfaccel.parity.child import make_strategy
from tfaccel.training.runtime import split_cpu
from tfaccel.parity.compare import difference, largest_difference
from tfaccel.parity.models import MODELS
from tfaccel.parity.references import ADAPTIVE_TOLERANCE, SGD_TOLERANCE, reference_values, tolerance
from tfaccel.parity.run_case import run_case
from tfaccel.parity.share_layers import OneHotEmbedding, ShareBatchNormalization, ShareDropout
from tfaccel.parity.training_run import PLAIN_KERAS, compiled_model
from tfaccel.training.steps.replicas import split_rows

ONE, TWO, THREE = Placement("none"), Placement("mirrored", 2), Placement("mirrored", 3)
split_cpu(2)


def shares_of(num_rows, num_replicas):
    return [stop - start for start, stop in (split_rows(num_rows, r, num_replicas) for r in range(num_replicas))]


def last_batches_leave_a_replica_short_or_empty():
    for placement in (TWO, THREE, Placement("multi_worker", 5)):
        size = datasets.global_batch_size(placement.num_replicas)
        assert size >= 12 and size % placement.num_replicas == 0
        last = {}
        for kind in ("even", "short", "empty"):
            rows = datasets.num_rows(ParityCase(placement, last_batch=kind))
            assert -(-rows // size) == datasets.STEPS_PER_EPOCH
            last[kind] = sorted(shares_of(rows - size * (datasets.STEPS_PER_EPOCH - 1), placement.num_replicas))
        assert last["even"][0] == last["even"][-1]
        assert last["short"][0] == last["short"][-1] - 1
        assert last["empty"] == [0] + [1] * (placement.num_replicas - 1)


def only_the_last_replica_overflows():
    for model in MODELS:
        for placement in (TWO, THREE):
            case = ParityCase(placement, model=model, dtype_policy="mixed_float16")
            data = datasets.arrays(case)
            x = list(data.x.values())[0] if isinstance(data.x, dict) else data.x
            (row,) = np.flatnonzero((x == datasets.MARK).reshape(len(x), -1).any(axis=1))
            step, position = divmod(row, datasets.global_batch_size(placement.num_replicas))
            assert step == datasets.OVERFLOWING_STEP
            start, stop = split_rows(datasets.global_batch_size(placement.num_replicas),
                                     placement.num_replicas - 1, placement.num_replicas)
            assert start <= position < stop
            unmarked = datasets.arrays(dataclasses.replace(case, dtype_policy="mixed_bfloat16")).x
            assert not any((leaf == datasets.MARK).any() for leaf in keras.tree.flatten(unmarked))


def plain_keras_skips_the_overflowing_steps():
    values = reference_values(ParityCase(TWO, dtype_policy="mixed_float16"))
    state = {name: value for name, value in values.items() if "optimizer" in name}
    # Steps 3 and 13 overflow. From 1024 the scale is halved, doubled after 7 finite steps, and halved; 6 steps follow.
    assert state["optimizer's dynamic_scale (3)"] == 512
    assert state["optimizer's step_counter (2)"] == 6
    assert state["optimizer's iteration (4)"] == datasets.NUM_STEPS - datasets.NUM_EPOCHS


def one_share_is_what_keras_does():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(24, 5, 5, 2)).astype("float32"), rng.normal(size=(24, 1)).astype("float32")
    for make in (
        lambda share: ShareBatchNormalization(num_shares=1) if share else keras.layers.BatchNormalization(),
        lambda share: ShareDropout(0.5, seed=3, num_shares=1) if share else keras.layers.Dropout(0.5, seed=3),
    ):
        predictions = []
        for share in (False, True):
            head = keras.layers.Dense(1, kernel_initializer="ones")
            model = keras.Sequential([keras.Input((5, 5, 2)), make(share), keras.layers.Flatten(), head])
            model.compile(keras.optimizers.SGD(0.001), "mse")
            model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
            predictions.append(model.predict(x, verbose=0))
        assert difference(predictions[1], predictions[0]) < 1e-5
        assert difference(predictions[1], np.zeros((24, 1))) > 0.1


def shares_are_treated_by_themselves():
    x = np.concatenate([np.zeros((2, 1, 1, 1)), np.ones((2, 1, 1, 1))]).astype("float32")
    normalized = ShareBatchNormalization(num_shares=2)(x, training=True)
    assert np.all(np.asarray(normalized) == 0)  # each share is equal to its own mean
    dropped = np.asarray(ShareDropout(0.5, seed=3, num_shares=2)(np.ones((8, 64), "float32"), training=True))
    assert len(np.unique(dropped, axis=0)) == 8


def one_hot_embedding_is_an_embedding_with_a_dense_gradient():
    tokens = np.array([[1, 1, 2], [2, 2, 2]])
    weights = np.arange(12.0).reshape(4, 3)
    layers = [keras.layers.Embedding(4, 3), OneHotEmbedding(4, 3)]
    for layer in layers:
        layer.build()
        layer.set_weights([weights])
    assert np.array_equal(layers[0](tokens), layers[1](tokens))
    import tensorflow as tf
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(layers[1](tokens))
    gradient = tape.gradient(total, layers[1].trainable_variables[0].value)
    assert isinstance(gradient, tf.Tensor)
    assert np.array_equal(np.asarray(gradient)[:, 0], [0, 2, 4, 0])


def tolerances_are_constants_in_float32_and_measured_below():
    assert tolerance(ParityCase(TWO)) == SGD_TOLERANCE == 1e-5
    assert tolerance(ParityCase(TWO, optimizer="lamb")) == ADAPTIVE_TOLERANCE == 1e-4
    assert tolerance(ParityCase(TWO, dtype_policy="mixed_float16", computes_in_float32=True)) == SGD_TOLERANCE
    case = ParityCase(TWO, dtype_policy="mixed_bfloat16")
    in_float32 = reference_values(ParityCase(TWO))
    reference = reference_values(case)
    distance, _ = largest_difference(reference, {name: in_float32[name] for name in reference})
    assert tolerance(case) == 2 * distance
    assert 1e-4 < 2 * distance < 2e-2


def rounding_is_measured_over_several_runs():
    case = ParityCase(TWO, dtype_policy="mixed_bfloat16", last_batch="short", weighting="sample_weights")
    data = datasets.arrays(case)
    other = data.in_other_order(datasets.global_batch_size(2), seed=0)
    assert not np.array_equal(data.x, other.x)
    size = datasets.global_batch_size(2)
    for start in range(0, len(data.x), size):
        rows = slice(start, start + size)
        assert sorted(zip(data.x[rows, 0], data.y[rows])) == sorted(zip(other.x[rows, 0], other.y[rows]))
    assert 1e-4 < references.tolerance_over_roundings(case) < 2e-2
    exact = ParityCase(TWO, last_batch="short", weighting="sample_weights")
    assert 0 < references.tolerance_over_roundings(exact) < 1e-5
    # Here the order of rows changes nothing: only moved gradients show how far roundings lie apart.
    case = ParityCase(TWO, "embedding", "lars", dtype_policy="mixed_float16", weighting="masks")
    assert tolerance(case) < references.tolerance_over_roundings(case) < 4 * tolerance(case)


def faults_of_plain_keras_are_found():
    strategy = make_strategy(TWO)
    wrong = {
        "an uneven last batch": ParityCase(TWO, last_batch="short"),
        "sample weights": ParityCase(TWO, "two_outputs", weighting="sample_weights"),
        "clipping": ParityCase(TWO, clipping="global_clipnorm"),
        "moving statistics": ParityCase(TWO, "batch_norm_by_replica"),
        "dropout": ParityCase(TWO, "dropout"),
        "repeated rows": ParityCase(TWO, "embedding_summed", "adam"),
    }
    for fault, case in wrong.items():
        row = run_case(case, strategy, PLAIN_KERAS)
        assert not row.ok, (fault, row)
        assert row.max_abs_diff > 10 * row.tolerance, (fault, row)
    assert run_case(ParityCase(TWO), strategy, PLAIN_KERAS).ok


def every_check_has_its_words():
    assert set(checks.CHECKS) == set(CHECK_NAMES)
    assert all(check.__doc__ for check in checks.CHECKS.values())


def runs_start_from_the_same_weights():
    for name in MODELS:
        case = ParityCase(TWO, name)
        kept = lambda model: {v.path: v.numpy() for v in model.trainable_variables}
        models = [kept(compiled_model(case, reference=r, jit_compile=False)) for r in (True, False)]
        assert largest_difference(*models)[0] == 0, name
        assert all(np.ptp(value) > 0 for value in models[0].values() if value.size > 1), name


for check in [value for value in list(globals().values()) if getattr(value, "__module__", "") == "__main__"]:
    if check is not shares_of:
        check()
        print(check.__name__)
"""

NAMES = [
    line.removeprefix("def ").partition("(")[0]
    for line in CHECKS.splitlines()
    if line.startswith("def ") and not line.startswith("def shares_of")
]


@pytest.mark.slow
def test_parts_hold(run_python):
    assert run_python(CHECKS).stdout.split() == NAMES
    assert len(NAMES) == 11
