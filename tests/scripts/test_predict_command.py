"""`tfaccel predict`: files and folders of every kind, what cannot be read, and one clear line for bad input."""

import csv
import json
import shutil

import numpy as np
import pytest
from PIL import Image

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


@pytest.fixture(scope="module")
def runs(tmp_path_factory, logical_devices):
    """Run directories of three models, and a SavedModel without a signature."""
    import keras

    folder = tmp_path_factory.mktemp("runs")

    def save(name, model, raw_input):
        (folder / name).mkdir()
        model.save(folder / name / "model.keras")
        (folder / name / "config.json").write_text(json.dumps({"recipe": name}))
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


@pytest.fixture
def predict(tmp_path, monkeypatch, capsys):
    """A function that runs the command in an empty folder: status, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")

    def run(*arguments):
        status = predict_command.run(["tfaccel predict", *arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return run


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_folder_of_images_with_one_that_is_broken(predict, runs, tmp_path):
    (tmp_path / "photos/sub").mkdir(parents=True)
    for number in range(5):
        Image.new("L", (12, 9), 255 * (number % 2)).save(tmp_path / f"photos/{number}.png")
    Image.new("RGB", (30, 30), (9, 9, 9)).save(tmp_path / "photos/sub/x.jpg")
    (tmp_path / "photos/2.png").write_text("no image")
    status, out, err = predict(f"--run_dir={runs}/images", "--input=photos", "--output=out.csv", "--rows_at_once=2")
    assert status == 1
    assert "predict: cannot predict photos/2.png: Cannot read the image photos/2.png: it is not an image" in err
    rows = rows_of(tmp_path / "out.csv")
    assert [row["input"] for row in rows] == [
        f"photos/{name}" for name in ("0.png", "1.png", "3.png", "4.png", "sub/x.jpg")
    ]
    assert [row["class"] for row in rows] == ["dark", "light", "light", "dark", "dark"]
    assert float(rows[0]["probability"]) == pytest.approx(1.0)
    assert list(rows[0]) == ["input", "class", "probability", "p(dark)", "p(light)"]
    assert out == "5 rows in out.csv (dark: 3, light: 2)\n"


def test_arrays_and_a_single_image_as_json_lines(predict, runs, tmp_path):
    np.save(tmp_path / "x.npy", np.full((3, 8, 8, 1), 255, np.uint8))
    status, out, _ = predict(f"--run_dir={runs}/images", "--input=x.npy", "--output=out.jsonl", "--json")
    assert (status, json.loads(out)["counts"]) == (0, {"light": 3})
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["input"] for line in lines] == ["0", "1", "2"]
    assert lines[0]["probabilities"]["light"] == pytest.approx(1.0)
    Image.new("L", (8, 8), 0).save(tmp_path / "one.png")
    assert predict(f"--run_dir={runs}/images", "--input=one.png", "--output=one.jsonl")[0] == 0
    assert json.loads((tmp_path / "one.jsonl").read_text())["class"] == "dark"


def test_texts_by_line_by_file_and_by_column(predict, runs, tmp_path):
    (tmp_path / "texts.txt").write_text("Good.\n\nBad, bad!\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/a.txt").write_text("bad")
    (tmp_path / "folder/b.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "table.csv").write_text("id,review\n1,good good\n2,bad\n")
    run = f"--run_dir={runs}/texts"
    assert predict(run, "--input=texts.txt", "--output=1.csv")[0] == 0
    assert [(row["input"], row["class"]) for row in rows_of(tmp_path / "1.csv")] == [
        ("texts.txt:1", "yes"),
        ("texts.txt:3", "no"),
    ]
    status, _, err = predict(run, "--input=folder", "--output=2.csv")
    assert (status, "cannot predict folder/b.txt" in err) == (1, True)
    assert [row["class"] for row in rows_of(tmp_path / "2.csv")] == ["no"]
    assert predict(run, "--input=table.csv", "--text_column=review", "--output=3.csv")[0] == 0
    assert [row["class"] for row in rows_of(tmp_path / "3.csv")] == ["yes", "no"]


def test_tables_are_encoded_as_in_training(predict, runs, tmp_path):
    (tmp_path / "rows.csv").write_text("kind;age;more\ncat;9;x\ndog;0.5;y\ncat;;z\n")
    assert predict(f"--run_dir={runs}/table", "--input=rows.csv", "--output=out.csv")[0] == 0
    assert [row["class"] for row in rows_of(tmp_path / "out.csv")] == ["no", "yes", "yes"]


STRICT = TableInput.of(
    TableEncoding(
        numeric=(NumericColumn("age", 4.0, 1.0, False),),
        categorical=(CategoricalColumn("kind", ("cat",), has_missing=False, has_rare=False),),
        target="stays",
        class_names=("no", "yes"),
    )
)


@pytest.fixture
def strict_run(runs):
    """A run of the table's model, of whose training no row missed a value or had a rare category."""
    folder = runs / "strict"
    if not folder.exists():
        shutil.copytree(runs / "table", folder)
        (folder / "raw_input.json").write_text(json.dumps(STRICT.to_json()))
    return f"--run_dir={folder}"


