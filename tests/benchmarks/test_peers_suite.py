"""The benchmark of peers: the same models in each framework, what is left out, and its figures."""

import importlib.util

import pytest

from tfaccel.benchmarks import peer_programs, peers_suite
from tfaccel.benchmarks.choice_tasks import FAMILIES
from tfaccel.benchmarks.peers_suite import peers_figures, run_peers_suite
from tfaccel.benchmarks.suite_options import SuiteOptions
from tfaccel.benchmarks.timed_race import Timing
from tfaccel.errors import TfaccelError
from tfaccel.training.run.performance import TimedWindow

OPTIONS = SuiteOptions(repetitions=1, progress=lambda text: None)


def test_torch_runs_in_every_way():
    names = [peer.name for peer in peer_programs.torch_peers(FAMILIES["mlp"])]
    assert names == [
        "PyTorch, eager, float32",
        "PyTorch, eager, bfloat16",
        "PyTorch, compiled, float32",
        "PyTorch, compiled, bfloat16",
    ]
    of_images = peer_programs.torch_peers(FAMILIES["cnn"])
    assert len(of_images) == 8
    assert sum(peer.options["channels_last"] for peer in of_images) == 4


@pytest.fixture
def nothing_installed(monkeypatch):
    monkeypatch.setattr(peers_suite, "how_to_install", lambda package: f"{package} is not there: pip install {package}")


def test_missing_peers_are_left_out_with_a_note(nothing_installed):
    report = run_peers_suite(["mlp_torch"], OPTIONS, required=False, done={}, save=pytest.fail)
    assert report.figures == ()
    assert report.warnings == ["mlp_torch: not measured; torch is not there: pip install torch"]


def test_missing_peers_that_were_asked_for_are_an_error(nothing_installed):
    with pytest.raises(TfaccelError, match="--figures=mlp_jax: jax is not there: pip install jax"):
        run_peers_suite(["mlp_jax"], OPTIONS, required=True, done={}, save=pytest.fail)


def timing(*seconds):
    windows = tuple(TimedWindow(seconds=one, num_steps=4, loss=1.0) for one in seconds)
    return Timing(global_batch_size=128, windows=windows).to_json()


def test_figures_compare_with_the_fastest_variant():
    def raced(**timings):
        return {"race": {"timings": timings}}

    slow, fast = "PyTorch, eager, float32", "PyTorch, compiled, bfloat16"
    raw = {
        "mlp_torch": raced(**{"chosen plan": timing(1.0, 1.0), slow: timing(9.0, 9.0), fast: timing(2.0, 2.0)}),
        "cnn_torch": raced(**{"chosen plan": timing(2.0, 2.0), slow: timing(1.0, 1.0)}),
        "gru_torch": {"search": {}},
        "mlp_jax": raced(**{"chosen plan": timing(1.0, 1.0), "Keras on JAX, float32": timing(2.5, 2.5)}),
    }
    figures = [(figure.name, figure.quantity, figure.median, figure.met) for figure in peers_figures(raw)]
    assert figures == [
        ("mlp_torch", f"throughput chosen plan / {fast}", 2.0, True),
        ("cnn_torch", f"throughput chosen plan / {slow}", 0.5, False),
        (
            "all families",
            "chosen plan / the best of PyTorch, 2 of 7 families, geometric mean",
            pytest.approx(1.0),
            False,
        ),
        ("mlp_jax", "throughput chosen plan / Keras on JAX, float32", 2.5, None),
        (
            "all families",
            "chosen plan / the best of Keras on JAX, 1 of 7 families, geometric mean",
            pytest.approx(2.5),
            True,
        ),
    ]


