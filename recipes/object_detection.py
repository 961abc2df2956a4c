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

import functools
import logging
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tfaccel.data.boxed_images import BoxedImages
from tfaccel.data.coco_files import read_coco
from tfaccel.data.data_place import data_place
from tfaccel.data.digit_scenes import TEST_SEEDS, digit_scenes
from tfaccel.data.image_moves import ImageMoves
from tfaccel.data.train_data import train_data_of
from tfaccel.errors import WorkloadError
from tfaccel.planning.layer_costs import LayerCost, layer_cost
from tfaccel.planning.option_checks import check_choice, check_counts, check_fractions
from tfaccel.planning.workload import Workload
from tfaccel.reporting.coco_scores import check_coco_library, coco_scores
from tfaccel.training.baseline_scores import BaselineScores
from tfaccel.training.files import write_json
from tfaccel.training.result import TrainResult
from tfaccel.training.run_recipe import run_recipe
from tfaccel.training.training_options import TrainingOptions

if TYPE_CHECKING:
    import keras

logger = logging.getLogger("tfaccel")

EPOCHS = 24
GLOBAL_BATCH_SIZE = 32
IMAGE_SIZE = 128  # of images of your own
MOVES = ImageMoves(rotation=0.0, zoom=0.2, shift=0.1)  # of images of your own; scenes are new in every epoch
WIDTH = 32  # filters at half of the image's size
ROWS_AT_ONCE = 64
FIRST_HEAT = -4.0  # the logit of a cell before training: objects are rare


# ---------- The workload. TensorFlow is imported inside its functions only, after the runtime has been set up.


@dataclass(frozen=True, kw_only=True)
class DetectionWorkload(Workload):
    """A workload with its images."""

    images: BoxedImages
    batches: Callable[[], Any]


def workload(
    *,
    data_dir: str | os.PathLike[str] | None = None,
    image_size: int | None = None,
    test_part: Literal["test", "validation"] = "test",
    width: int = WIDTH,
    dropout: float = 0.0,
    remat: bool = False,
    **training_options: Any,
) -> DetectionWorkload:
    """What this recipe trains. Images and boxes are read and checked here.

    Args:
        data_dir: a folder in COCO's format, as said at the top; None for digits on clutter.
        image_size: height and width of the square to which your images are fitted, a multiple of 16 pixels; None for
            128. Digits have 64.
        test_part: the digits of the test scenes: those of the test part, or, to choose settings by, a fifth of the
            training part (validation), which is then not trained on.
        width: filters at half of the image's size; all other layers have more, in proportion.
        dropout: part of the features that is left out in each step, from 0 to below 1.
        remat: calculate the inside of each block again in the backward pass: less memory, more time.
        **training_options: optimizer, learning_rate, schedule, early_stopping and more; see
            `tfaccel.training.training_options.TrainingOptions`.

    Raises:
        DataError: if the data cannot be used; the message names the entry.
        VersionError: if pycocotools is not installed.
        WorkloadError: if another argument cannot be used.

    Example:
        >>> workload().num_train_examples
        1024
    """
    check_coco_library()
    options = TrainingOptions.of(training_options)
    check_counts(width=width)
    check_fractions(dropout=dropout)
    check_choice("test_part", test_part, tuple(TEST_SEEDS))
    images = read_images(data_dir, image_size, test_part)
    costs = cost(images, width)

    @functools.cache
    def batches() -> Any:
        from tfaccel.data.box_batches import BoxBatches

        return BoxBatches(images, None if data_dir is None else MOVES)

    return DetectionWorkload(
        name="object_detection",
        build_model=lambda: detector(images, width, dropout=dropout, remat=remat),
        compile_args=lambda num_steps: compile_args(options, num_steps=num_steps),
        train_data=train_data_of(batches),
        validation_data=lambda batch_size: batches().test(batch_size),
        callbacks=options.callbacks,
        global_batch_size=GLOBAL_BATCH_SIZE,
        epochs=EPOCHS,
        num_train_examples=images.num_train_images,
        flops_per_example=costs.flops_per_example,
        num_parameters=costs.num_parameters,
        options={
            **asdict(options), "data_dir": data_place(data_dir), "image_size": images.image_size,
            "test_part": test_part, "width": width, "dropout": dropout, "remat": remat,
        },
        images=images,
        batches=batches,
    )  # fmt: skip


def read_images(data_dir: str | os.PathLike[str] | None, image_size: int | None, test_part: str) -> BoxedImages:
    """The scenes of digits, or the user's images."""
    if data_dir is None:
        if image_size is not None:
            raise WorkloadError("`image_size` is for images of your own (`data_dir`); scenes of digits have 64 pixels.")
        return digit_scenes(test_part)
    if test_part != "test":
        raise WorkloadError(f"`test_part` is for scenes of digits; drop it for {data_dir}. Received: {test_part!r}.")
    size = IMAGE_SIZE if image_size is None else image_size
    if type(size) is not int or size < 32 or size % 16:
        raise WorkloadError(f"`image_size` must be a multiple of 16 from 32 on. Received: image_size={size!r}.")
    return read_coco(data_dir, image_size=size)


# ---------- The model: down to a sixteenth of the size, and back up to a quarter


