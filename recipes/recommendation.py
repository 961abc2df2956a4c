"""Recommendation: a two-tower or deep and cross network with large id tables, next to the best possible scores.

References:
    Covington et al., Deep neural networks for YouTube recommendations, 2016, https://doi.org/10.1145/2959100.2959190
    Yi et al., Sampling-bias-corrected neural modeling, 2019, https://doi.org/10.1145/3298689.3346996 (two towers)
    Wang et al., DCN V2, 2021, https://arxiv.org/abs/2008.13535 (deep and cross network)

Command:
    tfaccel train --recipe=recommendation --run_dir=runs/clicks --set=embedding_updates=rows
    tfaccel train --recipe=recommendation --run_dir=runs/large --num_users=1000000 --num_items=200000 \
        --num_interactions=2000000 --min_rows=1 --epochs=2 --set=embedding_updates=rows --set=embeddings_on=host
    tfaccel train --recipe=recommendation --run_dir=runs/mine --data_dir=views.csv --label_column=stars \
        --positive_from=4

    The data are a CSV or Parquet file, or a folder with the tables `train` and `test`, with a row for each interaction
    of a user with an item. `embedding_updates=rows` updates only those rows of the id tables that a batch looks up;
    `embeddings_on=host` keeps the tables in main memory.

Use: `recommend("runs/mine", "anna")` in this module returns the best items for a user. For pairs in a table:
`tfaccel predict --run_dir=runs/mine --input=pairs.csv --output=probabilities.csv`.

Expected result on the generated clicks (1,000 users, 500 items, 200,000 rows for training, 50,000 for testing), with
`embedding_updates=rows`: the median AUC of five seeds and its range, log loss (nats), and CPU time in float32 on two
cores of an AMD EPYC, baselines included:
    two towers                           0.798 (0.797 to 0.798), 0.514, 21 s
    deep and cross network               0.792 (0.792 to 0.793), 0.518, 28 s
    logistic regression on ids           0.749, 0.557; popularity of items 0.696, 0.594
    best possible (true probabilities)   0.813, 0.497
"""

from pathlib import Path
from typing import Any, Literal

import tfaccel
from tfaccel import data, reporting

# ---------- The models


def build_model(name: str, clicks: Any, *, width: int, num_layers: int, dropout: float, remat: bool) -> Any:
    """Maps rows of the tables, and numbers, to the probability of a click (float32)."""
    import keras
    from keras import layers

    from tfaccel.layers import column_inputs, rematerialize

    def dense(x: Any, units: int, activation: str | None = None) -> Any:
        block = keras.Sequential([keras.Input(x.shape[1:]), layers.Dense(units, activation=activation)])
        return (rematerialize(block) if remat else block)(x)

    inputs, columns = column_inputs(clicks.table.encoding)
    for number, column in enumerate(clicks.table.encoding.categorical):
        table = layers.Embedding(column.num_codes, width, name=f"table_{number}")
        columns[column.name] = table(columns[column.name])
    parts = ([columns[one] for one in names] for names in (clicks.user_names, clicks.item_names))
    user, item = (layers.Dropout(dropout)(layers.Concatenate()(part)) for part in parts)
    if name == "two_tower":
        for _ in range(num_layers - 1):
            user, item = dense(user, 2 * width, "silu"), dense(item, 2 * width, "silu")
        user, item = dense(user, width), dense(item, width)
        # The logit stays float32 under mixed precision: 16 bits are too coarse for the loss.
        biases = [layers.Dense(1, dtype="float32")(tower) for tower in (user, item)]
        logit = layers.Add(dtype="float32")([layers.Dot(1, dtype="float32")([user, item]), *biases])
    else:
        x = first = layers.Concatenate()([user, item])
        for _ in range(num_layers):
            x = layers.Add()([layers.Multiply()([first, dense(x, first.shape[-1])]), x])
        logit = layers.Dense(1, dtype="float32")(x)
    return keras.Model(inputs, layers.Activation("sigmoid", dtype="float32", name="probability")(logit))


# ---------- The workload: data, model, optimizer and loss