def test_rows_with_what_training_did_not_have_are_named_and_left_out(predict, strict_run, tmp_path):
    (tmp_path / "rows.csv").write_text("extra,kind,age\nx,cat,9\nx,cat,\nx,,\nx,dog,0.5\nx,dog,\nx,,3\n")
    status, out, err = predict(strict_run, "--input=rows.csv", "--output=out.csv")
    assert (status, out) == (1, "1 rows in out.csv (no: 1)\n")
    assert err.splitlines() == [
        "predict: 'age' is missing in 2 of 6 rows, but in no training row; these rows are not predicted",
        "predict: 'kind' is missing in 1 of 6 rows, but in no training row; these rows are not predicted",
        "predict: 'kind' has an unseen category in 2 of 6 rows; these rows are not predicted",
        "predict: cannot predict 1: it lacks 'age' (no training row does)",
        "predict: cannot predict 2: it has no value in any column that the model takes",
        "predict: cannot predict 3: it has an unseen 'kind'",
        "predict: cannot predict 4: it lacks 'age' (no training row does) and has an unseen 'kind'",
        "predict: cannot predict 5: it lacks 'kind' (no training row does)",
    ]
    assert [row["input"] for row in rows_of(tmp_path / "out.csv")] == ["0"]
    status, out, err = predict(strict_run, "--input=rows.csv", "--output=out.csv", "--unknown_values=fill", "--json")
    assert (status, json.loads(out)["num_rows"]) == (1, 5)  # The empty row has no class in any case.
    assert json.loads(out)["unreadable"] == {"2": "it has no value in any column that the model takes"}
    assert json.loads(out)["notes"][0] == (
        "'age' is missing in 2 of 6 rows, but in no training row; the median, 4, replaces it"
    )
    (tmp_path / "rows.jsonl").write_text('{"kind": "cat", "age": 9}\n{"kind": "cat", "age": null}\n')
    assert predict(strict_run, "--input=rows.jsonl", "--output=out.csv")[0] == 1
    (tmp_path / "none.csv").write_text("kind,age\n,\n")
    status, out, err = predict(strict_run, "--input=none.csv", "--output=none_out.csv")
    assert (status, err.count("\n")) == (2, 1)
    assert "Nothing could be predicted. First: 0: it has no value in any column" in err
    assert not (tmp_path / "none_out.csv").exists()