def test_models_of_another_size_are_not_compared():
    class Child:
        def __init__(self, num_parameters):
            self.built = {"num_parameters": num_parameters}

    peer = peer_programs.KERAS_ON_JAX[0]
    assert peers_suite._checked(Child(5), Child(5), peer).built["num_parameters"] == 5
    with pytest.raises(TfaccelError, match="5 trainable parameters in Keras, 6 in Keras on JAX, float32"):
        peers_suite._checked(Child(6), Child(5), peer)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason=peer_programs.how_to_install("torch"))
def test_torch_models_compute_what_keras_ones_do(run_python):
    run_python(SAME, fresh=True)


SAME = """
import keras
import numpy as np
import torch
from tfaccel.benchmarks.choice_tasks import FAMILIES
from tfaccel.benchmarks.synthetic_data import synthetic_arrays
from tfaccel.benchmarks.torch_models import MODELS

def number(layer):
    return int("0" + layer.name.rpartition("_")[2] if layer.name[-1].isdigit() and "_" in layer.name else "0")

def by_kind(model):
    kinds = {}
    for layer in sorted(model.layers, key=number):
        kinds.setdefault(type(layer).__name__, []).append([variable.numpy() for variable in layer.trainable_variables])
    return kinds

def attention(values):  # query, key, value and output, each with a kernel and a bias
    kernels = [kernel.reshape(256, 256).T for kernel in values[0:6:2]]
    biases = [bias.reshape(256) for bias in values[1:6:2]]
    return [np.concatenate(kernels), np.concatenate(biases), values[6].reshape(256, 256).T, values[7]]

def gates(values, swap):  # PyTorch's GRU has the reset gate first, Keras's the update gate
    def turned(value):
        parts = np.split(value, 3 if swap else 4, axis=-1)
        return np.concatenate([parts[1], parts[0], parts[2]] if swap else parts, axis=-1)
    kernel, recurrent, bias = map(turned, values)
    return [kernel.T, recurrent.T, *(bias if swap else [bias, 0 * bias])]

def weights(name, model):
    kinds = by_kind(model)
    dense = [value.T if value.ndim == 2 else value for values in kinds["Dense"] for value in values]
    if name == "transformer":
        norms = kinds["LayerNormalization"]
        found = [*kinds["Embedding"][0]]
        for layer in range(2):
            found += attention(kinds["MultiHeadAttention"][layer]) + dense[4 * layer : 4 * layer + 4]
            found += norms[2 * layer] + norms[2 * layer + 1]
        return found + norms[4] + dense[8:]
    if name in ("lstm", "gru"):
        return gates(kinds[name.upper()][0], swap=name == "gru") + dense
    found = [*kinds.get("Embedding", [[]])[0]]
    for kernel, norm in zip(kinds.get("Conv2D", []), kinds.get("BatchNormalization", []), strict=True):
        found += [kernel[0].transpose(3, 2, 0, 1), *norm]
    return found + dense

assert set(MODELS) == set(FAMILIES)
for name, family in FAMILIES.items():
    keras.utils.clear_session()
    model, other = family.build_model(), MODELS[name]()
    count = sum(int(np.prod(variable.shape)) for variable in model.trainable_variables)
    assert count == sum(one.numel() for one in other.parameters() if one.requires_grad), name
    for variable in model.trainable_variables:  # biases and scales too
        variable.assign_add(np.random.default_rng(0).normal(0, 0.05, variable.shape))
    with torch.no_grad():
        for one, value in zip(other.parameters(), weights(name, model), strict=True):
            assert one.shape == value.shape, (name, one.shape, value.shape)
            one.copy_(torch.tensor(value))
    x, _ = synthetic_arrays(8, family.input_shape, num_tokens=family.num_tokens)
    inputs = torch.from_numpy(x).permute(0, 3, 1, 2) if family.is_image else torch.from_numpy(x)
    wanted = model(x, training=True).numpy()
    np.testing.assert_allclose(other.train()(inputs).detach().numpy(), wanted, rtol=2e-3, atol=2e-3, err_msg=name)
    assert np.abs(wanted).max() > 0.05, name
"""