@tfaccel.recipe(
    data_dir_only=(
        *("user_column", "item_column", "label_column", "positive_from"),
        *("user_features", "item_features", "column_kinds", "encoding"),
    ),
    bundled_only=("num_users", "num_items", "num_interactions"),
    optimizer="adagrad",
    learning_rate_factor=1 / 3,
)
def workload(
    *,
    # CSV or Parquet file, or folder with the tables train and test; None for clicks drawn with known probabilities
    data_dir: tfaccel.options.DataPath | None = None,
    model: Literal["two_tower", "dcn"] = "two_tower",  # two towers, or a deep and cross network
    num_users: tfaccel.options.Count = 1000,  # users of the generated clicks
    num_items: tfaccel.options.Count = 500,  # items of the generated clicks
    num_interactions: tfaccel.options.Count = 250_000,  # generated rows, of which a fifth is for testing
    user_column: str = "user",  # column with the ids of users
    item_column: str = "item",  # column with the ids of items
    label_column: str = "click",  # column with the labels: 0 and 1, or ratings
    positive_from: float = 1.0,  # a label from this number on is a click
    user_features: str = "",  # further columns that describe users, separated by commas
    item_features: str = "",  # further columns that describe items, separated by commas
    # kinds of these columns that override the detected ones, as NAME=KIND,NAME=KIND with the kinds numeric,
    # categorical, date and ignored; or the same as a dictionary
    column_kinds: str | dict[str, str] = "",
    encoding: str = "utf-8",  # text encoding of a CSV file
    min_rows: tfaccel.options.Count = 5,  # ids in fewer training rows share the row of unknown ids
    num_buckets: tfaccel.options.Count
    | None = None,  # rows that ids are hashed into, in each table; None for a row for each
    width: tfaccel.options.Count = 32,  # numbers in a row of a table, and outputs of a tower
    num_layers: tfaccel.options.Count = 1,  # layers of each tower, or cross layers
    dropout: tfaccel.options.Fraction = 0.2,  # dropout rate of embedded ids and features
    id_dropout: tfaccel.options.Fraction = 0.01,  # fraction of ids replaced by the unknown id in training
    remat: bool = False,  # recompute the activations of dense layers in the backward pass: less memory, more time
    bad_data: tfaccel.data.BadData,
    training: tfaccel.options.TrainingOptions,
) -> tfaccel.Workload:
    """Builds the workload. The interactions are read and checked here."""
    rows = {"min_rows": min_rows, "num_buckets": num_buckets}
    if data_dir is None:
        sizes = {"num_users": num_users, "num_items": num_items, "num_interactions": num_interactions}
        clicks = data.generated_clicks(**sizes, **rows)
    else:
        columns = {"user_column": user_column, "item_column": item_column, "label_column": label_column}
        features = {"user_features": user_features, "item_features": item_features, "column_kinds": column_kinds}
        reading = {**columns, **features, "positive_from": positive_from, "encoding": encoding}
        clicks = data.read_interactions(data_dir, bad_data=bad_data, **reading, **rows)
    shape = {"width": width, "num_layers": num_layers, "dropout": dropout, "remat": remat}

    def compile_args(num_steps: int) -> dict[str, Any]:
        import keras

        optimizer = training.make_optimizer(num_steps=num_steps)
        if training.optimizer == "adagrad":
            # The gradient of a row is small, since few examples of a batch have its id: Keras's 0.1 would outweigh it.
            optimizer.initial_accumulator_value = 1e-4
        # Weight decay would change every row of a table at each step, not only those of the batch.
        optimizer.exclude_from_weight_decay(var_names=["embeddings", "bias"])
        return {"optimizer": optimizer, "loss": "binary_crossentropy", "metrics": [keras.metrics.AUC(name="auc")]}

    return tfaccel.Workload(
        name=__name__,
        build_model=lambda: build_model(model, clicks, **shape),
        compile_args=compile_args,
        data=data.InteractionData(clicks, id_dropout=id_dropout),
        epochs=8,
        global_batch_size=512,
        min_replica_batch_size=512,
    )


# ---------- The results: the model next to simple baselines and, for generated clicks, the best possible scores


@workload.show_result
def show_result(work: tfaccel.Workload, result: tfaccel.TrainResult) -> reporting.BaselineScores:
    """Writes and shows the scores on the test rows.

    `auc.png` shows the area under the ROC curve after each epoch; `comparison.json` has the scores; `catalogue.json`
    the users and items, from which `recommend` chooses; `data_report.json` says how the table was preprocessed.
    """
    import keras

    run_dir, clicks = Path(result.run_dir), work.data.source
    labels, report = clicks.table.test.targets, clicks.table.report
    model = keras.models.load_model(run_dir / "model.keras", compile=False)
    network = model.predict(dict(clicks.table.test.inputs), batch_size=4096, verbose=0)[:, 0]
    baselines = reporting.click_probabilities(clicks)
    known = {} if clicks.true_probabilities is None else {"best possible": clicks.true_probabilities}
    probabilities = {"network": network, **baselines, **known}
    scores = {name: reporting.score_clicks(labels, values) for name, values in probabilities.items()}
    aucs = {name: score["AUC"] for name, score in scores.items()}
    epochs = result.history["val_auc"]
    lines = {name: [aucs[name]] * len(epochs) for name in (*list(baselines)[-1:], *known)}
    reporting.save_curve_picture(run_dir / "auc.png", {"network": epochs, **lines}, name="AUC on the test rows")
    reporting.write_json(run_dir / "comparison.json", scores)
    reporting.write_json(run_dir / "catalogue.json", clicks.catalogue.to_json())
    reporting.write_json(run_dir / "data_report.json", report.to_json())
    reporting.show_comparison(scores, heading=report.lines())
    return reporting.BaselineScores(
        metric="AUC",
        score=aucs["network"],
        baselines={name: aucs[name] for name in baselines},
        trivial={"constant": 0.5},
        perfect=aucs.get("best possible", 1.0),
        num_examples=len(labels),
    )


def recommend(run_dir: tfaccel.options.DataPath, user: str, count: int = 10) -> list[tuple[str, float]]:
    """The items that a user most probably clicks on, best first, with their probabilities, by a finished run's model.

    A new user gets what suits users without history. Raises DataError if a file is missing, or `count` is below 1.
    """
    import keras

    catalogue = data.Catalogue.load(Path(run_dir) / "catalogue.json")
    model = keras.models.load_model(Path(run_dir) / "model.keras", compile=False)
    probabilities = model.predict(catalogue.pairs(user), batch_size=4096, verbose=0)[:, 0]
    return catalogue.best(probabilities, count)


run = workload.run
