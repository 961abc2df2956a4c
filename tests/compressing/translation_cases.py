"""Models that are translated to `tf_keras`, for tests; run as a program in a process where `tf.keras` is Keras 2."""

import importlib
import json
import sys
import warnings

import numpy as np

ROW, SERIES, IMAGE, VOLUME, WORDS = (6,), (8, 4), (8, 8, 4), (4, 4, 4, 2), (5,)


def layer_cases(layers):
    """Name -> (layer, shape of one example), of all layers that TFMOT's registries know and Keras 3 has."""
    kernel, seed = {"kernel_regularizer": "l2"}, {"seed": 1}
    image = {
        "Conv2D": layers.Conv2D(5, 3, padding="same", activation="relu", **kernel),
        "Conv2D_dilated": layers.Conv2D(4, 3, dilation_rate=2, groups=2, use_bias=False),
        "Conv2DTranspose": layers.Conv2DTranspose(3, 3, 2, padding="same"),
        "DepthwiseConv2D": layers.DepthwiseConv2D(3, 2, depth_multiplier=2, padding="same", activation="silu"),
        "SeparableConv2D": layers.SeparableConv2D(6, 3, activation="gelu"),
        "BatchNormalization": layers.BatchNormalization(momentum=0.9, epsilon=1e-4),
        "LayerNormalization": layers.LayerNormalization(epsilon=1e-5),
        "ReLU": layers.ReLU(6.0, negative_slope=0.1),
        "LeakyReLU": layers.LeakyReLU(0.05),
        "ELU": layers.ELU(0.7),
        "Softmax": layers.Softmax(),
        "Activation_relu6": layers.Activation("relu6"),
        "Activation_swish": layers.Activation("silu"),
        "Activation_tanh": layers.Activation("tanh"),
        "Activation_hard_silu": layers.Activation("hard_silu"),
        "Activation_hard_sigmoid": layers.Activation("hard_sigmoid"),
        "Cropping2D": layers.Cropping2D(((1, 2), (0, 1))),
        "UpSampling2D": layers.UpSampling2D(2),
        "UpSampling2D_bilinear": layers.UpSampling2D((3, 2), interpolation="bilinear"),
        "ZeroPadding2D": layers.ZeroPadding2D(((1, 0), (2, 1))),
        "AveragePooling2D": layers.AveragePooling2D(3, 2, padding="same"),
        "MaxPooling2D": layers.MaxPooling2D(3, 2, padding="same"),
        "GlobalAveragePooling2D": layers.GlobalAveragePooling2D(keepdims=True),
        "GlobalMaxPooling2D": layers.GlobalMaxPooling2D(),
        "SpatialDropout2D": layers.SpatialDropout2D(0.5),
        "Flatten": layers.Flatten(),
        "Permute": layers.Permute((3, 1, 2)),
        "Rescaling": layers.Rescaling(0.1, -0.5),
        "GroupNormalization": layers.GroupNormalization(2),
        "PReLU": layers.PReLU(shared_axes=(1, 2)),
        "Resizing": layers.Resizing(5, 3),
        "RandomFlip": layers.RandomFlip("horizontal"),
    }
    series = {
        "Conv1D": layers.Conv1D(5, 3, padding="causal", dilation_rate=2, activation="swish"),
        "Conv1DTranspose": layers.Conv1DTranspose(3, 3, 2),
        "SeparableConv1D": layers.SeparableConv1D(6, 3),
        "Cropping1D": layers.Cropping1D((1, 2)),
        "UpSampling1D": layers.UpSampling1D(2),
        "ZeroPadding1D": layers.ZeroPadding1D((1, 2)),
        "AveragePooling1D": layers.AveragePooling1D(2),
        "MaxPooling1D": layers.MaxPooling1D(3, 2),
        "GlobalAveragePooling1D": layers.GlobalAveragePooling1D(),
        "GlobalMaxPooling1D": layers.GlobalMaxPooling1D(),
        "SpatialDropout1D": layers.SpatialDropout1D(0.5),
        "GRU": layers.GRU(5, return_sequences=True),
        "GRU_without_reset": layers.GRU(5, reset_after=False, activation="softsign"),
        "LSTM": layers.LSTM(5, go_backwards=True),
        "SimpleRNN": layers.SimpleRNN(5),
        "RNN": layers.RNN(layers.StackedRNNCells([layers.GRUCell(3), layers.LSTMCell(4)])),
        "Bidirectional": layers.Bidirectional(layers.LSTM(3, return_sequences=True)),
        "Bidirectional_two": layers.Bidirectional(
            layers.GRU(3), backward_layer=layers.GRU(3, go_backwards=True), merge_mode="sum"
        ),
        "TimeDistributed": layers.TimeDistributed(layers.Dense(3)),
        "EinsumDense": layers.EinsumDense("abc,cd->abd", (None, 6), bias_axes="d"),
        "Masking": layers.Masking(0.0),
    }
    volume = {
        "Conv3D": layers.Conv3D(3, 2),
        "Conv3DTranspose": layers.Conv3DTranspose(3, 2, 2),
        "Cropping3D": layers.Cropping3D(1),
        "UpSampling3D": layers.UpSampling3D(2),
        "ZeroPadding3D": layers.ZeroPadding3D(1),
        "AveragePooling3D": layers.AveragePooling3D(2),
        "MaxPooling3D": layers.MaxPooling3D(2),
        "GlobalAveragePooling3D": layers.GlobalAveragePooling3D(),
        "GlobalMaxPooling3D": layers.GlobalMaxPooling3D(),
        "SpatialDropout3D": layers.SpatialDropout3D(0.5),
    }
    row = {
        "Dense": layers.Dense(4, activation="softmax", kernel_constraint="max_norm"),
        "Dense_mish": layers.Dense(4, activation="mish", use_bias=False),
        "ActivityRegularization": layers.ActivityRegularization(0.1),
        "Dropout": layers.Dropout(0.5, **seed),
        "AlphaDropout": layers.AlphaDropout(0.5),
        "GaussianDropout": layers.GaussianDropout(0.5),
        "GaussianNoise": layers.GaussianNoise(0.5),
        "RepeatVector": layers.RepeatVector(3),
        "Reshape": layers.Reshape((3, -1)),
        "Lambda": layers.Lambda(lambda x: 2.0 * x),
        "RMSNormalization": layers.RMSNormalization(),
        "UnitNormalization": layers.UnitNormalization(),
        "Normalization": layers.Normalization(mean=[1.0] * 6, variance=[2.0] * 6),
    }
    words = {"Embedding": layers.Embedding(10, 4), "Embedding_masked": layers.Embedding(10, 4, mask_zero=True)}
    groups = ((image, IMAGE), (series, SERIES), (volume, VOLUME), (row, ROW), (words, WORDS))
    return {name: (layer, shape) for group, shape in groups for name, layer in group.items()}