def filters(width: int) -> tuple[int, ...]:
    """The filters at a half, a quarter, an eighth and a sixteenth of the image's size.

    Example:
        >>> filters(32)
        (32, 48, 96, 128)
    """
    return width, 3 * width // 2, 3 * width, 4 * width


def detector(images: BoxedImages, width: int, *, dropout: float, remat: bool) -> "keras.Model":
    """Raw pixel values in; for each cell of 4x4 pixels, logits of each class's heat, and size and place of a box out.

    Example:
        >>> detector(digit_scenes(), WIDTH, dropout=0.0, remat=False).output.shape
        (None, 16, 16, 14)
    """
    import keras
    from keras import layers

    from tfaccel.data.box_batches import NUM_BOX_CHANNELS
    from tfaccel.training.rematerialize import rematerialize

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
    for number, num_filters in enumerate(filters(width)[1:]):
        x = block(x, num_filters, f"down_{number}")
        ways.append(x)
    for way in ways[-2::-1]:
        x = layers.UpSampling2D()(layers.ReLU()(convolution(x, way.shape[-1], 1, 1)))
        x = layers.ReLU()(convolution(layers.Add()([x, way]), way.shape[-1]))
    x = layers.Dropout(dropout)(layers.ReLU()(convolution(x, 2 * width)))
    # Both stay float32 under mixed precision: 16 bits are too few for loss and places.
    first = keras.initializers.Constant(FIRST_HEAT)
    heat = layers.Conv2D(len(images.class_names), 1, bias_initializer=first, dtype="float32", name="heat")(x)
    boxes = layers.Conv2D(NUM_BOX_CHANNELS, 1, dtype="float32", name="boxes")(x)
    return keras.Model(inputs, layers.Concatenate(dtype="float32")([heat, boxes]))


def cost(images: BoxedImages, width: int) -> LayerCost:
    """Multiplications of one image's forward pass, and the number of trainable parameters.

    Example:
        >>> cost(digit_scenes(), WIDTH).num_parameters
        587790
    """
    size, num_filters = images.image_size // 2, width
    costs = layer_cost(25 * images.num_channels, num_filters, positions=size**2, per_unit=2)
    ways = []
    for deeper in filters(width)[1:]:
        size //= 2
        for inputs in (9 * num_filters, 9 * deeper, num_filters):
            costs += layer_cost(inputs, deeper, positions=size**2, per_unit=2)
        num_filters = deeper
        ways.append((deeper, size))
    for higher, larger in ways[-2::-1]:
        costs += layer_cost(num_filters, higher, positions=size**2, per_unit=2)
        costs += layer_cost(9 * higher, higher, positions=larger**2, per_unit=2)
        num_filters, size = higher, larger
    costs += layer_cost(9 * num_filters, 2 * width, positions=size**2, per_unit=2)
    return costs + layer_cost(2 * width, len(images.class_names) + 4, positions=size**2)


def compile_args(options: TrainingOptions, *, num_steps: int) -> dict[str, Any]:
    """What `Model.compile` takes."""
    from tfaccel.models.centre_detector import detection_loss

    return {"optimizer": options.make_optimizer(num_steps=num_steps), "loss": detection_loss}


# ---------- The run: trains, and leaves the boxes that were found in the test images


def run(*, run_dir: str | os.PathLike[str], **options: Any) -> TrainResult:
    """Trains, and leaves in `run_dir` what `tfaccel.train` leaves, and what the top of this file says.

    Options and errors are those of `tfaccel.train` (`plan`, `seed`, `resume`, ...) and of `workload`.
    """
    return run_recipe(workload, show_result, run_dir=run_dir, **options)


def show_result(work: DetectionWorkload, result: TrainResult) -> BaselineScores:
    """Writes what was found in the test images: a picture, the boxes, and their scores beside those of windows."""
    import keras

    from tfaccel.models.centre_detector import read_detections
    from tfaccel.reporting.box_picture import save_box_picture
    from tfaccel.reporting.detection_baselines import window_scores

    run_dir, names = Path(result.run_dir), work.images.class_names
    model = keras.models.load_model(run_dir / "model.keras", compile=False)
    split = work.batches().test_split()
    maps = model.predict(split.images.astype(np.float32), batch_size=ROWS_AT_ONCE, verbose=0)
    found = read_detections(maps)
    truth = {"boxes": split.boxes, "labels": split.labels}
    scores = coco_scores(**truth, detections=found, class_names=names)
    baselines = window_scores(work.images.train(0, 0), split, class_names=names)
    write_json(run_dir / "scores.json", {**scores, "baselines": baselines})
    rows = [
        {
            "image_id": image,
            "category": names[label],
            "bbox": [*map(float, (*box[:2], *(box[2:] - box[:2])))],
            "score": float(score),
        }
        for image, one in enumerate(found)
        for box, label, score in zip(one.boxes, one.labels, one.scores, strict=True)
    ]
    write_json(run_dir / "detections.json", rows)
    picture = run_dir / "detections.png"
    save_box_picture(picture, split.images, **truth, detections=found, class_names=names)
    compared = BaselineScores(
        metric="mAP@0.5",
        score=scores["map_50"],
        baselines=baselines,
        trivial={"no boxes": 0.0},
        perfect=1.0,
        num_examples=len(found),
    )
    logger.info("%s; mAP@0.5:0.95 %.3f; see %s", compared.beside(*baselines), scores["map"], picture)
    return compared
