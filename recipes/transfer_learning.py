"""Transfer learning: fine-tunes a pretrained network on few images of new classes, head first, then deeper stages.

References:
    Howard and Ruder, Universal language model fine-tuning, 2018, https://arxiv.org/abs/1801.06146 (gradual
        unfreezing, lower learning rates for deeper stages)
    Hu et al., LoRA, 2022, https://arxiv.org/abs/2106.09685 (low-rank updates of dense layers)
    Chollet, Transfer learning and fine-tuning, https://keras.io/guides/transfer_learning

Command:
    tfaccel train --recipe=transfer_learning --run_dir=runs/few
    tfaccel train --recipe=transfer_learning --run_dir=runs/mine --data_dir=FOLDER --backbone=MobileNetV2
    tfaccel train --recipe=transfer_learning --run_dir=runs/mine --data_dir=FOLDER --backbone=FILE.keras
    tfaccel train --recipe=transfer_learning --run_dir=runs/mine --data_dir=FOLDER --backbone=PRESET

    FOLDER has one subfolder of image files per class; see the recipe image_classification. ImageNet weights of
    Keras applications are downloaded once. PRESET is a folder that KerasHub's `save_to_preset` wrote, or a name that
    KerasHub downloads, such as resnet_50_imagenet.

Result: `comparison.json`, the test accuracy next to that of the same network trained from scratch for as many steps
(its run is in the folder `from_scratch`); `curves.png`, both accuracies after each epoch; and `predictions.png`, test
images with their predicted classes.

Expected result on the digits 5 to 9 with 20 training images each, with a network pretrained on the digits 0 to 4 only
(test accuracy in %, median of seeds 0 to 4, and all five; --epochs=5 is the default):

    epochs  steps  fine-tuned                           from scratch, at its best learning rate
         5     25  95.0  (95.0, 94.4, 95.0, 93.3, 96.1)  91.7  (93.9, 91.1, 91.7, 91.7, 94.4)  at 0.0015
        20    100  97.2  (97.2, 97.8, 96.7, 96.7, 97.2)  97.2  (97.2, 93.3, 97.2, 97.2, 97.2)  at 0.003
        60    300  98.3  (99.4, 99.4, 98.3, 97.8, 97.8)  98.3  (100., 97.8, 98.3, 98.3, 98.3)  at 0.006

    Pretraining saves steps here: after 100, training from scratch is as good, since these digits are easy. Learning
    rates were chosen on held-out training images. An SVM on pixels reaches 96.7 %. In mixed_bfloat16.

To load `model.keras` with its optimizer elsewhere, import `staged_optimizer` from `tfaccel.layers` first.
"""

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import tfaccel
from tfaccel import data, reporting
from tfaccel.layers import find_backbone

RATE_FACTORS = {True: 0.3, False: 0.15}  # of the optimizer's default learning rate, by `pretrained`


# ---------- The model: the backbone's features, and a new head


def build_model(images: Any, backbone: Any, *, head_width: int, dropout: float) -> Any:
    """Maps raw pixel values to one logit (float32) per class. The backbone returns one vector per image."""
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


# ---------- The workload: data, model, optimizer and loss