def make_model(keras, layer, shape):
    """The layer with a dense one behind it, so that masks and shapes matter."""
    inputs = keras.Input(shape, dtype="int32" if shape == WORDS else "float32")
    x = layer(inputs)
    if shape == WORDS:
        x = keras.layers.LSTM(3)(x)
    return keras.Model(inputs, x)


def merge_model(keras):
    """All layers that merge, models in models, a shared layer, operations, several inputs and outputs."""
    layers = keras.layers
    left, right = keras.Input((4,), name="left"), keras.Input((4,), name="right")
    shared = layers.Dense(4, name="shared")
    a, b = shared(left), shared(right)
    merged = [kind()([a, b]) for kind in (layers.Add, layers.Average, layers.Maximum, layers.Minimum, layers.Multiply)]
    merged += [layers.Subtract()([a, b]), layers.Dot(1)([a, b]), layers.Concatenate()([a, b])]
    inner_inputs = keras.Input((4,))
    inner = keras.Model(inner_inputs, layers.Activation("tanh")(layers.Dense(4)(inner_inputs)), name="inner")
    deeper = keras.models.clone_model(inner)
    outer = keras.Sequential([keras.Input((4,)), deeper, layers.Dropout(0.5)], name="outer")
    x = keras.ops.concatenate([*merged, outer(a), inner(b, training=False), (a * 2.0 + 1.0)[:, 1:3]], axis=-1)
    heads = {"wide": layers.Dense(3, name="w")(x), "narrow": keras.ops.nan_to_num(layers.Dense(1)(x), nan=0.5)}
    return keras.Model({"left": left, "right": right}, heads)


def attention_model(keras):
    """Attention, with a mask and a context."""
    layers = keras.layers
    words, context = keras.Input((5,), dtype="int32", name="words"), keras.Input((3, 8), name="context")
    x = layers.Embedding(10, 8, mask_zero=True)(words)
    y = layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True)
    y = layers.MultiHeadAttention(2, 4, value_dim=3)(layers.Add()([x, y]), context)
    return keras.Model([words, context], layers.GlobalAveragePooling1D()(layers.LayerNormalization()(y)))


def nested_model(keras):
    """A model that ends in a model, which ends in a model; and dropout that is off, whatever is trained."""
    layers = keras.layers
    inner = keras.Sequential([keras.Input((4,)), layers.Dense(3), layers.Dropout(0.9)], name="inner")
    middle_inputs = keras.Input((4,))
    middle = keras.Model(middle_inputs, inner(layers.ReLU()(middle_inputs), training=False), name="middle")
    inputs = keras.Input((4,))
    return keras.Model(inputs, middle(layers.Dense(4)(inputs)))


def mixed_model(keras):
    """A model in mixed precision, translated in float32."""
    layers, policy = keras.layers, {"dtype": "mixed_bfloat16"}
    convolution = layers.Conv2D(4, 3, **policy)
    return keras.Sequential([keras.Input((8, 8, 4)), convolution, layers.Flatten(**policy), layers.Dense(2, **policy)])


def application(keras, name):
    """A network of `keras.applications`, with weights that are not all alike."""
    model = getattr(keras.applications, name)(weights=None, input_shape=(64, 64, 3), classes=7)
    generator = np.random.default_rng(0)
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            sizes = layer.gamma.shape
            values = [generator.uniform(0.5, 1.5, sizes), generator.normal(0, 0.3, sizes)]
            layer.set_weights([*values, generator.normal(0, 0.3, sizes), generator.uniform(0.5, 1.5, sizes)])
    return model


