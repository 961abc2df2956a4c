"""Run directories of small models for `tfaccel predict`, and the command as tests run it."""

import csv
import json

from tfaccel.data.raw_input import ImageInput, TableInput, TextInput
from tfaccel.data.tables.encoding import CategoricalColumn, NumericColumn, TableEncoding
from tfaccel.data.texts.vocabulary import Vocabulary
from tfaccel.scripts import predict as predict_command

IMAGES = ImageInput(image_size=8, num_channels=1, class_names=("dark", "light"))
TEXTS = TextInput(vocabulary=Vocabulary(unit="words", tokens=("good", "bad")), num_tokens=4, class_names=("yes", "no"))
TABLE = TableInput.of(
    TableEncoding(
        numeric=(NumericColumn("age", 4.0, 1.0, True),),
        categorical=(CategoricalColumn("kind", ("cat",)),),
        target="stays",
        class_names=("no", "yes"),
    )
)

STRICT = TableInput.of(
    TableEncoding(
        numeric=(NumericColumn("age", 4.0, 1.0, False),),
        categorical=(CategoricalColumn("kind", ("cat",), has_missing=False, has_rare=False),),
        target="stays",
        class_names=("no", "yes"),
    )
)


def get_rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write_runs(folder):
    """Writes run directories of four models: `images`, `texts`, `table` and `numbers`; returns the folder."""
    import keras

    def save(name, model, raw_input):
        (folder / name).mkdir()
        model.save(folder / name / "model.keras")
        (folder / name / "config.json").write_text(json.dumps({"recipe": name}))
        (folder / name / "result.json").write_text("{}")
        if raw_input is not None:
            (folder / name / "raw_input.json").write_text(json.dumps(raw_input.to_json()))

    constant = keras.initializers.Constant
    layers = keras.layers
    light = layers.Dense(2, kernel_initializer=constant([[-1.0, 1.0]]), bias_initializer=constant([127.0, -127.0]))
    save(
        "images",
        keras.Sequential([keras.Input((8, 8, 1), name="pixels"), layers.GlobalAveragePooling2D(), light]),
        IMAGES,
    )
    table = [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [9.0, 0.0], [0.0, 9.0]]
    embedding = layers.Embedding(6, 2, embeddings_initializer=constant(table))
    words = keras.Input((4,), dtype="int32", name="words")
    save("texts", keras.Model(words, layers.GlobalAveragePooling1D()(embedding(words))), TEXTS)
    inputs = {
        "numbers": keras.Input((1,), name="numbers"),
        "categories": keras.Input((1,), dtype="int32", name="categories"),
    }
    both = layers.Concatenate()(
        [keras.ops.nan_to_num(inputs["numbers"]), keras.ops.cast(inputs["categories"], "float32")]
    )
    save(
        "table",
        keras.Model(inputs, layers.Dense(2, kernel_initializer=constant([[1.0, 0.0], [0.0, 1.0]]))(both)),
        TABLE,
    )
    save("numbers", keras.Sequential([keras.Input((3,)), layers.Dense(2, kernel_initializer="ones", name="sum")]), None)
    return folder


def in_empty_folder(folder, monkeypatch, capsys):
    """A function that runs the command in a folder: status, standard output, standard error."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")

    def run(*arguments):
        status = predict_command.run(["tfaccel predict", *arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return run
