"""Tabular classification: a regularized network on numeric and categorical columns, next to gradient boosting.

References:
    Gorishniy et al., Revisiting deep learning models for tabular data, 2021, https://arxiv.org/abs/2106.11959
    Kadra et al., Well-tuned simple nets excel on tabular datasets, 2021, https://arxiv.org/abs/2106.11189
    Guo and Berkhahn, Entity embeddings of categorical variables, 2016, https://arxiv.org/abs/1604.06737
    Cheng et al., Wide and deep learning, 2016, https://arxiv.org/abs/1606.07792 (the parallel linear path)

Command:
    tfaccel train --recipe=tabular_classification --run_dir=runs/cancer
    tfaccel train --recipe=tabular_classification --run_dir=runs/wine --data=wine
    tfaccel train --recipe=tabular_classification --run_dir=runs/mine --data_dir=customers.csv --target=stays

    The data are a CSV or Parquet file, or a folder with the tables `train` and `test`.

Expected result:
    On breast cancer (scikit-learn's 569 rows; a stratified 114 are held out for testing): 97.4 % accuracy with each of
    five seeds; logistic regression reaches 97.4 %, gradient boosting 96.5 %. On wine (178 rows; 36 for testing):
    97.2 %, one error, like gradient boosting; logistic regression makes none. A run takes 6 s of CPU time on two cores
    of an AMD EPYC, in float32, gradient boosting included.
"""

from pathlib import Path
from typing import Any, Literal

import numpy as np

import tfaccel
from tfaccel import reporting
from tfaccel.data import TableData

# ---------- The model: hidden layers with a parallel linear path


def build_model(table: Any, *, width: int, num_layers: int, dropout: float, remat: bool) -> Any:
    """Maps raw numbers (NaN if missing) and category ids to one logit (float32) per class."""
    import keras
    from keras import layers

    from tfaccel.layers import rematerialize, table_inputs

    inputs, features = table_inputs(table.encoding)
    num_classes, x = len(table.encoding.class_names), features
    for number in range(num_layers):
        dense = layers.Dense(width, kernel_initializer="he_normal")
        hidden = [keras.Input(x.shape[1:]), dense, layers.Activation("silu")]
        block = keras.Sequential(hidden, name=f"hidden_{number}")
        x = layers.Dropout(dropout)((rematerialize(block) if remat else block)(x))
    # Logits stay float32 under mixed precision: 16 bits are too coarse for the loss.
    deep = layers.Dense(num_classes, dtype="float32", name="deep")(x)
    wide = layers.Dense(num_classes, use_bias=False, kernel_initializer="zeros", dtype="float32", name="wide")(features)
    return keras.Model(inputs, layers.Add(dtype="float32", name="logits")([deep, wide]))


# ---------- The workload: data, model, optimizer and loss


@tfaccel.recipe(
    data_dir_only=("target", "encoding"), bundled_only=("data",), learning_rate_factor=0.3, decay_per_run=7.5
)
def workload(
    *,
    # scikit-learn table to use if `data_dir` is None
    data: Literal["breast_cancer", "wine"] = "breast_cancer",
    data_dir: tfaccel.options.DataPath | None = None,  # CSV or Parquet file, or folder with the tables train and test
    target: str | None = None,  # column to predict
    # column kinds that override the detected ones, as NAME=KIND,NAME=KIND with the kinds numeric, categorical, date
    # and ignored; or the same as a dictionary
    column_kinds: str | dict[str, str] = "",
    encoding: str = "utf-8",  # text encoding of a CSV file
    # equal weights for all classes (balanced) or all rows (none); auto: balanced if class sizes differ more than 3-fold
    class_weights: Literal["auto", "balanced", "none"] = "auto",
    width: tfaccel.options.Count = 64,  # units per hidden layer
    num_layers: tfaccel.options.Count = 2,  # number of hidden layers
    dropout: tfaccel.options.Fraction = 0.3,  # dropout rate of the hidden layers
    label_smoothing: tfaccel.options.Fraction = 0.1,  # fraction of the target spread evenly over all classes
    remat: bool = False,  # recompute the activations of each layer in the backward pass: less memory, more time
    bad_data: tfaccel.data.BadData,
    training: tfaccel.options.TrainingOptions,
) -> tfaccel.Workload:
    """Builds the workload. The table is read and checked here."""
    reading = {"target": target, "column_kinds": column_kinds, "encoding": encoding, "class_weights": class_weights}
    rows = TableData(data_dir, embedded=data, classification=True, bad_data=bad_data, **reading)
    shape = {"width": width, "num_layers": num_layers, "dropout": dropout, "remat": remat}

    def compile_args(num_steps: int) -> dict[str, Any]:
        import keras

        return {
            "optimizer": training.make_optimizer(num_steps=num_steps),
            "loss": keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=label_smoothing),
            "metrics": ["accuracy"],
        }

    return tfaccel.Workload(
        name=__name__,
        build_model=lambda: build_model(rows.source, **shape),
        compile_args=compile_args,
        data=rows,
        epochs=60,
        global_batch_size=32,
    )


# ---------- The results: the model next to gradient boosting and logistic regression


@workload.show_result
def show_result(work: tfaccel.Workload, result: tfaccel.TrainResult) -> reporting.BaselineScores:
    """Writes and shows the scores on the test rows.

    `predictions.png` shows the confusion matrices; `comparison.json` has the scores; `data_report.json` says how the
    table was preprocessed; `preprocessing.json` has the encoding of its columns. To classify new rows:
    `tfaccel predict --run_dir=RUN_DIR --input=new.csv --output=classes.csv`.
    """
    import keras

    run_dir, table = Path(result.run_dir), work.data.source
    names, labels = table.encoding.class_names, table.test.targets
    model = keras.models.load_model(run_dir / "model.keras", compile=False)
    network = reporting.softmax(model.predict(dict(table.test.inputs), verbose=0))
    probabilities = {"network": network, **reporting.table_class_probabilities(table)}
    scores = {name: reporting.score_classes(labels, values) for name, values in probabilities.items()}
    reporting.save_confusions(run_dir / "predictions.png", labels, probabilities, class_names=names)
    reporting.write_json(run_dir / "comparison.json", scores)
    reporting.write_json(run_dir / "preprocessing.json", table.encoding.to_json())
    reporting.write_json(run_dir / "data_report.json", table.report.to_json())
    reporting.show_comparison(scores, heading=table.report.lines())
    accuracies = {name: score["accuracy"] for name, score in scores.items()}
    return reporting.BaselineScores(
        metric="accuracy",
        score=accuracies.pop("network"),
        baselines=accuracies,
        trivial={"most frequent class": float(np.bincount(labels).max() / len(labels))},
        is_fraction=True,
        num_examples=len(labels),
    )


run = workload.run
