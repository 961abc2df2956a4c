"""`tfaccel predict`: images, texts, arrays and JSON lines, what cannot be read, and one clear line for bad input."""

import json
import os

import numpy as np
import pytest
from PIL import Image
from predict_runs import TEXTS, get_rows, in_empty_folder, write_runs

from tfaccel.extras.inspection.inspect_data import inspect_data


@pytest.fixture(scope="module")
def runs(tmp_path_factory, logical_devices):
    return write_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def predict(tmp_path, monkeypatch, capsys):
    return in_empty_folder(tmp_path, monkeypatch, capsys)


def test_folder_of_images_with_one_that_is_broken(predict, runs, tmp_path):
    (tmp_path / "photos/sub").mkdir(parents=True)
    for number in range(5):
        Image.new("L", (12, 9), 255 * (number % 2)).save(tmp_path / f"photos/{number}.png")
    Image.new("RGB", (30, 30), (9, 9, 9)).save(tmp_path / "photos/sub/x.jpg")
    (tmp_path / "photos/2.png").write_text("no image")
    status, out, err = predict(f"--run_dir={runs}/images", "--input=photos", "--output=out.csv", "--rows_at_once=2")
    assert status == 1
    assert "predict: cannot predict photos/2.png: Cannot read the image photos/2.png: it is not an image" in err
    rows = get_rows(tmp_path / "out.csv")
    assert [row["input"] for row in rows] == [
        f"photos/{name}" for name in ("0.png", "1.png", "3.png", "4.png", "sub/x.jpg")
    ]
    assert [row["class"] for row in rows] == ["dark", "light", "light", "dark", "dark"]
    assert float(rows[0]["probability"]) == pytest.approx(1.0)
    assert list(rows[0]) == ["input", "class", "probability", "p(dark)", "p(light)"]
    assert out == "5 rows in out.csv (dark: 3, light: 2)\n"


def test_an_image_that_tensorflow_decodes_wrongly_is_named(predict, runs, tmp_path):
    (tmp_path / "photos").mkdir()
    image = Image.effect_noise((12, 9), 99)
    image.save(tmp_path / "photos/a.png")
    Image.merge("RGB", [image] * 3).convert("P").save(tmp_path / "photos/b.bmp")
    status, out, err = predict(f"--run_dir={runs}/images", "--input=photos", "--output=out.csv")
    assert "photos/b.bmp is a BMP image that TensorFlow cannot decode. Save it with 24 bits per pixel." in err
    assert (status, out[:16]) == (1, "1 rows in out.cs")


def test_the_output_does_not_replace_the_input(predict, runs, tmp_path):
    (tmp_path / "x.jsonl").write_text("[0.5]\n")
    status, _, err = predict(f"--run_dir={runs}/images", "--input=x.jsonl", "--output=./x.jsonl")
    assert (status, (tmp_path / "x.jsonl").read_text()) == (2, "[0.5]\n")
    assert "predict: The output would replace the input. Received: x.jsonl (--input and --output)." in err


def test_names_that_are_not_utf_8_and_files_that_are_passed_over(predict, runs, tmp_path):
    (tmp_path / "photos").mkdir()
    for name in (b"M\xfcller.png", "Müller.png".encode(), b"a.bmp", b"b.gif"):
        form = {"bmp": "BMP", "gif": "GIF"}.get(name[-3:].decode(), "PNG")
        Image.new("L", (8, 8), 255).save(os.path.join(os.fsencode(tmp_path), b"photos", name), form)
    (tmp_path / "photos" / "c.webp").touch()
    status, out, err = predict(f"--run_dir={runs}/images", "--input=photos", "--output=out.csv")
    assert "predict: Passed over in photos: 1 .webp. Files that end in .png" in err
    assert {row["input"] for row in get_rows(tmp_path / "out.csv")} == {r"photos/M\xfcller.png", "photos/Müller.png"}
    for name in ("a.bmp", "b.gif"):
        assert f"cannot predict photos/{name}: the model takes gray images, and TensorFlow does not convert this" in err
    assert (status, out) == (1, "2 rows in out.csv (light: 2)\n")


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
    assert [(row["input"], row["class"]) for row in get_rows(tmp_path / "1.csv")] == [
        ("texts.txt:1", "yes"),
        ("texts.txt:3", "no"),
    ]
    status, _, err = predict(run, "--input=folder", "--output=2.csv")
    assert (status, "cannot predict folder/b.txt" in err) == (1, True)
    assert [row["class"] for row in get_rows(tmp_path / "2.csv")] == ["no"]
    assert predict(run, "--input=table.csv", "--text_column=review", "--output=3.csv")[0] == 0
    assert [row["class"] for row in get_rows(tmp_path / "3.csv")] == ["yes", "no"]


