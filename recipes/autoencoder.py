"""Variational autoencoder on handwritten digits, or on images or a table of your own: a map, and what is strange.

References:
    Kingma and Welling, Auto-encoding variational Bayes, 2014, https://arxiv.org/abs/1312.6114
    Rezende et al., Stochastic backpropagation in deep generative models, 2014, https://arxiv.org/abs/1401.4082

Command:
    tfaccel train --recipe=autoencoder --run_dir=runs/vae
    tfaccel train --recipe=autoencoder --run_dir=runs/mine --data_dir=FOLDER
    tfaccel train --recipe=autoencoder --run_dir=runs/table --data_dir=FILE.csv

    FOLDER has one sub-folder of PNG or JPEG files for each class; see the recipe image_classification. A table is a CSV
    or Parquet file, of which the numeric columns are taken.

Result: `latent_map.png`; `anomalies.csv`, all examples, the strangest first (those with the lowest bound on their
log-likelihood); `anomalies.png`, the strangest images; and `elbo.json`: the bound (ELBO) of the test examples in nats,
that of a model of independent pixels or columns, and how well the bound tells test examples from spliced ones (the area
under the ROC curve; a spliced example has its second half from another one).

Expected result on the digits (scikit-learn's 1,797 images of 8x8 pixels, grey values taken as probabilities):
    an ELBO of -23.76 nats on the test images, the median of seeds 0 to 4 (-23.82, -23.80, -23.73, -23.74 and -23.76),
    where a mixture of independent pixels (Bernoulli, fitted by EM) has a log-likelihood of -23.03 and independent
    pixels -27.21; spliced images are told from test images with an area of 0.82, by the mixture with 0.84. A run takes
    two minutes of processor time on two cores of an AMD EPYC, in float32, imports included. On training images kept
    aside, 30, 60 and 120 epochs have losses of 24.17, 23.76 and 23.64 nats (`tfaccel benchmark settings`, three folds).
"""

import functools
import logging
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfaccel.data.data_place import data_place
from tfaccel.data.digits import digits
from tfaccel.data.epoch_positions import Shard
from tfaccel.data.image_files import read_image_set
from tfaccel.data.number_rows import read_number_rows
from tfaccel.data.table_files import CSV_SUFFIXES, PARQUET_SUFFIXES
from tfaccel.data.unlabelled import TEST, TRAIN, Unlabelled, UnlabelledImages, UnlabelledRows
from tfaccel.models.autoencoder_parts import WIDTH, autoencoder_cost, image_parts, row_parts
from tfaccel.planning.option_checks import check_counts, check_fractions
from tfaccel.planning.workload import Workload
from tfaccel.training.baseline_scores import BaselineScores
from tfaccel.training.files import write_json
from tfaccel.training.result import TrainResult
from tfaccel.training.run_recipe import run_recipe
from tfaccel.training.training_options import TrainingOptions

if TYPE_CHECKING:
    import keras

logger = logging.getLogger("tfaccel")

EPOCHS = 120
GLOBAL_BATCH_SIZE = 64
LATENT_SIZE = 8
DEFAULTS = {"learning_rate": 3e-3}
SAMPLES_PER_EXAMPLE = 16  # of the latent values, for the bound that is reported
ROWS_AT_ONCE = 512
STRANGEST_SHOWN = 40
PARTS = (TRAIN, TEST)


# ---------- The workload. TensorFlow is imported inside its functions only, after the runtime has been set up.


@dataclass(frozen=True, kw_only=True)
class AutoencoderWorkload(Workload):
    """A workload with its examples."""

    examples: Unlabelled
    latent_size: int


