"""Models that TFMOT's wrappers could get wrong, trained for a few steps; a program where `tf.keras` is Keras 2."""

import importlib
import json
import sys
import warnings

import numpy as np


def separable(keras):
    """TFMOT replaces the separable convolution by two, for which `tf_keras` would find the names of the others."""
    layers = keras.layers
    parts = [layers.Conv2D(8, 1, name="conv2d"), layers.SeparableConv2D(8, 3), layers.ReLU(), layers.Flatten()]
    return keras.Sequential([keras.Input((8, 8, 3)), *parts, layers.Dense(2)])


def separable_1d(keras):
    layers = keras.layers
    return keras.Sequential(
        [keras.Input((12, 4)), layers.SeparableConv1D(8, 3), layers.ReLU(), layers.Flatten(), layers.Dense(2)]
    )


def shared(keras):
    """A convolution with its normalization, and a model in a model, called twice each.

    The statistics follow a few steps: else outputs are far smaller than in training, on whose range int8 is spread.
    """
    layers, momentum = keras.layers, 0.5
    inputs = [keras.Input((8, 8, 3), name="left"), keras.Input((8, 8, 3), name="right")]
    convolution, normalization = layers.Conv2D(8, 3, use_bias=False), layers.BatchNormalization(momentum=momentum)
    inner = keras.Sequential(
        [keras.Input((8,)), layers.Dense(8), layers.BatchNormalization(momentum=momentum), layers.ReLU()]
    )
    sides = [layers.GlobalAveragePooling2D()(layers.ReLU()(normalization(convolution(x)))) for x in inputs]
    return keras.Model(inputs, layers.Dense(2)(layers.Concatenate()([inner(inner(x)) for x in sides])))


def masked(keras):
    """A mask that goes through layers that TFMOT wraps, to one that needs it."""
    layers = keras.layers
    words = [keras.Input((6,), dtype="int32"), layers.Embedding(20, 8, mask_zero=True), layers.Dense(8, "relu")]
    return keras.Sequential([*words, layers.Dropout(0.1), layers.LSTM(8), layers.Dense(2)])


def unscaled(keras):
    """Inputs far from -6 to 6, where TFMOT lets ranges begin; and a normalization after a dense layer."""
    layers = keras.layers
    parts = [layers.Rescaling(100.0), layers.Dense(16), layers.BatchNormalization(), layers.ReLU(), layers.Dense(2)]
    return keras.Sequential([keras.Input((8,)), *parts])


def attention(keras):
    layers = keras.layers
    inputs = keras.Input((6, 16))
    x = layers.LayerNormalization()(layers.Add()([inputs, layers.MultiHeadAttention(2, 8)(inputs, inputs)]))
    return keras.Model(inputs, layers.Dense(2)(layers.GlobalAveragePooling1D()(layers.Dense(32, "gelu")(x))))


def mobile(keras):
    return keras.applications.MobileNetV2((32, 32, 3), alpha=0.35, weights=None, classes=4)


CASES = {case.__name__: case for case in (separable, separable_1d, shared, masked, unscaled, attention, mobile)}


def get_inputs(model):
    generator = np.random.default_rng(0)
    shapes = [(16, *tensor.shape[1:]) for tensor in model.inputs]
    if "int" in str(model.inputs[0].dtype):
        return [generator.integers(0, 20, shape, "int32") for shape in shapes]
    return [generator.normal(size=shape).astype("float32") for shape in shapes]


def trained(name, method):
    """What a method made of a model: notes, and how far its outputs are from those of what is given back."""
    import keras
    import tf_keras

    from tfaccel.compressing.methods import TfmotOptions
    from tfaccel.compressing.tfmot.flat_model import flatten_model
    from tfaccel.compressing.tfmot.quantizing import begin_with_ranges, quantized_model
    from tfaccel.compressing.tfmot.sparsity import clustered_model, pruned_model
    from tfaccel.compressing.tfmot.translation import translate

    keras.utils.set_random_seed(0)
    flat = flatten_model(CASES[name](keras))
    x = get_inputs(flat.model)
    layers = translate(flat, flat.weights(), x)
    options = TfmotOptions(num_clusters=4)
    if method == "qat":
        model, notes = quantized_model(flat, layers, method)
        begin_with_ranges(model, x)
        callbacks = ()
    else:
        if method == "cluster":
            made = clustered_model(flat, layers, options)
        else:
            made = pruned_model(flat, layers, method, options, 4)
        model, notes, callbacks = made.model, made.notes, made.callbacks
    model.compile(tf_keras.optimizers.Adam(1e-3), loss="mse")
    given = x if len(x) > 1 else x[0]
    targets = np.random.default_rng(1).normal(size=(16, flat.model.output_shape[-1]))
    steps = {"epochs": 1 if name == "mobile" else 4, "batch_size": 16, "verbose": 0}
    model.fit(given, targets, callbacks=callbacks, **steps)
    expected = model.predict_on_batch(given)
    if method == "qat":
        return {"notes": notes, **as_litert(model, flat, x, expected)}
    kernels = {path: [made.weights()[path][place] for place in places] for path, places in made.changed().items()}
    outputs = flat.with_weights(made.weights())(given, training=False)
    return {
        "notes": notes,
        "difference": float(np.abs(outputs - expected).max()),
        "values": max(len(np.unique(kernel)) for arrays in kernels.values() for kernel in arrays),
        "zeros": min(float(np.mean(kernel == 0)) for arrays in kernels.values() for kernel in arrays),
        "layers": len(kernels),
    }


def as_litert(model, flat, x, expected):
    from ai_edge_litert.interpreter import Interpreter

    from tfaccel.compressing.call_signature import SIGNATURE_KEY
    from tfaccel.compressing.litert.file import float_operations
    from tfaccel.compressing.tfmot.quantizing import litert_file

    content = litert_file(model, flat, flat.input_names, ["y"])
    run = Interpreter(model_content=content).get_signature_runner(SIGNATURE_KEY)
    rows = [{name: array[row : row + 1] for name, array in zip(flat.input_names, x, strict=True)} for row in range(16)]
    outputs = np.concatenate([run(**row)["y"] for row in rows])
    # Single rows lie where int8 rounds up or down: there, the runtime's own kernels differ among themselves.
    difference = float(np.linalg.norm(outputs - expected) / np.linalg.norm(expected))
    return {"difference": difference, "float": sorted(float_operations(content)), "spread": float(expected.std())}


def import_tfmot():
    """TFMOT warns when it is imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("tensorflow_model_optimization")


def main(names):
    """Trains what is named, as CASE:METHOD, and prints a line of JSON for each."""
    import_tfmot()
    for name in names:
        print(json.dumps({"case": name, **trained(*name.split(":"))}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