def test_a_text_file_has_a_row_for_each_line(predict, runs, tmp_path):
    (tmp_path / "texts.txt").write_text("\ufeffgood\n\u2028 bad\x85 bad\fbad\ngood", encoding="utf-8")
    assert predict(f"--run_dir={runs}/texts", "--input=texts.txt", "--output=1.csv")[0] == 0
    assert [(row["input"], row["class"]) for row in get_rows(tmp_path / "1.csv")] == [
        ("texts.txt:1", "yes"),
        ("texts.txt:2", "no"),
        ("texts.txt:3", "yes"),
    ]
    (tmp_path / "texts.txt").write_text("\ufeffgood\nbad", encoding="utf-16-le")
    assert predict(f"--run_dir={runs}/texts", "--input=texts.txt", "--output=2.csv", "--encoding=utf-16-le")[0] == 0
    assert [row["class"] for row in get_rows(tmp_path / "2.csv")] == ["yes", "no"]


def test_texts_of_tables_are_those_of_training(predict, runs, tmp_path):
    from tfaccel.data.texts.files import read_columns
    from tfaccel.exporting.file_rows import read_rows

    lines = [f"{word},x" for word in ("None", "NA", "?", "null", " good\u2028bad ", '"two\r\nlines"')]
    (tmp_path / "t.csv").write_bytes("\r\n".join(["text,label", *lines]).encode())
    trained_on, _ = read_columns(tmp_path / "t.csv", ("text", "label"))
    assert list(read_rows(tmp_path / "t.csv", {}, TEXTS).texts) == trained_on
    assert trained_on[:4] == ["None", "NA", "?", "null"]
    report = inspect_data(tmp_path / "t.csv", text_column="text")
    assert not [finding for finding in report.findings if finding.kind == "empty text"]


def test_nothing_gets_a_class_without_a_probability(predict, runs, tmp_path):
    (tmp_path / "texts.jsonl").write_text('"good"\n"  "\n')
    status, _, err = predict(f"--run_dir={runs}/texts", "--input=texts.jsonl", "--output=1.csv")
    assert (status, err) == (1, "predict: cannot predict texts.jsonl:2: it holds no text\n")
    np.save(tmp_path / "x.npy", np.stack([np.zeros((8, 8, 1)), np.full((8, 8, 1), np.nan)]))
    status, _, err = predict(f"--run_dir={runs}/images", "--input=x.npy", "--output=2.csv")
    assert (status, err) == (1, "predict: cannot predict 1: the model's probability for it is nan\n")
    assert len(get_rows(tmp_path / "2.csv")) == 1
    (tmp_path / "gap.csv").write_text("a,b,c\n1,2,3\n1,,3\n")
    status, _, err = predict(f"--run_dir={runs}/numbers", "--input=gap.csv", "--output=3.csv")
    assert status == 2
    assert "gap.csv must hold a number in every field, for this model: 'b' is missing in row 2 below the header" in err


def test_json_lines_hold_texts_rows_of_tables_or_inputs_as_they_are_served(predict, runs, tmp_path):
    (tmp_path / "texts.jsonl").write_text('"good"\n\n{"text": "Bad!", "id": 7}\n')
    assert predict(f"--run_dir={runs}/texts", "--input=texts.jsonl", "--output=1.csv")[0] == 0
    assert [(row["input"], row["class"]) for row in get_rows(tmp_path / "1.csv")] == [
        ("texts.jsonl:1", "yes"),
        ("texts.jsonl:3", "no"),
    ]
    (tmp_path / "rows.jsonl").write_text('{"kind": "cat", "age": 9}\n{"age": 0.5, "kind": "dog"}\n{"kind": "cat"}\n')
    assert predict(f"--run_dir={runs}/table", "--input=rows.jsonl", "--output=2.jsonl")[0] == 0
    lines = [json.loads(line) for line in (tmp_path / "2.jsonl").read_text().splitlines()]
    assert [line["class"] for line in lines] == ["no", "yes", "yes"]
    (tmp_path / "x.jsonl").write_text("[1, 2, 3]\n[4, 5.5, 6]\n")
    assert predict(f"--run_dir={runs}/numbers", "--input=x.jsonl", "--output=3.csv")[0] == 0
    assert get_rows(tmp_path / "3.csv")[1] == {"input": "x.jsonl:2", "sum_0": "15.5", "sum_1": "15.5"}


