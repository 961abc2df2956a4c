"""A small workload for tests of training by TFMOT: which quarter of a picture is bright."""

from typing import Any

import numpy as np

from tfaccel.planning.workload import Workload

NUM_ROWS, BATCH = 256, 32


def rows(seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 4, NUM_ROWS)
    x = generator.normal(0, 0.5, (NUM_ROWS, 8, 8, 1)).astype("float32")
    for row, label in enumerate(labels):
        top, left = 4 * (label // 2), 4 * (label % 2)
        x[row, top : top + 4, left : left + 4] += 0.7
    return x, np.eye(4, dtype="float32")[labels]


def build_model() -> Any:
    import keras

    layers = keras.layers

    def block(x: Any, filters: int, name: str) -> Any:
        inputs = keras.Input(x.shape[1:])
        y = layers.BatchNormalization(momentum=0.8)(layers.Conv2D(filters, 3, padding="same", use_bias=False)(inputs))
        y = layers.DepthwiseConv2D(3, padding="same")(layers.ReLU()(y))
        return keras.Model(inputs, layers.ReLU()(layers.Add()([y, layers.Conv2D(filters, 1)(inputs)])), name=name)(x)

    inputs = keras.Input((8, 8, 1), name="pixels")
    x = block(layers.Rescaling(2.0)(inputs), 8, "block")
    x = layers.Flatten()(layers.AveragePooling2D(4)(layers.LayerNormalization()(x)))
    x = layers.Dense(16, activation="relu", dtype="mixed_bfloat16")(layers.Dropout(0.1)(x))
    return keras.Model(inputs, layers.Dense(4, name="logits")(x), name="quarters")


def workload(*, loss: Any = None, build: Any = build_model, extra: bool = False) -> Workload:
    def compile_args() -> dict[str, Any]:
        import keras

        own = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.05)
        return {
            "optimizer": keras.optimizers.AdamW(5e-3),
            "loss": own if loss is None else loss,
            "metrics": ["accuracy"],
        }

    def batches(batch_size: int, seed: int, order: Any) -> Any:
        import tensorflow as tf

        x, y = rows(seed)
        parts = (x, y, np.ones(NUM_ROWS, "float32")) if extra else (x, y)
        return tf.data.Dataset.from_tensor_slices(tuple(part[order] for part in parts)).batch(batch_size)

    def train_data(batch_size: int, *, seed: int, epoch: int) -> Any:
        return batches(batch_size, 0, np.random.default_rng([seed, epoch]).permutation(NUM_ROWS))

    return Workload(
        name="quarters",
        build_model=build,
        compile_args=compile_args,
        train_data=train_data,
        validation_data=lambda batch_size: batches(batch_size, 1, np.arange(NUM_ROWS)),
        global_batch_size=BATCH,
        num_train_examples=NUM_ROWS,
    )


def trained(work: Workload) -> Any:
    """The workload's model after six epochs of plain Keras."""
    import keras

    keras.utils.set_random_seed(0)
    model = work.build_model()
    model.compile(**work.compile_args())
    for epoch in range(6):
        model.fit(work.train_data(BATCH, seed=0, epoch=epoch), shuffle=False, verbose=0)
    return model


def accuracy(outputs: Any) -> float:
    """Of predictions for the validation rows."""
    return float(np.mean(np.argmax(np.asarray(outputs), axis=-1) == np.argmax(rows(1)[1], axis=-1)))


def int8_kernels(content: bytes) -> list[dict[str, Any]]:
    """Shape and values of the int8 kernels of convolutions and dense layers in a LiteRT file."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=content)
    interpreter.allocate_tensors()
    found = []
    for detail in interpreter.get_tensor_details():
        if detail["dtype"] != np.int8 or len(detail["shape"]) < 2 or detail["shape"][0] == 1:
            continue  # activations and depthwise kernels begin with 1
        kernel = interpreter.get_tensor(detail["index"])  # constants can be read without keeping other tensors
        found.append(
            {
                "rank": kernel.ndim,
                "size": kernel.size,
                "zeros": float(np.mean(kernel == 0)),
                "unique": len(np.unique(kernel)),
            }
        )
    return found


def litert_accuracy(content: bytes) -> float:
    """Of a LiteRT file on the validation rows."""
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(model_content=content).get_signature_runner("serving_default")
    return accuracy([runner(pixels=row[None])["logits"][0] for row in rows(1)[0]])