def workload(
    *,
    data_dir: str | os.PathLike[str] | None = None,
    image_size: int | None = None,
    encoding: str = "utf-8",
    latent_size: int = LATENT_SIZE,
    width: int = WIDTH,
    dropout: float = 0.0,
    remat: bool = False,
    **training_options: Any,
) -> AutoencoderWorkload:
    """What this recipe trains. The data are checked here; images are decoded when they are used.

    Args:
        data_dir: a folder of images, a `.npz` file of images, or a CSV or Parquet file; None for the digits.
        image_size: height and width to which images are brought, in pixels; None for what suits the data.
        encoding: of a CSV file.
        latent_size: numbers by which an example is described.
        width: filters of the first convolution; all other layers have more, in proportion, those for rows too.
        dropout: part of the hidden values of both networks that is left out in each step, from 0 to below 1.
        remat: calculate the inside of both networks again in the backward pass: less memory, more time.
        **training_options: optimizer, learning_rate, schedule, early_stopping and more; see
            `tfaccel.training.training_options.TrainingOptions`.

    Raises:
        DataError: if the data cannot be used; the message names the file, or row and column.
        WorkloadError: if another argument cannot be used.

    Example:
        >>> workload().num_train_examples
        1437
    """
    options = TrainingOptions.of({**DEFAULTS, **training_options})
    check_counts(latent_size=latent_size, width=width)
    check_fractions(dropout=dropout)
    examples = read_examples(data_dir, image_size=image_size, encoding=encoding)
    costs = autoencoder_cost(examples.shape, latent_size, width=width)

    def batches(values: Any, **part: Any) -> Any:
        from tfaccel.data.noise_batches import with_noise

        return with_noise(values, latent_size, **part).map(with_targets)

    def train_data(batch_size: int, *, seed: int, epoch: int, start_step: int = 0, shard: Shard | None = None) -> Any:
        part: dict[str, Any] = {"seed": seed, "epoch": epoch, "start_step": start_step, "shard": shard}
        return batches(examples.shuffled(batch_size, **part), global_batch_size=batch_size, **part)

    return AutoencoderWorkload(
        name="autoencoder",
        build_model=lambda: autoencoder(examples, latent_size, width, dropout=dropout, remat=remat),
        compile_args=lambda num_steps: compile_args(options, examples, num_steps=num_steps),
        train_data=train_data,
        validation_data=lambda batch_size: batches(
            examples.in_order(TEST, batch_size), global_batch_size=batch_size, seed=0, epoch=0
        ),
        callbacks=options.callbacks,
        global_batch_size=GLOBAL_BATCH_SIZE,
        epochs=EPOCHS,
        num_train_examples=examples.num_examples[TRAIN],
        flops_per_example=costs.flops_per_example,
        num_parameters=costs.num_parameters,
        options={
            **asdict(options), "data_dir": data_place(data_dir), "shape": list(examples.shape),
            "encoding": encoding, "latent_size": latent_size, "width": width, "dropout": dropout, "remat": remat,
        },
        examples=examples,
        latent_size=latent_size,
    )  # fmt: skip


def read_examples(data_dir: str | os.PathLike[str] | None, *, image_size: int | None, encoding: str) -> Unlabelled:
    """The digits, or the images or the table that the user names."""
    if data_dir is None:
        return UnlabelledImages(digits(image_size))
    if Path(data_dir).suffix.lower() in CSV_SUFFIXES + PARQUET_SUFFIXES:
        return UnlabelledRows(read_number_rows(data_dir, encoding=encoding))
    return UnlabelledImages(read_image_set(data_dir, image_size=image_size))


def with_targets(values: Any, noise: Any) -> Any:
    """Inputs and targets: the model has to give back what it sees, and its divergence has to be low."""
    return {"values": values, "noise": noise}, {"reconstruction": values, "divergence": noise[:, :1] * 0.0}


# ---------- The model: an encoder to normal distributions, and a decoder from a sample of them


def autoencoder(examples: Unlabelled, latent_size: int, width: int, *, dropout: float, remat: bool) -> "keras.Model":
    """From examples and noise to a reconstruction's parameters and the divergence from the prior (both float32).

    Example:
        >>> model = autoencoder(UnlabelledImages(digits()), 8, WIDTH, dropout=0.0, remat=False)
        >>> model.output["reconstruction"].shape, model.output["divergence"].shape
        ((None, 8, 8, 1), (None, 1))
    """
    import keras
    from keras import layers, ops

    from tfaccel.training.rematerialize import rematerialize

    def block(inputs_shape: tuple[int, ...], parts: list[Any], name: str) -> Any:
        model = keras.Sequential([keras.Input(inputs_shape), *parts], name=name)
        return rematerialize(model) if remat else model

    values, noise = keras.Input(examples.shape, name="values"), keras.Input((latent_size,), name="noise")
    encoder, decoder = image_parts(examples.shape, width) if examples.is_image else row_parts(examples.shape[0], width)
    drop = [layers.Dropout(dropout)] if dropout else []
    x = block(examples.shape, encoder, "encoder")(values)
    for layer in drop:
        x = layer(x)
    mean = layers.Dense(latent_size, dtype="float32", name="mean")(x)
    # The logarithm of the variance: kept near where exp is harmless.
    log_variance = 8 * ops.tanh(layers.Dense(latent_size, dtype="float32", name="log_variance")(x) / 8)
    sample = layers.Add(dtype="float32", name="sample")([mean, ops.exp(log_variance / 2) * noise])
    divergence = 0.5 * ops.sum(ops.exp(log_variance) + mean**2 - 1 - log_variance, axis=1, keepdims=True)
    y = block((latent_size,), decoder, "decoder")(sample)
    for layer in drop:
        y = type(layer)(dropout)(y)
    if examples.is_image:
        y = layers.Conv2D(examples.shape[2], 3, padding="same", dtype="float32", name="logits")(y)
        cut = y.shape[1] - examples.shape[0]
        y = layers.Cropping2D(((0, cut), (0, cut)), dtype="float32")(y) if cut else y
    else:
        y = layers.Dense(2 * examples.shape[0], dtype="float32", name="mean_and_scale")(y)
    return keras.Model({"values": values, "noise": noise}, {"reconstruction": y, "divergence": divergence})


