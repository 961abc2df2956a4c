"""Faults of data that are easily overlooked: targets told by a column, stray numbers, COCO folders, texts, labels."""

import json

import numpy as np
import pytest
from PIL import Image, ImageDraw

from tfaccel.errors import DataError
from tfaccel.extras.inspection.inspect_data import inspect_data
from tfaccel.extras.inspection.table import outliers

pytestmark = pytest.mark.usefixtures("logical_devices")


def found(report):
    """Kind of finding -> the places where it was found."""
    kinds = {}
    for finding in report.findings:
        kinds.setdefault(finding.kind, []).append(finding.where)
    return kinds


def write_csv(path, columns):
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]))
    return path


def test_columns_that_tell_a_class(tmp_path):
    generator = np.random.default_rng(0)
    number = generator.integers(0, 3, 300)
    kind = np.array(["cat", "dog", "cow"])[number]
    flipped = np.where(np.arange(300) % 100 == 0, "none", kind)
    columns = {
        "copy": kind,
        "code": 7 * number + 2,
        "nearly": flipped,
        "noisy": number + 0.001 * generator.normal(size=300),
        "group": [f"{name}_{row % 5}" for row, name in enumerate(kind)],
        "useful": number + generator.normal(size=300),
        "color": generator.choice(["red", "blue"], 300),
        "kind": kind,
    }
    kinds = found(inspect_data(write_csv(tmp_path / "t.csv", columns), target="kind"))
    assert kinds["tells the target"] == ["copy", "code", "nearly", "noisy", "group"]


def test_columns_that_tell_a_number(tmp_path):
    generator = np.random.default_rng(0)
    price = generator.normal(size=300)
    columns = {
        "copy": price,
        "in_cents": 100 * price + 7,
        "risen": np.exp(price),
        "square": np.where(price < 0, -1, 1) * price**2,
        "noisy": price + 0.001 * generator.normal(size=300),
        "wave": np.round(np.arccos(np.cos(price)), 6),
        "useful": price + 0.3 * generator.normal(size=300),
        "other": generator.normal(size=300),
        "price": price,
    }
    kinds = found(inspect_data(write_csv(tmp_path / "t.csv", columns), target="price"))
    assert kinds["tells the target"] == ["copy", "in_cents", "risen", "square", "noisy"]
    price[:30] = np.nan
    columns = {"size": generator.normal(size=300), "price": ["" if np.isnan(one) else one for one in price]}
    report = inspect_data(write_csv(tmp_path / "t.csv", columns), target="price")
    [finding] = report.findings
    assert (finding.kind, finding.where, finding.text) == (
        "missing target",
        "price",
        "30 of 300 rows do not say what to predict",
    )


def test_numbers_that_stand_apart(tmp_path):
    generator = np.random.default_rng(0)
    columns = {
        "age": generator.integers(20, 80, 99).tolist() + [9999],
        "temperature": [-999, *generator.normal(size=99)],
        "year": [2024, *generator.integers(1990, 2020, 99)],
        "city": ["Rome", "Oslo", "", "Bern"] * 25,
        "count": generator.poisson(1, 100),
    }
    report = inspect_data(write_csv(tmp_path / "t.csv", columns))
    assert found(report) == {"outlier": ["age", "temperature"], "missing values": ["city"]}
    texts = {finding.where: finding for finding in report.findings}
    assert "9999 in row 100; the others are from" in texts["age"].text
    assert "-999 in row 1; the others" in texts["temperature"].text
    assert texts["city"].advice == "They form a separate category."


@pytest.mark.parametrize("seed", range(3))
def test_long_tails_are_no_outliers(seed):
    generator = np.random.default_rng(seed)
    tails = [
        generator.lognormal(0, 1.5, 500),
        generator.standard_t(2, 500),
        generator.exponential(size=500),
        generator.normal(size=19),
        np.where(generator.random(500) < 0.9, 0, generator.lognormal(3, 1, 500)),
        np.where(generator.random(500) < 0.01, 1.0, 0.0),
        np.full(30, np.nan),
    ]
    assert [outliers("x", values) for values in tails] == [[]] * len(tails)


