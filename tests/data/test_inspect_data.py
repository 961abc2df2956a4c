"""Inspection of tables, images and texts: faults that were planted are found, and sound data are left in peace."""

import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tfaccel.errors import DataError
from tfaccel.extras.inspection.findings import Examples, InspectionReport, balance, copies, finished
from tfaccel.extras.inspection.inspect_data import inspect_data

pytestmark = pytest.mark.usefixtures("logical_devices")


def found(report):
    """Kind of finding -> the places where it was found."""
    kinds = {}
    for finding in report.findings:
        kinds.setdefault(finding.kind, []).append(finding.where)
    return kinds


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# ---------- Tables


def flowers(seed, num_rows=80):
    """Rows of three kinds of flowers that are easily told apart, as lists of texts."""
    generator = np.random.default_rng(seed)
    rows = []
    for row in range(num_rows):
        kind = row % 3
        length, width = generator.normal([3 * kind, 10 - 2 * kind], 0.3)
        color = ("red", "blue", "white")[int(generator.integers(3))]
        rows.append([f"{length:.4f}", f"{2 * length + 1:.4f}", f"{width:.4f}", color, "sunny", "abc"[kind]])
    return rows


HEADER = ["length", "double", "width", "color", "weather", "kind"]


def write_table(path, rows):
    path.write_text("\n".join(",".join(row) for row in [HEADER, *rows]))


def test_faults_of_tables_are_found(tmp_path):
    train, test = flowers(0), flowers(1, 20)
    train[10][2] = ""  # missing
    train[21][-1] = "b"  # wrong: row 21 is of kind a
    train.append(train[5])  # duplicate
    train.append([*train[6][:-1], "c"])  # the same row, another label
    test[4] = train[30]  # leak
    write_table(tmp_path / "train.csv", train)
    write_table(tmp_path / "test.csv", test)
    before = contents(tmp_path)
    report = inspect_data(tmp_path, target="kind")
    kinds = found(report)
    assert kinds["missing values"] == ["width"]
    assert kinds["constant column"] == ["weather"]
    assert kinds["correlated columns"] == ["length, double"]
    assert kinds["duplicate"] == ["row 6 of train.csv, row 81 of train.csv"]
    assert kinds["conflicting labels"] == ["row 7 of train.csv, row 82 of train.csv"]
    assert kinds["leak"] == ["row 31 of train.csv, row 5 of test.csv"]
    assert "row 22 of train.csv" in kinds["probable label error"]
    assert len(kinds["probable label error"]) <= 2  # Row 82, or row 7, is wrong too.
    assert report.num_examples == {"train": 82, "test": 20}
    assert report.columns["width"]["num_missing"] == 1
    assert report.class_counts == {"a": 26, "b": 28, "c": 28}
    assert sum(report.class_counts[name] * weight for name, weight in report.class_weights.items()) == pytest.approx(82)
    assert report.fits_in_memory
    assert contents(tmp_path) == before


def test_sound_table_is_left_in_peace(tmp_path):
    rows = [
        [*row[:1], str(number % 7), *row[2:4], "sunny" if number % 2 else "rain", row[-1]]
        for number, row in enumerate(flowers(2))
    ]
    write_table(tmp_path / "t.csv", rows)
    assert inspect_data(tmp_path / "t.csv", target="kind").findings == ()


def test_text_among_numbers_is_a_finding_here(tmp_path):
    rows = flowers(0)
    rows[3][0] = "long"
    write_table(tmp_path / "t.csv", rows)
    report = inspect_data(tmp_path / "t.csv")
    [finding] = [finding for finding in report.findings if finding.kind == "text among numbers"]
    assert (finding.where, finding.text) == ("length", "1 values are not numbers, first 'long' in row 4")
    assert report.class_counts == {}


def test_numbers_to_predict_have_no_classes(tmp_path):
    write_table(tmp_path / "t.csv", flowers(0))
    assert inspect_data(tmp_path / "t.csv", target="width").class_counts == {}


def test_unequal_and_small_classes(tmp_path):
    rows = [row for row in flowers(0, 120) if row[-1] != "b"] + flowers(5, 9)
    write_table(tmp_path / "t.csv", [row for row in rows if row[-1] != "b" or float(row[0]) > 0])
    report = inspect_data(tmp_path / "t.csv", target="kind")
    assert found(report)["small class"] == ["b"]
    assert found(report)["unequal classes"] == ["labels"]
    assert report.class_weights["b"] > 5 * report.class_weights["a"]


