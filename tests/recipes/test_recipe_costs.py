"""What recipes say that their models cost, beside the models that they build."""

import math

import pytest

from tfaccel.errors import WorkloadError
from tfaccel.planning.layer_costs import LayerCost, layer_cost
from tfaccel.recipes import (
    autoencoder,
    gan,
    object_detection,
    sequence_forecasting,
    tabular_classification,
    tabular_regression,
    transfer_learning,
)


def multiplications(model):
    """Of one example's forward pass, read from the layers that were built."""
    import keras

    found = 0
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.GRU):
            found += sum(math.prod(weight.shape) for weight in layer.weights[:2]) * layer.input.shape[1]
        elif hasattr(layer, "kernel") and not isinstance(layer, keras.layers.GRUCell):
            shape = (layer.input if isinstance(layer, keras.layers.Conv2DTranspose) else layer.output).shape
            found += math.prod(layer.kernel.shape) * math.prod(shape[1:-1])
    return found


def num_parameters(model):
    return sum(math.prod(weight.shape) for weight in model.trainable_weights)


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("time,x,y,z\n" + "".join(f"{i},{i % 7},{i % 5 / 2},{i % 3}\n" for i in range(600)))
    return str(path)


@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        (object_detection, {}),
        (object_detection, {"width": 9}),
        (autoencoder, {"width": 12}),
        (autoencoder, {"data_dir": "rows", "width": 20}),
        (sequence_forecasting, {"model": "gru", "width": 12}),
        (sequence_forecasting, {"model": "convolution", "width": 20}),
        (transfer_learning, {"head_width": 12}),
        (autoencoder, {"latent_size": 5}),
        (autoencoder, {"image_size": 21}),
        (autoencoder, {"data_dir": "rows"}),
        (sequence_forecasting, {"model": "gru", "horizon": 7}),
        (sequence_forecasting, {"model": "convolution"}),
        (sequence_forecasting, {"model": "convolution", "window": 20, "data_dir": "rows", "time_column": "time"}),
        (transfer_learning, {}),
        (transfer_learning, {"pretrained": False}),
        (transfer_learning, {"backbone": "MobileNetV3Small", "pretrained": False, "image_size": 96}),
    ],
)
def test_cost_is_the_model_s(logical_devices, rows, recipe, options):
    if "data_dir" in options:
        options = {**options, "data_dir": rows}
    work = recipe.workload(**options)
    model = work.build_model()
    assert work.num_parameters == num_parameters(model)
    rough = 0.1 if options.get("backbone") else 1e-9  # networks of Keras: by the number of their pixels
    assert work.flops_per_example == pytest.approx(6 * multiplications(model), rel=rough)


@pytest.mark.parametrize(("image_size", "width"), [(None, 32), (21, 32), (None, 16)])
def test_cost_of_a_step_of_both_networks(logical_devices, image_size, width):
    work = gan.workload(image_size=image_size, width=width)
    model = work.build_model()
    made, judged = multiplications(model.generator), multiplications(model.discriminator)
    assert work.num_parameters == num_parameters(model.generator) + num_parameters(model.discriminator)
    assert work.flops_per_example == 2 * (4 * made + 8 * judged)


SIZED = [autoencoder, gan, object_detection, sequence_forecasting, tabular_classification, tabular_regression]


@pytest.mark.parametrize("recipe", SIZED)
def test_a_width_is_checked_and_kept(recipe):
    with pytest.raises(WorkloadError, match=r"`width` must be a whole number of at least 1. Received: width=0"):
        recipe.workload(width=0)
    usual, narrow = recipe.workload(), recipe.workload(width=16)
    assert narrow.options == {**usual.options, "width": 16}
    assert narrow.num_parameters < usual.num_parameters


def test_costs_add_up():
    both = layer_cost(4, 3) + layer_cost(9, 2, positions=10, per_unit=2)
    assert both == LayerCost(12 + 180, 15 + 22)
    assert both.flops_per_example == 6 * 192


def test_backbones_of_your_own_have_no_known_cost(logical_devices, tmp_path):
    import keras

    layers = [keras.Input((8, 8, 1)), keras.layers.Conv2D(2, 3), keras.layers.GlobalAveragePooling2D()]
    keras.Sequential(layers).save(tmp_path / "own.keras")
    work = transfer_learning.workload(backbone=str(tmp_path / "own.keras"))
    assert (work.flops_per_example, work.num_parameters) == (None, None)
    assert transfer_learning.workload(lora_rank=2).num_parameters is None