@tfaccel.recipe(learning_rate_factor=lambda pretrained: RATE_FACTORS[pretrained])
def workload(
    *,
    data_dir: tfaccel.options.DataPath | None = None,  # folder of images; None for the digits 5 to 9
    # height and width to resize images to, in pixels; None for the backbone's default
    image_size: int | None = None,
    # digits, a network of keras.applications (MobileNetV2 ...), the path of a `.keras` file, or a preset of KerasHub
    backbone: str = "digits",
    # start from the backbone's pretrained weights; otherwise from random ones, all trainable from the first step
    pretrained: bool = True,
    head_width: int = 0,  # units of a hidden layer in the new head; 0 for none
    # number of stages of the backbone; they are unfrozen one after another, the one nearest the head first, and each
    # deeper one trains at half the learning rate of the one before
    num_stages: tfaccel.options.Count = 2,
    # train the backbone's dense layers and convolutions by low-rank updates (LoRA) of this rank instead of all
    # their weights; None for no LoRA
    lora_rank: tfaccel.options.Count | None = None,
    baseline: bool = True,  # also train the same network from scratch, for comparison
    dropout: tfaccel.options.Fraction = 0.2,  # dropout rate of the features
    label_smoothing: tfaccel.options.Fraction = 0.1,  # fraction of the target spread evenly over all classes
    remat: bool = False,  # recompute the activations of the backbone in the backward pass: less memory, more time
    bad_data: tfaccel.data.BadData,
    training: tfaccel.options.TrainingOptions,
) -> tfaccel.Workload:
    """Builds the workload. The images are checked here and decoded when first used."""
    if head_width < 0:
        raise tfaccel.errors.WorkloadError(
            f"`head_width` must be a whole number of at least 0. Received: {head_width=}."
        )
    network = find_backbone(backbone)
    if data_dir is None:
        size = network.size_of_images(image_size, default=8)
        images = dataclasses.replace(data.few_digit_images(range(5, 10), examples_per_class=20), image_size=size)
    else:
        images = data.read_image_set(
            data_dir, image_size=network.size_of_images(image_size, default=96), bad_data=bad_data
        )
        network.check_channels(images.num_channels, data_dir)
    stages: list[Any] = []  # the weights of each later stage, of the model that was built last

    def built() -> Any:
        from tfaccel.layers import layer_stages, prepared_backbone

        how = {"pretrained": pretrained, "lora_rank": lora_rank, "remat": remat}
        features = prepared_backbone(network, images.image_size, **how)
        stages[:] = layer_stages(features, num_stages) if pretrained else []
        return build_model(images, features, head_width=head_width, dropout=dropout)

    def compile_args(num_steps: int) -> dict[str, Any]:
        import keras

        from tfaccel.layers import staged_optimizer

        return {
            "optimizer": staged_optimizer(training, stages, num_steps=num_steps),
            "loss": keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=label_smoothing),
            "metrics": ["accuracy"],
        }

    return tfaccel.Workload(
        name=__name__,
        build_model=built,
        compile_args=compile_args,
        data=data.Batches(
            images,
            lambda: data.ImageBatches(images, data.ImageMoves()),
            num_train_examples=images.num_train_images,
            several_epochs=True,
            takes_every=True,
            raw_input=data.ImageInput.of(images),
        ),
        options={"backbone": network.name},  # for a file or folder, its absolute path
        epochs=5,
        global_batch_size=20,
        bfloat16_on_cpu=True,
    )


# ---------- The results: the network next to the same one trained from scratch


@workload.show_result
def show_result(work: tfaccel.Workload, result: tfaccel.TrainResult) -> reporting.BaselineScores:
    """Trains the same network from scratch, and writes both accuracies, their curves and a picture of predictions."""
    import keras

    run_dir, images = Path(result.run_dir), work.data.source
    model = keras.models.load_model(run_dir / "model.keras", compile=False)
    pixels, labels = next(work.validation_data(1000).as_numpy_iterator())
    predictions = model.predict(pixels, verbose=0).argmax(axis=1)
    shown = {"labels": labels.argmax(axis=1), "predictions": predictions, "class_names": images.class_names}
    reporting.save_prediction_grid(run_dir / "predictions.png", pixels, **shown)
    reporting.write_json(run_dir / "classes.json", list(images.class_names))
    ways = {"fine-tuned" if work.options["pretrained"] else "from scratch": result}
    if work.options["pretrained"] and work.options["baseline"]:
        ways |= from_scratch(work, result)
    compared = {way: {name: one.final[name] for name in ("accuracy", "loss")} for way, one in ways.items()}
    curves = {way: [value or 0.0 for value in one.history["val_accuracy"]] for way, one in ways.items()}
    found = {way: {**compared[way], "by_epoch": curves[way]} for way in ways}
    reporting.write_json(run_dir / "comparison.json", found)
    reporting.save_curve_picture(run_dir / "curves.png", curves, name="accuracy on the test images")
    reporting.show_comparison(compared, heading=["On the test images:"])
    return reporting.image_class_scores(predictions, (pixels, labels), work.data.made().train, images.num_train_images)


def from_scratch(work: tfaccel.Workload, result: tfaccel.TrainResult) -> dict[str, tfaccel.TrainResult]:
    """Trains the same network from random weights; returns nothing if there are several workers."""
    if result.plan.num_workers > 1:
        logging.getLogger("tfaccel").warning(
            "Skipping the comparison with training from scratch: only one of the %d workers shows results, "
            "and it cannot train alone. Start a separate run with pretrained=False (--nopretrained).",
            result.plan.num_workers,
        )
        return {}
    config = json.loads(Path(result.run_dir, "config.json").read_text())
    changed = {"pretrained": False, "lora_rank": None, "baseline": False, "learning_rate_factor": RATE_FACTORS[False]}
    run = {"epochs": config["epochs"], "seed": config["seed"], "resume": "auto", "verbose": 0}
    fresh = workload(**{**work.options, **changed})
    return {"from scratch": tfaccel.train(fresh, result.plan, run_dir=Path(result.run_dir, "from_scratch"), **run)}


run = workload.run