# ---------- Images


def draw_images(folder, *, seed=0, num_each=20):
    """Two classes of noisy images: bright above, bright below."""
    generator = np.random.default_rng(seed)
    for label, rows in (("above", slice(0, 8)), ("below", slice(8, 16))):
        (folder / label).mkdir(parents=True)
        for number in range(num_each):
            pixels = generator.integers(0, 60, (16, 16, 3), dtype=np.uint8)
            pixels[rows] += 150
            Image.fromarray(pixels).save(folder / label / f"{number:02}.png")


def test_faults_of_images_are_found(tmp_path):
    draw_images(tmp_path / "train")
    draw_images(tmp_path / "test", seed=1, num_each=5)
    train, test = tmp_path / "train", tmp_path / "test"
    (train / "above" / "03.png").rename(train / "below" / "wrong.png")
    (train / "above" / "copy.png").write_bytes((train / "above" / "04.png").read_bytes())
    Image.open(train / "below" / "07.png").save(test / "below" / "leak.png", compress_level=1)
    broken = train / "above" / "05.png"
    broken.write_bytes(broken.read_bytes()[:200])
    (train / "below" / "no_image.jpg").write_text("hello")
    (train / "below" / "notes.txt").write_text("hello")
    Image.new("L", (30, 20)).save(test / "above" / "large.png")
    before = contents(tmp_path)
    report = inspect_data(tmp_path)
    kinds = found(report)
    assert kinds["unreadable file"] == [str(broken), str(train / "below" / "no_image.jpg")]
    assert kinds["duplicate"] == [f"{train / 'above' / '04.png'}, {train / 'above' / 'copy.png'}"]
    assert kinds["leak"] == [f"{train / 'below' / '07.png'}, {test / 'below' / 'leak.png'}"]
    assert str(train / "below" / "wrong.png") in kinds["probable label error"]
    assert len(kinds["probable label error"]) <= 2
    assert kinds["other files"] == [str(train / "below")]
    assert kinds["mixed sizes"] == ["images"]
    assert (report.kind, report.shape, report.class_counts) == ("images", "16x16x3", {"above": 19, "below": 21})
    assert contents(tmp_path) == before


def test_empty_class_and_sound_images(tmp_path):
    draw_images(tmp_path)
    assert inspect_data(tmp_path).findings == ()
    (tmp_path / "beside").mkdir()
    assert found(inspect_data(tmp_path)) == {"empty class": [str(tmp_path / "beside")]}


def test_image_arrays(tmp_path):
    generator = np.random.default_rng(0)
    labels = np.arange(60) % 2
    images = generator.integers(0, 50, (60, 8, 8), dtype=np.uint8) + np.uint8(150) * labels[:, None, None].astype(
        np.uint8
    )
    images[55] = images[7]  # copied from the training part into the test part
    labels[20] = 1
    np.savez(tmp_path / "d.npz", x_train=images[:40], y_train=labels[:40], x_test=images[40:], y_test=labels[40:])
    report = inspect_data(tmp_path / "d.npz")
    assert found(report)["leak"] == ["image 7 of x_train, image 15 of x_test"]
    assert found(report)["probable label error"] == ["image 20 of x_train"]
    assert (report.num_bytes, report.shape) == (60 * 64, "8x8x1")


# ---------- Texts

WORDS = {"cats": "purr whisker milk paw claw tail nap mouse", "ships": "sail mast deck harbor anchor wave hull crew"}


def passages(label, seed, num=15):
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(WORDS[label].split(), 12)) for _ in range(num)]


def test_faults_of_text_folders_are_found(tmp_path):
    for seed, label in enumerate(WORDS):
        (tmp_path / label).mkdir()
        for number, text in enumerate(passages(label, seed)):
            (tmp_path / label / f"{number:02}.txt").write_text(text)
    (tmp_path / "cats" / "wrong.txt").write_text(passages("ships", 9, 1)[0])
    (tmp_path / "ships" / "copy.txt").write_text("  " + (tmp_path / "ships" / "03.txt").read_text().upper())
    (tmp_path / "ships" / "broken.txt").write_bytes(b"anchor \xff\xfe")
    (tmp_path / "ships" / "empty.txt").write_text(" \n")
    report = inspect_data(tmp_path)
    kinds = found(report)
    assert kinds["probable label error"] == [str(tmp_path / "cats" / "wrong.txt")]
    assert kinds["duplicate"] == [f"{tmp_path / 'ships' / '03.txt'}, {tmp_path / 'ships' / 'copy.txt'}"]
    assert kinds["unreadable file"] == [str(tmp_path / "ships" / "broken.txt")]
    assert kinds["empty text"] == [str(tmp_path / "ships" / "empty.txt")]
    assert (report.kind, report.shape) == ("texts", "12 words (median), at most 12")