def test_numbers_without_classes_keep_the_names_of_the_outputs(predict, runs, tmp_path):
    (tmp_path / "rows.csv").write_text("a,b,c\n1,2,3\n4,5,6\n")
    assert predict(f"--run_dir={runs}/numbers", "--input=rows.csv", "--output=out.csv")[0] == 0
    assert get_rows(tmp_path / "out.csv")[1] == {"input": "1", "sum_0": "15", "sum_1": "15"}
    (tmp_path / "rows.csv").write_text("a,b,c\n16777214,1,0\n0.1,0,0\n")
    assert predict(f"--run_dir={runs}/numbers", "--input=rows.csv", "--output=out.csv")[0] == 0
    assert [np.float32(row["sum_0"]) for row in get_rows(tmp_path / "out.csv")] == [16777215, np.float32(0.1)]


def test_saved_model_predicts_as_its_run(predict, runs, tmp_path):
    from tfaccel.exporting.export import write_served_copy
    from tfaccel.exporting.load_model import place_of_run

    write_served_copy(place_of_run(runs / "images"), tmp_path)
    Image.new("L", (8, 8), 255).save(tmp_path / "one.png")
    assert predict(f"--model={tmp_path}", "--input=one.png", "--output=one.csv")[0] == 0
    assert get_rows(tmp_path / "one.csv")[0]["class"] == "light"


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
        (
            "images",
            ["--input=empty", "--output=o.csv"],
            "empty contains no files that end in .png, .jpg",
        ),
        ("images", ["--input=none", "--output=o.csv"], "Nothing could be predicted. First: none/a.png"),
        (
            "images",
            ["--input=a.txt", "--output=o.csv"],
            "This model takes images (.png, .jpg, .jpeg, .bmp, .gif), folders of them, or arrays",
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
        (
            "texts",
            ["--input=wide.npy", "--output=o.csv"],
            "words in wide.npy has 4294967297, which int32, the dtype of this input, cannot hold.",
        ),
        ("texts", ["--input=half.npy", "--output=o.csv"], "words in half.npy has 1.5, which int32, the dtype of this"),
        ("texts", ["--input=nan.npy", "--output=o.csv"], "words in nan.npy has nan, which int32, the dtype of this"),
        ("numbers", ["--input=huge.npy", "--output=o.csv"], "in huge.npy has 1e+300, which float32, the dtype of this"),
        ("numbers", ["--input=huge.csv", "--output=o.csv"], "huge.csv has 1e+39, which float32, the dtype of this"),
        (
            "numbers",
            ["--input=huge.jsonl", "--output=o.csv"],
            "Line 1 of huge.jsonl: 'inputs' has 1e+39, which float32",
        ),
        (
            "texts",
            ["--input=surrogate.jsonl", "--output=o.csv"],
            "Line 1 of surrogate.jsonl has half of a character. Received: 'a\\ud800'.",
        ),
        (
            "table",
            ["--input=twice.jsonl", "--output=o.csv"],
            "Line 1 of twice.jsonl cannot be read: 'age' is there",
        ),
        ("texts", ["--input=zero.txt", "--output=o.csv"], "zero.txt, line 2: it holds a zero byte. Fix the line."),
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
    np.save(tmp_path / "wide.npy", np.full((1, 4), 2**32 + 1))
    np.save(tmp_path / "half.npy", np.full((1, 4), 1.5))
    np.save(tmp_path / "nan.npy", np.full((1, 4), np.nan))
    np.save(tmp_path / "huge.npy", np.full((1, 3), 1e300))
    (tmp_path / "huge.csv").write_text("a,b,c\n1,1e39,1\n")
    (tmp_path / "huge.jsonl").write_text("[1, 1e39, 1]\n")
    (tmp_path / "twice.jsonl").write_text('{"age": 1, "kind": "cat", "age": 2}\n')
    (tmp_path / "zero.txt").write_text("good\nb\0d\n")
    (tmp_path / "surrogate.jsonl").write_text('"a\\ud800"\n')
    np.save(tmp_path / "x.npy", np.zeros((2, 3)))
    np.savez(tmp_path / "two.npz", numbers=np.zeros((2, 1)), other=np.zeros((2, 1)))
    before = sorted(path.name for path in tmp_path.rglob("*"))
    status, out, err = predict(f"--run_dir={runs}/{run}", *arguments, "--quiet")
    assert (status, out) == (2, "")
    assert message in err and err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
