"""Object detection without anchors: digits on clutter, or images with boxes of your own in COCO's format.

References:
    Zhou et al., Objects as points, 2019, https://arxiv.org/abs/1904.07850 (heat maps of centres)
    Law and Deng, CornerNet, 2018, https://arxiv.org/abs/1808.01244 (the focal loss of heat maps)
    Lin et al., Microsoft COCO, 2014, https://arxiv.org/abs/1405.0312 (format and mean average precision)

Command:
    pip install 'tfaccel[detection]'
    tfaccel train --recipe=object_detection --run_dir=runs/boxes
    tfaccel train --recipe=object_detection --run_dir=runs/mine --data_dir=FOLDER --image_size=128

    FOLDER holds train.json and test.json, or annotations.json, in COCO's format, and the images.

Result: `detections.png`, test images with the boxes that were found (orange) and the true ones (green);
`detections.json`, all boxes that were found, as left, top, width and height; and `scores.json`, the mean average
precision by pycocotools, and that of support vector machines on windows of gradients (a simple baseline, which is left
out where classes times test images are more than 50,000, since it would take minutes).

Expected result on the digits (256 test scenes with digits that are in no training scene):
    mAP@0.5 of 0.993, the median of seeds 0 to 4 (0.990, 0.994, 0.993, 0.992 and 0.995), in mixed_bfloat16; the baseline
    has 0.943, and takes some 20 s. 12 epochs have 0.979 after 46 s of processor time on two cores of an AMD EPYC with
    AVX512_BF16, imports included. Scenes are new in every epoch; to draw one epoch's 1,024 and their maps takes 0.06 s
    of processor time. Tested on training digits that were kept aside, 6, 12 and 24 epochs have 0.916, 0.975 and 0.988
    (`tfaccel benchmark settings`, one and two seeds), which is how 24 were chosen.
"""

from pathlib import Path
from typing import Any, Literal

import numpy as np

import tfaccel
from tfaccel import data, reporting

# ---------- The model: down to a sixteenth of the size, and back up to a quarter


def build_model(images: Any, *, width: int, dropout: float, remat: bool) -> Any:
    """Raw pixel values in; for each cell of 4x4 pixels, logits of each class's heat and size and place of a box out."""
    import keras
    from keras import layers

    from tfaccel.layers import rematerialize

    def convolution(x: Any, num_filters: int, strides: int = 1, kernel_size: int = 3) -> Any:
        x = layers.Conv2D(num_filters, kernel_size, strides, padding="same", use_bias=False)(x)
        return layers.BatchNormalization(momentum=0.9)(x)

    def block(x: Any, num_filters: int, name: str) -> Any:
        """Halves the size; two convolutions and a way around them."""
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
    # Both stay float32 under mixed precision: 16 bits are too few for loss and places. Objects are rare, so that the
    # logit of a cell's heat is low before training.
    rare = keras.initializers.Constant(-4.0)
    heat = layers.Conv2D(len(images.class_names), 1, bias_initializer=rare, dtype="float32", name="heat")(x)
    boxes = layers.Conv2D(4, 1, dtype="float32", name="boxes")(x)
    return keras.Model(inputs, layers.Concatenate(dtype="float32")([heat, boxes]))


# ---------- The workload: data, model, optimizer and loss


@tfaccel.recipe()
def workload(
    *,
    # a folder in COCO's format, as said at the top; None for digits on clutter
    data_dir: tfaccel.DataPath | None = None,
    # height and width of the square to which your images are fitted, a multiple of 16 pixels; None for 128.
    # Digits have 64
    image_size: int | None = None,
    # the digits of the test scenes: those of the test part, or, to choose settings by, a fifth of the training
    # part (validation), which is then not trained on
    test_part: Literal["test", "validation"] = "test",
    width: tfaccel.Count = 32,  # filters at half of the image's size; all other layers have more, in proportion
    dropout: tfaccel.Fraction = 0.0,  # dropout rate of the last features
    remat: bool = False,  # recompute the activations of each block in the backward pass: less memory, more time
    training: tfaccel.TrainingOptions,
) -> tfaccel.Workload:
    """What this recipe trains. Images and boxes are read and checked here."""
    reporting.check_coco_library()
    images = read_images(data_dir, image_size, test_part)

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


def read_images(data_dir: tfaccel.DataPath | None, image_size: int | None, test_part: str) -> Any:
    """The scenes of digits, or the user's images."""
    if data_dir is None:
        if image_size is not None:
            raise tfaccel.WorkloadError(
                "`image_size` is for images of your own (`data_dir`); scenes of digits have 64 pixels."
            )
        return data.scenes_of_digits(test_part)
    if test_part != "test":
        raise tfaccel.WorkloadError(
            f"`test_part` is for scenes of digits; drop it for {data_dir}. Received: {test_part!r}."
        )
    size = 128 if image_size is None else image_size
    if size < 32 or size % 16:
        raise tfaccel.WorkloadError(f"`image_size` must be a multiple of 16 from 32 on. Received: image_size={size!r}.")
    return data.read_coco(data_dir, image_size=size)


# ---------- What is shown at the end: the boxes that were found in the test images


@workload.show_result
def show_result(work: tfaccel.Workload, result: tfaccel.TrainResult) -> reporting.BaselineScores:
    """Writes what was found in the test images: a picture, the boxes, and their scores beside those of windows."""
    import keras

    from tfaccel.layers import read_detections

    run_dir, images, split = Path(result.run_dir), work.data.source, work.data.test_split()
    names = images.class_names
    model = keras.models.load_model(run_dir / "model.keras", compile=False)
    found = read_detections(model.predict(split.images.astype(np.float32), batch_size=64, verbose=0))
    boxes = {"boxes": split.boxes, "labels": split.labels, "detections": found, "class_names": names}
    scores = reporting.score_boxes(**boxes)
    baselines = reporting.window_scores(images.train(0, 0), split, class_names=names)
    reporting.write_json(run_dir / "scores.json", {**scores, "baselines": baselines})
    reporting.write_json(run_dir / "detections.json", reporting.box_rows(found, class_names=names))
    reporting.save_box_picture(run_dir / "detections.png", split.images, **boxes)
    return reporting.BaselineScores(
        metric="mAP@0.5",
        score=scores["map_50"],
        baselines=baselines,
        trivial={"no boxes": 0.0},
        perfect=1.0,
        num_examples=len(found),
    )


run = workload.run