def test_text_tables(tmp_path):
    rows = [(text, label) for seed, label in enumerate(WORDS) for text in passages(label, seed)]
    rows[4] = (rows[4][0], "ships")
    (tmp_path / "train.csv").write_text("\n".join(["words,label", *map(",".join, rows)]))
    (tmp_path / "test.csv").write_text("\n".join(["words,label", ",".join(rows[20])]))
    kinds = found(inspect_data(tmp_path, target="label", text_column="words"))
    assert kinds == {"leak": ["row 21 of train.csv, row 1 of test.csv"], "probable label error": ["row 5 of train.csv"]}


# ---------- What cannot be read, and the parts


def test_bad_input_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"There is no file or folder .*nowhere"):
        inspect_data(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"holds no data: no table called train, and no class folders"):
        inspect_data(tmp_path)
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.png").write_text("no image")
    with pytest.raises(DataError, match=r"None of the 1 images in .* can be read; the first is .*1\.png"):
        inspect_data(tmp_path)
    (tmp_path / "loose.png").write_text("")
    with pytest.raises(
        DataError, match=re.escape("a file that ends in .csv, .tsv, .parquet, .pq, .npz, .txt, .md, .rst.")
    ):
        inspect_data(tmp_path / "loose.png")
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"has no column 'kind'"):
        inspect_data(tmp_path / "t.csv", target="kind")
    (tmp_path / "d.npz").write_text("broken")
    with pytest.raises(DataError, match=r"Cannot read .*d\.npz"):
        inspect_data(tmp_path / "d.npz")


def test_all_copies_are_named():
    names = tuple(map(str, range(40)))
    findings = copies(Examples(names, np.array(["train"] * 40), tuple(row // 2 for row in range(40))))
    assert len(findings) == 20
    assert (findings[-1].kind, findings[-1].where) == ("duplicate", "38, 39")
    [finding] = copies(Examples(names, np.array(["train"] * 40), (0,) * 40))
    assert finding.where == ", ".join(names)


def test_labels_that_are_missing_or_unknown():
    labels = np.array(["a"] * 10 + ["b"] * 10 + [None, "c"], dtype=object)
    parts = np.array(["train"] * 21 + ["test"])
    counts, _, findings = balance(Examples(("",) * 22, parts, tuple(range(22)), labels))
    assert counts == {"a": 10, "b": 10}
    assert [finding.kind for finding in findings] == ["missing label", "unknown class"]


def test_sets_larger_than_half_of_the_memory():
    one = Examples(("a",), np.array(["train"]), (0,))
    report = InspectionReport(path="a", kind="text", shape="")
    large, small = (finished(replace(report, num_bytes=size), one) for size in (10**18, 1))
    assert 0 < large.memory_bytes < 10**18
    assert "GiB that are free" in large.findings[0].text
    assert small.findings == ()


def test_progress_is_told(tmp_path):
    write_table(tmp_path / "t.csv", flowers(0))
    told = []
    inspect_data(tmp_path / "t.csv", target="kind", progress=lambda *what: told.append(what))
    assert ("Columns", 0, 6) in told
    assert told[-1] == ("Labels, by cross-validation", 0, 1)


def test_names_that_would_move_the_cursor_are_escaped(tmp_path, capsys):
    from tfaccel.scripts.main import main

    odd = "a\x1b[31m\x9b"
    (tmp_path / f"{odd}.csv").write_text(f"{odd},kind\n" + f"1,{odd}\n2,z\n" * 10, encoding="utf-8")
    assert main(["tfaccel", "inspect-data", f"--data_dir={tmp_path}/{odd}.csv", "--target=kind"]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "\x9b" not in shown and r"a\x1b[31m\x9b" in shown