def test_unknown_categories_of_a_model_that_knows_rare_ones_are_counted(predict, runs, tmp_path):
    (tmp_path / "rows.csv").write_text("kind,age\ncat,1\ndog,\n,2\n,\n")
    status, _, err = predict(f"--run_dir={runs}/table", "--input=rows.csv", "--output=out.csv")
    assert (status, len(rows_of(tmp_path / "out.csv"))) == (1, 3)
    assert err.splitlines() == [
        "predict: 'kind' has an unseen category in 1 of 4 rows; it counts as rare",
        "predict: cannot predict 3: it has no value in any column that the model takes",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "kind,age\ncat,old\n",
            "'age' of rows.csv holds numbers, but row 1 below the header has 'old'. Fix the row; "
            "the model was trained on numbers there.",
        ),
        ("kind,age\ncat,inf\n", "row 1 below the header has 'inf'. Fix the row"),
        ("kind,age\ncat,1\ncat,1e60\n", "has 1e+60 in row 2 below the header, which float32 cannot hold."),
        ("kind,ago\ncat,1\n", "rows.csv has no column 'age'. Did you mean 'ago'?"),
        ("a,b\n1,2\n", "has no column 'age'. The model takes these too, which are not there: 'kind'. Columns: a, b."),
        (b"kind,age\nch\xe2t,1\n", "byte 0xe2 cannot be read. Say how it is encoded, for example --encoding=latin-1."),
    ],
)
def test_tables_that_do_not_fit_are_refused_in_terms_of_flags(predict, strict_run, tmp_path, content, message):
    (tmp_path / "rows.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    status, out, err = predict(strict_run, "--input=rows.csv", "--output=out.csv")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert "column_kinds" not in err and "encoding=" not in err.replace("--encoding=", "")
    if isinstance(content, bytes):
        assert (
            predict(strict_run, "--input=rows.csv", "--output=out.csv", "--encoding=latin-1", "--unknown_values=fill")[
                0
            ]
            == 0
        )


def test_order_of_columns_and_more_of_them_do_not_matter(predict, strict_run, tmp_path):
    (tmp_path / "a.csv").write_text("kind,age\ncat,9\ncat,1\n")
    (tmp_path / "b.csv").write_text("stays;age;id;kind\n;9;7;cat\n;1;7;cat\n")
    for name in "ab":
        assert predict(strict_run, f"--input={name}.csv", f"--output={name}_out.csv")[0] == 0
    assert (tmp_path / "a_out.csv").read_text() == (tmp_path / "b_out.csv").read_text()


def test_nothing_gets_a_class_without_a_probability(predict, runs, tmp_path):
    (tmp_path / "texts.jsonl").write_text('"good"\n"  "\n')
    status, _, err = predict(f"--run_dir={runs}/texts", "--input=texts.jsonl", "--output=1.csv")
    assert (status, err) == (1, "predict: cannot predict texts.jsonl:2: it holds no text\n")
    np.save(tmp_path / "x.npy", np.stack([np.zeros((8, 8, 1)), np.full((8, 8, 1), np.nan)]))
    status, _, err = predict(f"--run_dir={runs}/images", "--input=x.npy", "--output=2.csv")
    assert (status, err) == (1, "predict: cannot predict 1: the model's probability for it is nan\n")
    assert len(rows_of(tmp_path / "2.csv")) == 1
    (tmp_path / "gap.csv").write_text("a,b,c\n1,2,3\n1,,3\n")
    status, _, err = predict(f"--run_dir={runs}/numbers", "--input=gap.csv", "--output=3.csv")
    assert status == 2
    assert "gap.csv must hold a number in every field, for this model: 'b' is missing in row 2 below the header" in err


def write_litert(path, run, raw_input, rows):
    """A run's model as a LiteRT file, which says what its inputs are made of where `raw_input` is given."""
    import keras

    from tfaccel.compressing.call_signature import signature_of
    from tfaccel.compressing.litert.archive import archive_of
    from tfaccel.compressing.litert.post_training import converter_of

    model = keras.models.load_model(run / "model.keras")
    with converter_of(model, signature_of(model, rows)) as converter:
        path.write_bytes(converter.float_content + archive_of(raw_input))


@pytest.mark.slow
def test_litert_files_predict_as_their_runs(predict, runs, tmp_path):
    generator = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for number in range(3):
        Image.fromarray(generator.integers(0, 255, (9, 7), dtype=np.uint8)).save(tmp_path / "photos" / f"{number}.png")
    (tmp_path / "photos" / "9.png").write_text("no image")
    (tmp_path / "texts.txt").write_text("good good\nbad\n")
    (tmp_path / "rows.csv").write_text("kind,age\ncat,9\ndog,0.5\ncat,\n,\n")
    pixels = np.zeros((1, 8, 8, 1), "float32")
    table_rows = {"numbers": np.zeros((1, 1), "float32"), "categories": np.zeros((1, 1), "int32")}
    cases = [
        ("images", IMAGES, pixels, "photos"),
        ("texts", TEXTS, np.zeros((1, 4), "int32"), "texts.txt"),
        ("table", TABLE, table_rows, "rows.csv"),
    ]
    for name, raw_input, rows, given in cases:
        write_litert(tmp_path / f"{name}.tflite", runs / name, raw_input, rows)
        expected = predict(f"--run_dir={runs}/{name}", f"--input={given}", "--output=run.jsonl", "--quiet")
        found = predict(f"--model={name}.tflite", f"--input={given}", "--output=litert.jsonl", "--quiet")
        assert found[0] == expected[0]
        assert found[2].splitlines()[-1:] == expected[2].splitlines()[-1:]
        lines = [
            [json.loads(line) for line in (tmp_path / f"{one}.jsonl").read_text().splitlines()]
            for one in ("litert", "run")
        ]
        assert len(lines[0]) == len(lines[1]) > 1
        for a, b in zip(*lines, strict=True):
            assert (a["input"], a["class"]) == (b["input"], b["class"])
            assert a["probabilities"] == pytest.approx(b["probabilities"], abs=1e-5)
    outcome = tmp_path / "run" / "compressed"
    shutil.copytree(runs / "images", tmp_path / "run")
    outcome.mkdir()
    write_litert(outcome / "model.tflite", runs / "images", None, pixels)  # The run says what the inputs are.
    assert predict("--model=run/compressed/model.tflite", "--input=photos", "--output=1.csv")[0] == 1
    assert predict(f"--run_dir={runs}/images", "--input=photos", "--output=2.csv")[0] == 1
    classes = [[row["class"] for row in rows_of(tmp_path / f"{name}.csv")] for name in "12"]
    assert classes[0] == classes[1]


@pytest.mark.slow
def test_litert_files_that_do_not_fit_are_named(predict, runs, tmp_path):
    write_litert(tmp_path / "bare.tflite", runs / "images", None, np.zeros((1, 8, 8, 1), "float32"))
    np.save(tmp_path / "x.npy", np.full((2, 8, 8, 1), 200.0))
    np.save(tmp_path / "y.npy", np.zeros((2, 3)))
    (tmp_path / "a.png").write_text("")
    (tmp_path / "broken.tflite").write_bytes(b"0000TFL3 and no more")
    assert predict("--model=bare.tflite", "--input=x.npy", "--output=1.csv")[0] == 0
    assert list(rows_of(tmp_path / "1.csv")[0]) == ["input", "outputs_0", "outputs_1"]
    for model, given, message in [
        ("bare", "a.png", "This model takes arrays (.npy, .npz, .jsonl) of pixels of shape (8, 8, 1), float32."),
        (
            "bare",
            "y.npy",
            "pixels in y.npy must hold rows of shape (8, 8, 1), float32. Received: float64, shape (2, 3)",
        ),
        ("broken", "x.npy", "LiteRT cannot load broken.tflite: "),
    ]:
        status, out, err = predict(f"--model={model}.tflite", f"--input={given}", "--output=2.csv")
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert message in err
    from tfaccel.errors import ExportError
    from tfaccel.exporting.load_model import load_keras_model

    with pytest.raises(ExportError, match=r"bare\.tflite is a LiteRT file, which cannot be converted to a Keras model"):
        load_keras_model(tmp_path / "bare.tflite")
    (tmp_path / "bare.bin").write_bytes((tmp_path / "bare.tflite").read_bytes())
    with pytest.raises(ExportError, match=r"bare\.bin is a LiteRT file"):
        load_keras_model(tmp_path / "bare.bin")


def test_json_lines_hold_texts_rows_of_tables_or_inputs_as_they_are_served(predict, runs, tmp_path):
    (tmp_path / "texts.jsonl").write_text('"good"\n\n{"text": "Bad!", "id": 7}\n')
    assert predict(f"--run_dir={runs}/texts", "--input=texts.jsonl", "--output=1.csv")[0] == 0
    assert [(row["input"], row["class"]) for row in rows_of(tmp_path / "1.csv")] == [
        ("texts.jsonl:1", "yes"),
        ("texts.jsonl:3", "no"),
    ]
    (tmp_path / "rows.jsonl").write_text('{"kind": "cat", "age": 9}\n{"age": 0.5, "kind": "dog"}\n{"kind": "cat"}\n')
    assert predict(f"--run_dir={runs}/table", "--input=rows.jsonl", "--output=2.jsonl")[0] == 0
    lines = [json.loads(line) for line in (tmp_path / "2.jsonl").read_text().splitlines()]
    assert [line["class"] for line in lines] == ["no", "yes", "yes"]
    (tmp_path / "x.jsonl").write_text("[1, 2, 3]\n[4, 5.5, 6]\n")
    assert predict(f"--run_dir={runs}/numbers", "--input=x.jsonl", "--output=3.csv")[0] == 0
    assert rows_of(tmp_path / "3.csv")[1] == {"input": "x.jsonl:2", "sum_0": "15.5", "sum_1": "15.5"}


def test_numbers_without_classes_keep_the_names_of_the_outputs(predict, runs, tmp_path):
    (tmp_path / "rows.csv").write_text("a,b,c\n1,2,3\n4,5,6\n")
    assert predict(f"--run_dir={runs}/numbers", "--input=rows.csv", "--output=out.csv")[0] == 0
    assert rows_of(tmp_path / "out.csv")[1] == {"input": "1", "sum_0": "15", "sum_1": "15"}


def test_saved_model_predicts_as_its_run(predict, runs, tmp_path):
    from tfaccel.exporting.load_model import place_of_run
    from tfaccel.exporting.served_copy import write_served_copy

    write_served_copy(place_of_run(runs / "images"), tmp_path)
    Image.new("L", (8, 8), 255).save(tmp_path / "one.png")
    assert predict(f"--model={tmp_path}", "--input=one.png", "--output=one.csv")[0] == 0
    assert rows_of(tmp_path / "one.csv")[0]["class"] == "light"


def test_saved_model_without_a_signature_is_named(predict, tmp_path, logical_devices):
    import tensorflow as tf

    tf.saved_model.save(tf.Module(), str(tmp_path / "1"))
    np.save(tmp_path / "x.npy", np.zeros((1, 2)))
    status, _, err = predict(f"--model={tmp_path}", "--input=x.npy", "--output=o.csv")
    assert (status, "has no signature 'serving_default'. It has: no signature." in err) == (2, True)


@pytest.mark.parametrize(
    ("run", "arguments", "message"),
    [
        ("images", ["--output=o.csv"], "Give --input="),
        ("images", ["--input=x.npy"], "Give --output="),
        ("images", ["--input=nowhere", "--output=o.csv"], "There is no file or folder nowhere (--input)."),
        ("images", ["--input=x.npy", "--output=o.txt"], "The output must end in .csv or .jsonl. Received: o.txt."),
        (
            "images",
            ["--input=x.npy", "--output=no/o.csv"],
            "Cannot write no/o.csv: name a file in a folder that exists.",
        ),
        ("images", ["--input=x.npy", "--output=o.csv", "--rows_at_once=0"], "--rows_at_once must be at least 1."),
        ("images", ["--input=x.npy", "--output=o.csv"], "pixels in x.npy must hold rows of shape (8, 8, 1), float32."),
        ("images", ["--input=bad.npy", "--output=o.csv"], "Cannot read bad.npy"),
        ("images", ["--input=empty", "--output=o.csv"], "empty contains no files that end in .png, .jpg, .jpeg."),
        ("images", ["--input=none", "--output=o.csv"], "Nothing could be predicted. First: none/a.png"),
        (
            "images",
            ["--input=a.txt", "--output=o.csv"],
            "This model takes PNG and JPEG files, folders of them, or arrays",
        ),
        ("texts", ["--input=a.csv", "--output=o.csv"], "has no column 'text'"),
        ("numbers", ["--input=empty", "--output=o.csv"], "This model takes neither images nor texts"),
        ("numbers", ["--input=a.csv", "--output=o.csv"], "a.csv has 1 columns. This model takes tables of numbers"),
        ("table", ["--input=two.npz", "--output=o.csv"], "two.npz has no array 'categories'."),
        ("texts", ["--input=tokens.npy", "--output=o.csv"], "The model failed on row 1: indices[0,0] = 77 is not in"),
        (
            "numbers",
            ["--input=no.jsonl", "--output=o.csv"],
            "Line 2 of no.jsonl is not valid JSON: Expecting value (column 4",
        ),
        ("numbers", ["--input=empty.jsonl", "--output=o.csv"], "empty.jsonl is empty."),
        (
            "numbers",
            ["--input=short.jsonl", "--output=o.csv"],
            "Line 2 of short.jsonl: 'inputs' must be float32 of shape (3). Received: [1, 2].",
        ),
        (
            "texts",
            ["--input=named.jsonl", "--output=o.csv"],
            "must be a text, or an object with the text 'text' (--text_column). Did you mean 'txt'? Received: {'txt':",
        ),
        (
            "table",
            ["--input=named.jsonl", "--output=o.csv"],
            "named.jsonl has no column 'age'.",
        ),
        (
            "table",
            ["--input=short.jsonl", "--output=o.csv"],
            "Line 1 of short.jsonl must be an object with a number or a text for each column. Received: [1, 2, 3].",
        ),
    ],
)
def test_bad_input_gets_one_line_and_leaves_nothing(predict, runs, tmp_path, run, arguments, message):
    for name in ("empty", "none"):
        (tmp_path / name).mkdir()
    (tmp_path / "none/a.png").write_text("")
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "a.csv").write_text("a\n1\n")
    (tmp_path / "bad.npy").write_text("bad")
    (tmp_path / "no.jsonl").write_text("[1, 2, 3]\n[1,]\n")
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "short.jsonl").write_text("[1, 2, 3]\n[1, 2]\n")
    (tmp_path / "named.jsonl").write_text('{"txt": "good"}\n')
    np.save(tmp_path / "tokens.npy", np.array([[1, 2, 3, 4], [77, 2, 3, 4]]))
    np.save(tmp_path / "x.npy", np.zeros((2, 3)))
    np.savez(tmp_path / "two.npz", numbers=np.zeros((2, 1)), other=np.zeros((2, 1)))
    before = sorted(path.name for path in tmp_path.rglob("*"))
    status, out, err = predict(f"--run_dir={runs}/{run}", *arguments, "--quiet")
    assert (status, out) == (2, "")
    assert message in err and err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
