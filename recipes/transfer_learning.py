"""Transfer learning: a pre-trained network learns new classes from few images, first its head, then deeper stages.

References:
    Howard and Ruder, Universal language model fine-tuning, 2018, https://arxiv.org/abs/1801.06146 (unfreezing by
        stages, lower learning rates for deeper ones)
    Hu et al., LoRA, 2022, https://arxiv.org/abs/2106.09685 (low-rank updates of dense layers)
    Chollet, Transfer learning and fine-tuning, https://keras.io/guides/transfer_learning

Command:
    tfaccel train --recipe=transfer_learning --run_dir=runs/few
    tfaccel train --recipe=transfer_learning --run_dir=runs/mine --data_dir=FOLDER --backbone=MobileNetV2
    tfaccel train --recipe=transfer_learning --run_dir=runs/mine --data_dir=FOLDER --backbone=FILE.keras

    FOLDER has one sub-folder of PNG or JPEG files for each class; see the recipe image_classification. ImageNet weights
    of Keras's networks are downloaded once.

Result: `comparison.json`, the test accuracy beside that of the same network trained from scratch for as many steps (its
run is in the folder `from_scratch`); `curves.png`, both accuracies after each epoch; and `predictions.png`, test images
with what the model takes them for.

Expected result on the digits 5 to 9 with 20 training images each, and a network that has seen the digits 0 to 4 only
(test accuracy in %, medians of seeds 0 to 4, and the five; --epochs=5 is the default):

    epochs  steps  fine-tuned                           from scratch, at the best of its learning rates
         5     25  95.0  (95.0, 94.4, 95.0, 93.3, 96.1)  91.7  (93.9, 91.1, 91.7, 91.7, 94.4)  at 0.0015
        20    100  97.2  (97.2, 97.8, 96.7, 96.7, 97.2)  97.2  (97.2, 93.3, 97.2, 97.2, 97.2)  at 0.003
        60    300  98.3  (99.4, 99.4, 98.3, 97.8, 97.8)  98.3  (100., 97.8, 98.3, 98.3, 98.3)  at 0.006

    What was learned before saves steps here: after 100 the other network is as good, since these digits are easy. Rates
    were chosen by training images that neither network is trained on. An SVM on pixels has 96.7 %. In mixed_bfloat16.

To load `model.keras` with its optimizer elsewhere, import `tfaccel.training.staged_optimizer` before.
"""

import json
import logging
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfaccel.data.data_place import data_place
from tfaccel.data.few_digits import few_digits
from tfaccel.data.image_files import read_image_set
from tfaccel.data.image_moves import ImageMoves
from tfaccel.data.image_set import ImageSet
from tfaccel.data.raw_input import ImageInput
from tfaccel.data.train_data import train_data_of
from tfaccel.errors import WorkloadError
from tfaccel.models.backbones import DIGITS, Backbone, classifier_cost, find_backbone, load_backbone
from tfaccel.models.low_rank import with_lora
from tfaccel.planning.option_checks import check_counts, check_fractions
from tfaccel.planning.workload import Workload
from tfaccel.reporting.comparison_table import comparison_lines
from tfaccel.training.baseline_scores import BaselineScores
from tfaccel.training.files import write_json
from tfaccel.training.result import TrainResult
from tfaccel.training.run_recipe import run_recipe
from tfaccel.training.train import train
from tfaccel.training.training_options import TrainingOptions

if TYPE_CHECKING:
    import keras

logger = logging.getLogger("tfaccel")

EPOCHS = 5
GLOBAL_BATCH_SIZE = 20
RATE_PARTS = {True: 0.3, False: 0.15}  # of what suits the optimizer, for pre-trained networks and new ones
NEW_DIGITS, EXAMPLES_PER_CLASS = range(5, 10), 20
DEFAULT_IMAGE_SIZE = 96  # of networks that take any size
MOVES = ImageMoves(rotation=0.2, zoom=0.1, shift=0.1)
MOST_IMAGES_LOOKED_AT = 1000  # for the picture of predictions


# ---------- The workload. TensorFlow is imported inside its functions only, after the runtime has been set up.


@dataclass(frozen=True, kw_only=True)
class TransferWorkload(Workload):
    """A workload with what it takes to train the same network from scratch."""

    class_names: tuple[str, ...]
    validation_data: Callable[[int], Any]
    from_scratch: Callable[[], Workload] | None
    train_images: tuple[Callable[..., Any], int]  # `ImageBatches.train`, and how many there are