def test_dates_are_dates(tmp_path):
    days = np.datetime64("2024-01-01") + np.arange(60)
    columns = {
        "day": days,
        "either": [f"{row % 12 + 1:02}/{row % 11 + 1:02}/{1900 + row}" for row in range(60)],
        "id": [f"a{row}" for row in range(60)],
    }
    report = inspect_data(write_csv(tmp_path / "t.csv", columns))
    assert [about["kind"] for about in report.columns.values()] == ["date", "ignored", "ignored"]
    assert found(report) == {"dates of two readings": ["either"], "nearly distinct texts": ["id"]}


def draw_shapes(folder, *, num_images, noise, wrong=()):
    """Circles, squares and crosses at random places; `wrong` ones lie in the next class's folder."""
    generator = np.random.default_rng(0)
    names = ["circle", "square", "cross"]
    for name in names:
        (folder / name).mkdir(parents=True)
    for number in range(num_images):
        kind = number % 3
        image = Image.new("L", (32, 32), int(generator.integers(0, 80)))
        draw, radius, light = ImageDraw.Draw(image), int(generator.integers(6, 11)), int(generator.integers(150, 255))
        x, y = generator.integers(radius, 32 - radius, 2).tolist()
        box = [x - radius, y - radius, x + radius, y + radius]
        if kind == 0:
            draw.ellipse(box, fill=light)
        elif kind == 1:
            draw.rectangle(box, fill=light)
        else:
            draw.line(box, fill=light, width=4)
            draw.line([box[0], box[3], box[2], box[1]], fill=light, width=4)
        pixels = np.clip(np.asarray(image) + generator.normal(0, noise, (32, 32)), 0, 255).astype(np.uint8)
        place = folder / names[(kind + (number in wrong)) % 3]
        Image.fromarray(pixels).save(place / f"{number:03}.png")


def test_wrong_labels_of_few_images_are_named_and_right_ones_are_not(tmp_path):
    wrong = {7, 60, 110, 161}
    draw_shapes(tmp_path / "shapes", num_images=240, noise=10, wrong=wrong)
    named = found(inspect_data(tmp_path / "shapes"))["probable label error"]
    numbers = {int(name[-7:-4]) for name in named}
    assert len(numbers & wrong) >= 3
    assert len(numbers - wrong) <= 1


def test_labels_that_a_simple_classifier_cannot_check_are_left_in_peace(tmp_path):
    draw_shapes(tmp_path / "shapes", num_images=150, noise=90)
    report = inspect_data(tmp_path / "shapes")
    [finding] = report.findings
    assert finding.kind == "labels not checked"
    assert "a simple classifier gives the label of" in finding.text
    draw_shapes(tmp_path / "few", num_images=27, noise=5, wrong={3})  # Nine of a class are too few to say anything.
    assert set(found(inspect_data(tmp_path / "few"))) == {"small class"}


def test_all_findings_are_in_the_report(tmp_path):
    generator = np.random.default_rng(0)
    number = np.arange(600) % 3
    wrong = set(generator.choice(600, 45, replace=False).tolist())
    kind = ["abc"[(one + (row in wrong)) % 3] for row, one in enumerate(number)]
    columns = {
        "a": 3 * number + generator.normal(0, 0.3, 600),
        "b": 5 * (number == 1) + generator.normal(0, 0.3, 600),
        "kind": kind,
    }
    named = found(inspect_data(write_csv(tmp_path / "t.csv", columns), target="kind"))["probable label error"]
    rows = {int(name.split()[1]) - 1 for name in named}
    assert rows <= wrong
    assert len(rows) == len(named) > 20