# ---------- Loss and optimizer. The loss is the negative bound: what a reconstruction costs, and the divergence.


def compile_args(options: TrainingOptions, examples: Unlabelled, *, num_steps: int) -> dict[str, Any]:
    """What `Model.compile` takes; losses are in nats for each example."""
    from tfaccel.models import variational

    cost = variational.bernoulli_cost if examples.is_image else variational.normal_cost
    losses = {"reconstruction": cost, "divergence": variational.divergence_cost}
    return {"optimizer": options.make_optimizer(num_steps=num_steps), "loss": losses}


# ---------- The run: trains, and leaves the bound, a map and the strangest examples


def run(*, run_dir: str | os.PathLike[str], **options: Any) -> TrainResult:
    """Trains, and leaves in `run_dir` what `tfaccel.train` leaves, and what the top of this file says.

    Options and errors are those of `tfaccel.train` (`plan`, `seed`, `resume`, ...) and of `workload`.
    """
    return run_recipe(workload, show_result, run_dir=run_dir, **options)


def show_result(work: AutoencoderWorkload, result: TrainResult) -> BaselineScores:
    """Writes bounds, ranking and map."""
    import keras

    from tfaccel.models.variational import bounds, spliced
    from tfaccel.reporting.anomalies import save_anomalies
    from tfaccel.reporting.image_grid import save_image_grid
    from tfaccel.reporting.latent_map import save_latent_map, two_main_directions

    run_dir, examples = Path(result.run_dir), work.examples
    model = keras.models.load_model(run_dir / "model.keras", compile=False)
    measure = functools.partial(bounds, model, is_image=examples.is_image, num_samples=SAMPLES_PER_EXAMPLE)
    values = {part: np.concatenate([*examples.in_order(part, ROWS_AT_ONCE).as_numpy_iterator()]) for part in PARTS}
    elbos = {part: measure(values[part]) for part in PARTS}
    summary = compared(examples, values, elbos, measure(spliced(values[TEST])))
    write_json(run_dir / "elbo.json", summary)
    baselines = BaselineScores(
        metric="log-likelihood of a test example, in nats",
        score=summary["elbo"],
        baselines={"mixture": summary["mixture"]},
        trivial={"independent values": summary["independent"]},
        num_examples=len(values[TEST]),
    )
    logger.info("%s", baselines.beside())

    names = [name for part in PARTS for name in examples.names(part)]
    labels = {part: examples.labels(part) for part in PARTS}
    classes = [examples.class_names[label] for part in PARTS for label in labels[part]]
    scores = np.concatenate([elbos[part] for part in PARTS])
    order = save_anomalies(run_dir / "anomalies.csv", names, classes, scores)
    if examples.is_image:
        strangest = order[:STRANGEST_SHOWN]
        captions = [f"{classes[row]}: {scores[row]:.0f}" for row in strangest]
        pixels = np.concatenate([values[part] for part in PARTS])[strangest]
        save_image_grid(run_dir / "anomalies.png", pixels, captions=captions)
    noise = np.zeros((len(values[TEST]), work.latent_size), np.float32)
    means = keras.Model(model.inputs, model.get_layer("mean").output).predict(
        {"values": values[TEST], "noise": noise}, verbose=0
    )
    save_latent_map(
        run_dir / "latent_map.png",
        two_main_directions(means),
        labels=labels[TEST],
        class_names=examples.class_names,
        images=values[TEST] if examples.is_image else None,
    )
    return baselines


def compared(
    examples: Unlabelled, values: dict[str, np.ndarray], elbos: dict[str, np.ndarray], of_spliced: np.ndarray
) -> dict[str, float]:
    """The bound beside a mixture and independent values, and how well it and the mixture tell spliced examples."""
    from sklearn.metrics import roc_auc_score

    from tfaccel.models.variational import independent_log_likelihood, spliced
    from tfaccel.reporting.density_baselines import mixture_log_likelihood

    independent = independent_log_likelihood(values[TRAIN], values[TEST], is_image=examples.is_image)
    both = np.concatenate([values[TEST], spliced(values[TEST])])
    mixture = mixture_log_likelihood(values[TRAIN], both, is_image=examples.is_image)
    is_real = np.repeat([1, 0], [len(elbos[TEST]), len(of_spliced)])
    return {
        "elbo": float(elbos[TEST].mean()),
        "train_elbo": float(elbos[TRAIN].mean()),
        "independent": float(independent.mean()),
        "mixture": float(mixture[: len(elbos[TEST])].mean()),
        "auroc_of_spliced_by_mixture": float(roc_auc_score(is_real, mixture)),
        "auroc_of_spliced": float(roc_auc_score(is_real, np.concatenate([elbos[TEST], of_spliced]))),
    }