def workload(
    *,
    data_dir: str | os.PathLike[str] | None = None,
    image_size: int | None = None,
    backbone: str = DIGITS,
    pretrained: bool = True,
    head_width: int = 0,
    num_stages: int = 2,
    lora_rank: int | None = None,
    baseline: bool = True,
    dropout: float = 0.2,
    label_smoothing: float = 0.1,
    remat: bool = False,
    **training_options: Any,
) -> TransferWorkload:
    """What this recipe trains. The images are checked here, and decoded when they are used.

    Args:
        data_dir: a folder of images; None for the digits 5 to 9.
        image_size: height and width to which images are brought, in pixels; None for what suits the backbone.
        backbone: digits, a network of keras.applications (MobileNetV2 ...), or the path of a `.keras` file.
        pretrained: begin with the weights that the backbone has learned; otherwise with fresh ones, all of which learn
            from the start.
        head_width: of a hidden layer in the new head; 0 for none.
        num_stages: into so many stages the backbone is cut; the one nearest the head begins to learn first, and each
            deeper one has half of the learning rate before it.
        lora_rank: the backbone's dense layers and convolutions learn by low-rank updates (LoRA) of this rank in place
            of all their weights; None for no LoRA.
        baseline: train the same network from scratch as well, for comparison.
        dropout: part of the features that is left out in each step, from 0 to below 1.
        label_smoothing: part of the target that is spread over all classes, from 0 to below 1.
        remat: calculate the inside of the backbone again in the backward pass: less memory, more time.
        **training_options: optimizer, learning_rate (of the head), schedule, early_stopping and more; see
            `tfaccel.training.training_options.TrainingOptions`.

    Raises:
        DataError: if the images cannot be used; the message names the file.
        WorkloadError: if there is no such backbone, or another argument cannot be used.

    Example:
        >>> workload().num_train_examples
        100
    """
    arguments = {name: value for name, value in locals().items() if name != "training_options"} | training_options
    options = TrainingOptions.of(training_options)
    if options.learning_rate is None:
        options = replace(options, learning_rate=RATE_PARTS[pretrained] * options.peak_learning_rate)
    counts = {} if lora_rank is None else {"lora_rank": lora_rank}
    check_counts(num_stages=num_stages, **counts)
    check_fractions(dropout=dropout, label_smoothing=label_smoothing)
    if type(head_width) is not int or head_width < 0:
        raise WorkloadError(f"`head_width` must be a whole number of at least 0. Received: head_width={head_width!r}.")
    network = find_backbone(backbone)
    images = read_images(data_dir, network, image_size)
    costs = classifier_cost(network, images.image_size, len(images.class_names), head_width=head_width,
                            frozen_normalisations=pretrained)  # fmt: skip
    stages: list[Any] = []  # of the model that was built last: the weights that begin to learn later

    @cache
    def batches() -> Any:
        from tfaccel.data.image_batches import ImageBatches

        return ImageBatches(images, MOVES)

    def build_model() -> Any:
        backbone, stages[:] = features(
            images, network, pretrained=pretrained, lora_rank=lora_rank, num_stages=num_stages, remat=remat
        )
        return classifier(images, backbone, head_width=head_width, dropout=dropout)

    def compile_args(num_steps: int) -> dict[str, Any]:
        import keras

        from tfaccel.training.staged_optimizer import staged_optimizer

        loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=label_smoothing)
        optimizer = staged_optimizer(options, stages, num_steps=num_steps)
        return {"optimizer": optimizer, "loss": loss, "metrics": ["accuracy"]}

    names = ("pretrained", "head_width", "num_stages", "lora_rank", "baseline", "dropout", "label_smoothing", "remat")
    return TransferWorkload(
        name="transfer_learning",
        build_model=build_model,
        compile_args=compile_args,
        train_data=train_data_of(batches, several_epochs=True),
        train_images=(lambda *size, **options: batches().train(*size, **options), images.num_train_images),
        validation_data=lambda batch_size: batches().test(batch_size),
        callbacks=options.callbacks,
        raw_input=ImageInput.of(images),
        global_batch_size=GLOBAL_BATCH_SIZE,
        epochs=EPOCHS,
        num_train_examples=images.num_train_images,
        flops_per_example=None if costs is None else costs.flops_per_example,
        num_parameters=None if costs is None or lora_rank is not None else costs.num_parameters,
        options={
            **asdict(options),
            **{name: arguments[name] for name in names},
            "backbone": network.name,
            "data_dir": data_place(data_dir),
            "image_size": images.image_size,
        },
        class_names=images.class_names,
        from_scratch=(lambda: workload(**{**arguments, "pretrained": False, "lora_rank": None, "baseline": False}))
        if pretrained and baseline
        else None,
    )


def read_images(data_dir: str | os.PathLike[str] | None, network: Backbone, image_size: int | None) -> ImageSet:
    """The few digits, or the user's images, in a size that the network takes."""
    size = network.image_size or image_size or (8 if data_dir is None else DEFAULT_IMAGE_SIZE)
    size = max(size, network.smallest_size) if image_size is None else size
    if image_size not in (None, size) or size < network.smallest_size:
        takes = network.image_size or f"{network.smallest_size} or more"
        raise WorkloadError(f"The backbone {network.name} takes images of {takes} pixels. Received: {image_size}.")
    if data_dir is None:
        images = replace(few_digits(NEW_DIGITS, examples_per_class=EXAMPLES_PER_CLASS), image_size=size)
    else:
        images = read_image_set(data_dir, image_size=size)
    if images.num_channels > network.num_channels:
        raise WorkloadError(f"The backbone {network.name} takes grey images, but the images in {data_dir} have colors.")
    return images


