"""Object detection without anchors: digits on clutter, or your own images and boxes in COCO format.

References:
    Zhou et al., Objects as points, 2019, https://arxiv.org/abs/1904.07850 (heat maps of centers)
    Law and Deng, CornerNet, 2018, https://arxiv.org/abs/1808.01244 (the focal loss of heat maps)
    Lin et al., Microsoft COCO, 2014, https://arxiv.org/abs/1405.0312 (format and mean average precision)

Command:
    pip install 'tfaccel[detection]'
    tfaccel train --recipe=object_detection --run_dir=runs/boxes
    tfaccel train --recipe=object_detection --run_dir=runs/mine --data_dir=FOLDER --image_size=128

    FOLDER holds train.json and test.json, or annotations.json, in COCO format, and the images.

Result: `detections.png`, test images with predicted boxes (orange) and true boxes (green); `detections.json`, all
predicted boxes, as left, top, width and height; and `scores.json`, the mean average precision by pycocotools, and that
of support vector machines on HOG features of sliding windows (a simple baseline, skipped if the number of classes times
test images exceeds 50,000, since it would take minutes).

Expected result on the digits (256 test scenes; their digits appear in no training scene; each epoch has new scenes):
    mAP@0.5 of 0.993, the median of five seeds (0.990 to 0.995), in mixed_bfloat16; the baseline reaches 0.943. Half of
    the epochs reach 0.979 in 46 s of CPU time on two cores of an AMD EPYC with AVX512_BF16.
"""

from pathlib import Path
from typing import Any, Literal

import numpy as np

import tfaccel
from tfaccel import data, reporting

# ---------- The model: down to 1/16 of the image size, and back up to 1/4


def build_model(images: Any, *, width: int, dropout: float, remat: bool) -> Any:
    """Maps raw pixels to a heat-map logit per class, and a box's size and offset, for each cell of 4x4 pixels."""
    import keras
    from keras import layers

    from tfaccel.layers import rematerialize

    def convolution(x: Any, num_filters: int, strides: int = 1, kernel_size: int = 3) -> Any:
        x = layers.Conv2D(num_filters, kernel_size, strides, padding="same", use_bias=False)(x)
        return layers.BatchNormalization(momentum=0.9)(x)

    def block(x: Any, num_filters: int, name: str) -> Any:
        """A residual block of two convolutions that halves the size."""
        inputs = keras.Input(x.shape[1:])
        y = convolution(layers.ReLU()(convolution(inputs, num_filters, 2)), num_filters)
        around = convolution(inputs, num_filters, 2, 1)
        model = keras.Model(inputs, layers.ReLU()(layers.Add()([y, around])), name=name)
        return (rematerialize(model) if remat else model)(x)

    inputs = keras.Input((images.image_size, images.image_size, images.num_channels), name="pixels")
    x = layers.Rescaling(1 / 63.75, -2.0)(inputs)
    x = layers.ReLU()(convolution(x, width, 2, 5))
    ways = []
    for number, num_filters in enumerate((3 * width // 2, 3 * width, 4 * width)):
        x = block(x, num_filters, f"down_{number}")
        ways.append(x)
    for way in ways[-2::-1]:
        x = layers.UpSampling2D()(layers.ReLU()(convolution(x, way.shape[-1], 1, 1)))
        x = layers.ReLU()(convolution(layers.Add()([x, way]), way.shape[-1]))
    x = layers.Dropout(dropout)(layers.ReLU()(convolution(x, 2 * width)))
    # Both stay float32 under mixed precision: 16 bits are too coarse for the loss and for coordinates. Objects are
    # rare, so the heat-map logits start low.
    rare = keras.initializers.Constant(-4.0)
    heat = layers.Conv2D(len(images.class_names), 1, bias_initializer=rare, dtype="float32", name="heat")(x)
    boxes = layers.Conv2D(4, 1, dtype="float32", name="boxes")(x)
    return keras.Model(inputs, layers.Concatenate(dtype="float32")([heat, boxes]))


# ---------- The workload: data, model, optimizer and loss


@tfaccel.recipe(data_dir_only=("image_size",), bundled_only=("test_part",))
def workload(
    *,
    # folder in COCO format, see above; None for digits on clutter
    data_dir: tfaccel.options.DataPath | None = None,
    # side of the square that your images are fitted into, a multiple of 16 pixels; None for 128
    image_size: tfaccel.options.Count | None = None,
    # digits of the test scenes: the test split, or, for choosing settings, a fifth of the training split
    # (validation), which is then excluded from training
    test_part: Literal["test", "validation"] = "test",
    width: tfaccel.options.Count = 32,  # filters at half the image size; all other layers scale with it
    dropout: tfaccel.options.Fraction = 0.0,  # dropout rate before the output layers
    remat: bool = False,  # recompute the activations of each block in the backward pass: less memory, more time
    bad_data: tfaccel.data.BadData,
    training: tfaccel.options.TrainingOptions,
) -> tfaccel.Workload:
    """Builds the workload. Images and boxes are read and checked here."""
    reporting.check_coco_library()
    if data_dir is None:
        images = data.scenes_of_digits(test_part)
    else:
        images = data.read_coco(data_dir, image_size=image_size or 128, bad_data=bad_data)

    def compile_args(num_steps: int) -> dict[str, Any]:
        from tfaccel.layers import detection_loss

        return {"optimizer": training.make_optimizer(num_steps=num_steps), "loss": detection_loss}

    return tfaccel.Workload(
        name=__name__,
        build_model=lambda: build_model(images, width=width, dropout=dropout, remat=remat),
        compile_args=compile_args,
        data=data.BoxData(images, augmented=data_dir is not None),  # scenes are new in every epoch
        epochs=24,
        global_batch_size=32,
        bfloat16_on_cpu=True,
    )


# ---------- The results: predicted boxes of the test images


@workload.show_result
def show_result(work: tfaccel.Workload, result: tfaccel.TrainResult) -> reporting.BaselineScores:
    """Writes the detections in the test images: a picture, the boxes, and their scores next to the baseline's."""
    import keras

    from tfaccel.layers import read_detections

    run_dir, images, split = Path(result.run_dir), work.data.source, work.data.test_split()
    names = images.class_names
    model = keras.models.load_model(run_dir / "model.keras", compile=False)
    found = read_detections(model.predict(split.images.astype(np.float32), batch_size=64, verbose=0))
    boxes = {"boxes": split.boxes, "labels": split.labels, "detections": found, "class_names": names}
    scores = reporting.score_boxes(**boxes)
    compared = reporting.detection_scores(scores["map_50"], images.train(0, 0), split, class_names=names)
    reporting.write_json(run_dir / "scores.json", {**scores, "baselines": compared.baselines})
    reporting.write_json(run_dir / "detections.json", reporting.box_rows(found, class_names=names))
    reporting.save_box_picture(run_dir / "detections.png", split.images, **boxes)
    return compared


run = workload.run