def recipe(name):
    """The model of a recipe and the first batch of its data."""
    from tfaccel.planning.load_workload import load_recipe

    work = load_recipe(name)
    batch = next(iter(work.train_data(work.global_batch_size, seed=0, epoch=0).take(1).as_numpy_iterator()))
    return work.build_model(), batch[0]


def gan_parts():
    """The two networks of the recipe with a subclassed model."""
    from tfaccel.planning.load_workload import load_recipe

    model = load_recipe("gan").build_model()
    return {part: translated(getattr(model, part)) for part in ("generator", "discriminator")}


def layers_without_case(keras):
    """Layers without a case, of those that TFMOT's registries know and Keras 3 has, or that are translated natively."""
    import_tfmot()
    from tensorflow_model_optimization.python.core.clustering.keras.clustering_registry import ClusteringRegistry
    from tensorflow_model_optimization.python.core.quantization.keras.default_8bit import default_8bit_quantize_registry
    from tensorflow_model_optimization.python.core.sparsity.keras.prune_registry import PruneRegistry

    from tfaccel.compressing.tfmot.translation import NATIVE_LAYERS
    from tfaccel.training.private.private_api import all_layers

    registries = [
        PruneRegistry._LAYERS_WEIGHTS_MAP,
        PruneRegistry._RNN_LAYERS,
        PruneRegistry._RNN_CELLS_WEIGHTS_MAP,
        ClusteringRegistry._LAYERS_WEIGHTS_MAP,
        ClusteringRegistry._SUPPORTED_RNN_CELLS,
        ClusteringRegistry._SUPPORTED_RNN_LAYERS,
        ClusteringRegistry._SUPPORTED_MHA_LAYERS,
        default_8bit_quantize_registry.Default8BitQuantizeRegistry()._layer_quantize_map,
    ]
    known = {one.__name__ for registry in registries for one in registry if hasattr(keras.layers, one.__name__)}
    cases = [make_model(keras, *case) for case in layer_cases(keras.layers).values()]
    cases += [merge_model(keras), attention_model(keras)]
    return sorted((known | NATIVE_LAYERS) - {type(layer).__name__ for model in cases for layer in all_layers(model)})


def examples(model, count=4):
    """Made-up inputs for a model, in its order."""
    generator = np.random.default_rng(0)
    made = []
    for tensor in model.inputs:
        shape = (count, *tensor.shape[1:])
        whole = "int" in str(tensor.dtype)
        made.append(generator.integers(0, 10, shape, "int32") if whole else generator.normal(size=shape).astype("f4"))
    return made


def translated(model, inputs=None):
    """The largest difference of the translated model's outputs from Keras 3's, and its kept layers."""
    import keras

    from tfaccel.compressing.tfmot.flat_model import FlatModel, flatten_model
    from tfaccel.compressing.tfmot.translation import assemble, check_outputs, translate

    flat = flatten_model(model)
    sent = FlatModel.from_json(json.loads(json.dumps(flat.serialized)))
    x = examples(flat.model) if inputs is None else flat.get_inputs(inputs)
    given = dict(zip(flat.input_names, x, strict=True)) if inputs is None else inputs
    outputs = flat.model(given if len(x) > 1 or inputs is not None else x[0], training=False)
    layers = translate(sent, flat.weights(), x)
    made = assemble(sent, layers)
    difference = check_outputs(made, sent, x, keras.tree.flatten(outputs))
    back = {
        path: (layer.operation if path in layers.kept else layer).get_weights()
        for path, layer in layers.by_path.items()
        if layer.weights
    }
    changed = {path: [np.asarray(array) + 1 for array in arrays] for path, arrays in back.items()}
    before = [np.asarray(array) for array in model.get_weights()]
    after = flat.with_weights(changed).get_weights()
    same = all(np.allclose(a + 1, b) for a, b in zip(before, after, strict=True))
    return {"difference": difference, "kept": layers.kept, "returned": same, "layers": len(layers.by_path)}


def import_tfmot():
    """TFMOT warns when it is imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("tensorflow_model_optimization")


def main(names):
    """Translates the cases that are named, and prints a line of JSON for each."""
    import keras

    layers = layer_cases(keras.layers)
    for name in names:
        kind, _, what = name.partition(":")
        if kind == "layers":
            results = {one: translated(make_model(keras, *case)) for one, case in layers.items()}
        elif kind == "known":
            results = {name: {"missing": layers_without_case(keras)}}
        elif kind == "gan":
            results = gan_parts()
        elif kind == "application":
            results = {name: translated(application(keras, what))}
        elif kind == "recipe":
            results = {name: translated(*recipe(what))}
        else:
            models = {"merge": merge_model, "attention": attention_model, "mixed": mixed_model, "nested": nested_model}
            results = {name: translated(models[name](keras))}
        for one, result in results.items():
            print(json.dumps({"case": one, **result}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