def coco(folder, name, images, annotations, categories=("cat", "dog")):
    content = {
        "images": [{"id": key, "file_name": file} for key, file in images],
        "annotations": annotations,
        "categories": [{"id": key, "name": one} for key, one in enumerate(categories)],
    }
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(content))


def box(key, image, category, *bbox):
    return {"id": key, "image_id": image, "category_id": category, "bbox": list(bbox)}


@pytest.mark.parametrize("name", ["annotations.json", "annotations/instances_train2017.json", "labels.json"])
def test_faults_of_coco_folders_are_found(tmp_path, name):
    (tmp_path / "images").mkdir()
    generator = np.random.default_rng(0)
    for number in range(6):
        pixels = generator.integers(0, 255, (20, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{number}.png")
    (tmp_path / "images" / "5.png").write_bytes(b"broken")
    (tmp_path / "images" / "4.png").write_bytes((tmp_path / "images" / "3.png").read_bytes())
    boxes = [
        box(1, 0, 0, 2, 3, 10, 10),
        box(2, 1, 1, 25, 3, 10, 10),
        box(3, 2, 0, 5, 5, 0, 4),
        box(4, 77, 0, 1, 1, 2, 2),
        box(5, 3, 9, 1, 1, 2, 2),
        box(6, 0, 0, 2, 3, 10, 10),
        box(7, 3, 1, 1, 1, 5, 5),
    ]
    coco(tmp_path, name, [(key, f"{key}.png") for key in range(7)], boxes, ("cat", "dog", "cow"))
    report = inspect_data(tmp_path)
    file = name.rpartition("/")[2]
    kinds = found(report)
    assert kinds.pop("small class") == ["cat", "dog"]
    assert kinds == {
        "unreadable file": [str(tmp_path / "images" / "5.png")],
        "missing file": ["6.png"],
        "box outside": [f"annotation 2 in {file}"],
        "box without area": [f"annotation 3 in {file}"],
        "unknown entry": [f"annotation 4 in {file}", f"annotation 5 in {file}"],
        "duplicate box": [f"annotation 6 in {file}"],
        "images without boxes": [file],
        "empty class": ["cow"],
        "duplicate": [f"{tmp_path / 'images' / '3.png'}, {tmp_path / 'images' / '4.png'}"],
    }
    assert (report.kind, report.class_counts) == ("images with boxes", {"cat": 2, "dog": 2})
    assert report.num_examples == {"train": 5}


def test_one_class_is_said_to_be_one(tmp_path):
    (tmp_path / "images").mkdir()
    for number in range(12):
        Image.fromarray(np.full((8, 8), 20 * number, np.uint8)).save(tmp_path / "images" / f"{number}.png")
    (tmp_path / "labels.txt").write_text("cat")
    assert found(inspect_data(tmp_path)) == {"other files": [str(tmp_path)], "one class": ["images"]}


def test_a_text_is_inspected(tmp_path):
    line = "The quick brown fox jumps over the lazy dog, and home again.\n"
    (tmp_path / "a.txt").write_text(line + "\ufffd\x07 and so on\n" + line + "short\nshort\n")
    report = inspect_data(tmp_path / "a.txt")
    assert (report.kind, report.num_examples) == ("text", {"train": 1})
    assert report.shape.endswith("different, in 5 lines")
    assert found(report) == {"odd characters": [str(tmp_path / "a.txt")], "duplicate": [f"lines of {tmp_path}/a.txt"]}
    assert "U+0007 1 times, U+FFFD 1 times" in report.findings[0].text
    (tmp_path / "b.txt").write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match=r"b\.txt is not written in utf-8: .* Or give its --encoding"):
        inspect_data(tmp_path / "b.txt")
    assert inspect_data(tmp_path / "b.txt", encoding="latin-1").findings == ()
    (tmp_path / "c.txt").write_text(" \n")
    with pytest.raises(DataError, match="holds no text"):
        inspect_data(tmp_path / "c.txt")
