"""Attention by cuDNN's flash kernel under XLA. No GPU is needed: its call is looked at, and its place taken."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfaccel.training.kernels import flash_attention as flash
from tfaccel.training.kernels.fused_kernels import kernels_in_xla

BATCH, LENGTH, HEADS, SIZE = 2, 8, 2, 16


@pytest.fixture
def rows():
    random = np.random.default_rng(0)
    return [tf.constant(random.normal(size=(BATCH, LENGTH, HEADS, SIZE)), tf.bfloat16) for _ in range(4)]


def plain(query, key, value, *, scale, is_causal=False):
    return keras.ops.dot_product_attention(query, key, value, scale=scale, is_causal=is_causal)


@pytest.mark.parametrize("is_causal", [False, True])
def test_xla_is_asked_for_the_kernel_in_its_layouts(monkeypatch, rows, is_causal):
    from tensorflow.compiler.tf2xla.python import xla

    def for_cpus(module, operands, results):
        shapes, dtypes = [one.shape for one in results], [one.dtype for one in results]
        return list(xla.call_module(operands, version=5, module=module, Sout=shapes, Tout=dtypes, platforms=("CPU",)))

    monkeypatch.setattr(flash, "xla_module", for_cpus)
    both_ways = tf.function(
        lambda *given: flash.attention_and_gradients(*given, is_causal=is_causal, is_flash=True), jit_compile=True
    )
    text = both_ways.experimental_get_compiler_ir(*rows)(stage="hlo")
    calls = [line for line in text.splitlines() if "custom_call_target" in line]
    forward, backward = sorted(calls, key=lambda line: "Backward" in line)
    written = f"bf16[{BATCH},{HEADS},{LENGTH},{SIZE}]{{3,1,2,0}}"
    sums = f"f32[{BATCH},{HEADS},{LENGTH}]{{2,1,0}}"
    assert f"= ({written}, {sums}, u8[0]{{0}}) custom-call(" in forward
    assert f"= ({written}, {written}, {written}, u8[0]{{0}}) custom-call(" in backward
    assert '"__cudnn$fmhaSoftmax"' in forward and '"__cudnn$fmhaSoftmaxBackward"' in backward
    for call in (forward, backward):
        assert f'"mask_type": "{"CAUSAL" if is_causal else "NO_MASK"}"' in call
        assert '"fmha_scale": 0.25' in call
        assert f'"dimensions": ["{BATCH}", "{HEADS}", "{LENGTH}", "{LENGTH}"]' in call


def test_gradients_of_gradients_are_those_of_keras(monkeypatch):
    def on_cpus(target, operands, results, config):
        query, key, value, *others = operands
        found = plain(query, key, value, scale=0.25)
        if "Backward" in target:
            return [tf.stop_gradient(one) for one in tf.gradients(found, [query, key, value], others[1])]
        return [found, tf.zeros(results[1].shape)]

    monkeypatch.setattr(flash, "_call", on_cpus)
    monkeypatch.setattr(flash, "_config", lambda *given, **options: "")
    random = np.random.default_rng(0)
    # In float32, sums that nearly cancel differ by more than 1e-5 on some processors.
    rows = [tf.constant(random.normal(size=(BATCH, LENGTH, HEADS, SIZE)), tf.float64) for _ in range(3)]

    @tf.function(autograph=False)
    def penalty(attend, *rows):
        with tf.GradientTape() as outer:
            outer.watch(rows)
            with tf.GradientTape() as inner:
                inner.watch(rows)
                loss = tf.reduce_sum(attend(*rows, scale=0.25) ** 2)
            norm = tf.add_n([tf.reduce_sum(one**2) for one in inner.gradient(loss, rows)])
        return [loss, norm, *outer.gradient(norm, rows)]

    expected = penalty(plain, *rows)
    for one, other in zip(penalty(flash.flash_attention, *rows), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("error, works", [(0.0, True), (0.1, False)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_the_kernel_is_tried_while_a_step_is_traced(monkeypatch, caplog, error, works, is_causal):
    monkeypatch.setattr(flash, "flash_attention", lambda *given, **options: plain(*given, **options) * (1 + error))
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: ["GPU:0"])
    monkeypatch.setattr(flash, "_GPU", "CPU:0")
    found = []

    @tf.function
    def step(values):
        with tf.GradientTape() as tape:
            tape.watch(values)
            found.append(flash.flash_works.__wrapped__(tf.bfloat16, (LENGTH, SIZE, LENGTH + 3), is_causal))
            loss = tf.reduce_sum(values**2)
        return tape.gradient(loss, values)

    assert np.array_equal(step(tf.constant([1.0, 2.0])), [2.0, 4.0])
    assert found == [works]
    assert ("differs" in caplog.text) is not works


def test_without_a_gpu_it_does_not_work():
    assert not flash.flash_works(tf.bfloat16, (LENGTH, SIZE, LENGTH), False)


@pytest.mark.parametrize(
    "case, takes",
    [
        ("plain", 1),
        ("causal", 1),
        ("mask", 0),
        ("scores", 0),
        ("dropout", 0),
        ("float32", 0),
        ("two axes", 0),
        ("first of two axes", 0),
        ("odd size", 0),
        ("unknown rows", 0),
        ("subclass", 0),
    ],
)
def test_only_attention_that_the_kernel_computes_is_replaced(monkeypatch, case, takes):
    calls = []

    def counted(*given, **options):
        calls.append(options)
        return plain(*given, **options)

    class OwnAttention(keras.layers.MultiHeadAttention):
        def _compute_attention(self, query, *given, **options):
            return super()._compute_attention(2 * query, *given, **options)

    monkeypatch.setattr(flash, "flash_attention", counted)
    monkeypatch.setattr(flash, "flash_works", lambda *given: True)
    policy = "float32" if case == "float32" else "mixed_bfloat16"
    axes = (1, 2) if case == "two axes" else (1,)
    options = {"dropout": 0.5} if case == "dropout" else {"attention_axes": axes} if "axes" in case else {}
    size, heads = 12 if case == "odd size" else SIZE, 8 if case == "first of two axes" else HEADS
    kind = OwnAttention if case == "subclass" else keras.layers.MultiHeadAttention
    layer = kind(heads, size, dtype=policy, **options)
    shape = (LENGTH, 3, 5) if "axes" in case else (LENGTH, 5)
    rows = tf.random.normal((BATCH, *shape))
    given = {
        "causal": {"use_causal_mask": True},
        "mask": {"attention_mask": np.tri(LENGTH, dtype=bool)[None]},
        "scores": {"return_attention_scores": True},
    }.get(case, {})
    layer(rows, rows, **given)
    model = keras.Sequential([layer])
    spec = tf.TensorSpec((None if case == "unknown rows" else BATCH, *shape))

    @tf.function(input_signature=[spec])
    def computed(values):
        return layer(values, values, training=False, **given)

    @tf.function(input_signature=[spec])
    def replaced(values):
        with kernels_in_xla(model):
            return layer(values, values, training=False, **given)

    expected = tf.nest.flatten(computed(rows))
    for one, other in zip(expected, tf.nest.flatten(replaced(rows)), strict=True):
        np.testing.assert_array_equal(np.asarray(one, "float32"), np.asarray(other, "float32"))
    assert len(calls) == takes
    assert not takes or calls[0]["is_causal"] is (case == "causal")