# ---------- The model: the backbone's features, and a new head


def features(
    images: ImageSet, network: Backbone, *, pretrained: bool, lora_rank: int | None, num_stages: int, remat: bool
) -> tuple["keras.Model", list[Any]]:
    """The backbone, and the weights of each of its stages, which begin to learn later.

    A pre-trained backbone's batch normalisations are frozen: a few images say too little of the statistics.
    """
    import keras

    from tfaccel.training.private_api import all_layers
    from tfaccel.training.rematerialize import rematerialize
    from tfaccel.training.staged_optimizer import layer_stages

    backbone = load_backbone(network, images.image_size, pretrained=pretrained)
    for layer in all_layers(backbone):
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.trainable = not pretrained
    if lora_rank is not None:
        with_lora(backbone, lora_rank)
    if remat:  # Networks of Keras are one layer of the backbone.
        rematerialize(next((layer for layer in backbone.layers if isinstance(layer, keras.Model)), backbone))
    return backbone, layer_stages(backbone, num_stages) if pretrained else []


def classifier(images: ImageSet, backbone: "keras.Model", *, head_width: int, dropout: float) -> "keras.Model":
    """The model, from raw pixel values to logits (float32)."""
    import keras
    from keras import layers

    inputs = x = keras.Input((images.image_size, images.image_size, images.num_channels), name="pixels")
    if images.num_channels < backbone.input_shape[-1]:
        x = layers.Concatenate(name="grey_as_colors")([x] * backbone.input_shape[-1])
    x = layers.LayerNormalization(name="head_normalization")(backbone(x))
    if head_width:
        x = layers.Dense(head_width, activation="gelu", name="head_hidden")(x)
    x = layers.Dropout(dropout, name="head_dropout")(x)
    return keras.Model(inputs, layers.Dense(len(images.class_names), dtype="float32", name="head_logits")(x))


# ---------- The run: trains, trains from scratch, and sets both side by side


def run(*, run_dir: str | os.PathLike[str], **options: Any) -> TrainResult:
    """Trains, and leaves in `run_dir` what `tfaccel.train` leaves, and what the top of this file says.

    Options and errors are those of `tfaccel.train` (`plan`, `seed`, `resume`, ...) and of `workload`.
    """
    return run_recipe(workload, show_result, run_dir=run_dir, **options)


def show_result(work: TransferWorkload, result: TrainResult) -> BaselineScores:
    """Trains the same network from scratch, and writes both accuracies, their curves and a picture of predictions."""
    import keras

    from tfaccel.reporting.class_baselines import image_class_scores
    from tfaccel.reporting.curve_picture import save_curve_picture
    from tfaccel.reporting.prediction_grid import save_prediction_grid

    run_dir = Path(result.run_dir)
    model = keras.models.load_model(run_dir / "model.keras", compile=False)
    images, labels = next(work.validation_data(MOST_IMAGES_LOOKED_AT).as_numpy_iterator())
    shown = {"labels": labels.argmax(axis=1), "predictions": model.predict(images, verbose=0).argmax(axis=1)}
    save_prediction_grid(run_dir / "predictions.png", images, **shown, class_names=work.class_names)
    write_json(run_dir / "classes.json", list(work.class_names))
    ways = {"fine-tuned" if work.options["pretrained"] else "from scratch": result}
    if work.from_scratch is not None and result.plan.num_workers > 1:
        logger.warning(
            "The same network is not trained from scratch for comparison: only one of the %d workers shows results, "
            "and cannot train by itself. Train it in a run of its own: pretrained=False (--nopretrained).",
            result.plan.num_workers,
        )
    elif work.from_scratch is not None:
        config = json.loads((run_dir / "config.json").read_text())
        ways["from scratch"] = train(
            work.from_scratch(), result.plan, run_dir=run_dir / "from_scratch", epochs=config["epochs"],
            seed=config["seed"], resume="auto", verbose=0)  # fmt: skip
    compared = {way: {name: one.final[name] for name in ("accuracy", "loss")} for way, one in ways.items()}
    curves = {way: [value or 0.0 for value in one.history["val_accuracy"]] for way, one in ways.items()}
    write_json(run_dir / "comparison.json", {way: {**compared[way], "by_epoch": curves[way]} for way in ways})
    save_curve_picture(run_dir / "curves.png", curves, name="accuracy on the test images")
    scores = image_class_scores(shown["predictions"], (images, shown["labels"]), *work.train_images)
    logger.info("On the test images:\n%s\n%s", "\n".join(comparison_lines(compared)), scores.beside())
    return scores
