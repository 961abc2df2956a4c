"""Bad input to the recipes gets exit status 2 and one clear line, and leaves nothing behind."""

import json

import numpy as np
import pytest
from PIL import Image

from tfaccel.data.images.files import read_image_set
from tfaccel.scripts import train as train_command

TABLES = ("tabular_classification", "tabular_regression")
IMAGES = ("image_classification", "transfer_learning", "gan", "autoencoder")
NO_ENCODING = "There is no encoding 'utf-99'. Common ones: utf-8, "
WRONG_ENCODING = "latin.csv is not written in utf-8: byte 0xf6 cannot be read. It is in line 1. Say how it is encoded"
TEXT = "Column 'x' of text.csv holds numbers, but row 41 below the header has 'heavy'."


def case(recipe, data_dir, message, *arguments):
    return pytest.param([f"--recipe={recipe}", f"--data_dir={data_dir}", *arguments], message, id=f"{recipe} {message}")


CASES = [
    *(
        case(recipe, "good.csv", "good.csv has no column 'prices'. Did you mean 'price'?", "--target=prices")
        for recipe in TABLES
    ),
    *(
        case(recipe, "text.csv", TEXT, "--target=price", *more)
        for recipe in TABLES
        for more in ([], ["--column_kinds=x=numeric"])
    ),
    *(case(recipe, "good.csv", NO_ENCODING, "--target=price", "--encoding=utf-99") for recipe in TABLES),
    *(case(recipe, "latin.csv", WRONG_ENCODING, "--target=price") for recipe in TABLES),
    *(
        case(recipe, "few.csv", "A batch takes 32 examples, but there are 16 to train on.", f"--target={target}")
        for recipe, target in zip(TABLES, ("kind", "price"), strict=True)
    ),
    case(
        "sequence_forecasting", "good.csv", "good.csv has no column 'rime'. Did you mean 'time'?", "--time_column=rime"
    ),
    case(
        "sequence_forecasting",
        "good.csv",
        "good.csv has no column 'pric'. Did you mean 'price'?",
        "--time_column=time",
        "--target=pric",
    ),
    case("sequence_forecasting", "text.csv", TEXT, "--time_column=time"),
    case("sequence_forecasting", "good.csv", NO_ENCODING, "--time_column=time", "--encoding=utf-99"),
    case("sequence_forecasting", "latin.csv", WRONG_ENCODING, "--time_column=time"),
    case(
        "sequence_forecasting",
        "few.csv",
        "few.csv has 14 rows to train on and 4 to test with; a window of 64",
        "--time_column=time",
    ),
    case(
        "sequence_forecasting",
        "good.csv",
        "A batch takes 512 examples, but there are 57 to train on.",
        "--time_column=time",
        "--global_batch_size=512",
    ),
    *(
        case("recommendation", file, message, "--user_column=time", "--item_column=kind", "--label_column=price", *more)
        for file, message, more in (
            ("good.csv", "good.csv has no column 'tiem'. Did you mean 'time'?", ["--user_column=tiem"]),
            ("good.csv", "of at least positive_from=900 are clicks, and the rows of", ["--positive_from=900"]),
            ("good.csv", NO_ENCODING, ["--encoding=utf-99"]),
            ("good.csv", "Received: 'time' twice. Name it once in user_column", ["--item_features=x,time"]),
            ("text.csv", TEXT, ["--label_column=x"]),
            ("few.csv", "A batch takes 512 examples, but there are 16 to train on.", ["--positive_from=9"]),
        )
    ),
    case("autoencoder", "text.csv", TEXT),
    case("autoencoder", "good.csv", NO_ENCODING, "--encoding=utf-99"),
    case("autoencoder", "latin.csv", WRONG_ENCODING),
    case("autoencoder", "few.csv", "A batch takes 64 examples, but there are 16 to train on."),
    *(
        case(
            recipe,
            "empty_class",
            "The class folder empty_class/b holds no image: no file that ends in .png, .jpg, .jpeg, .bmp, .gif.",
        )
        for recipe in IMAGES
    ),
    *(
        case(recipe, "few", "examples, but there are 9 to train on. Use a global batch size of at most 9.")
        for recipe in IMAGES
    ),
    *(
        case(recipe, "mixed.npz", "must hold images of one shape. Received: (8, 8, 1) and (8, 9, 1).")
        for recipe in IMAGES
    ),
    case("object_detection", "broken_json", "Cannot read broken_json/annotations.json: Expecting value: line 1"),
    case("object_detection", "outside", "Annotation 1 in outside/annotations.json lies outside its image 1.png"),
    case("object_detection", "boxes", "A batch takes 32 examples, but there are 4 to train on."),
]


def write_tables(folder):
    rows = [f"{i},{i / 10},{'ab'[i % 2]},{i * 1.5}" for i in range(200)]
    header = "time,x,kind,price"
    (folder / "good.csv").write_text("\n".join([header, *rows]))
    (folder / "few.csv").write_text("\n".join([header, *rows[:20]]))
    (folder / "text.csv").write_text("\n".join([header, *rows[:40], "40,heavy,a,1", *rows[41:]]))
    (folder / "latin.csv").write_bytes("\n".join(["time,größe,price", *["1,2,3"] * 50]).encode("latin-1"))


def write_images(folder):
    for name, number in (("few/a", 6), ("few/b", 6), ("empty_class/a", 6), ("empty_class/b", 0)):
        (folder / name).mkdir(parents=True)
        for i in range(number):
            Image.new("L", (8, 8)).save(folder / name / f"{i}.png")
    train, test = {"x_train": np.zeros((80, 8, 8)), "y_train": np.arange(80) % 2}, np.zeros((4, 8, 9))
    np.savez(folder / "mixed.npz", **train, x_test=test, y_test=np.arange(4) % 2)


def write_boxes(folder):
    for name, bbox in (("boxes", [2, 2, 8, 8]), ("outside", [40, 2, 30, 10])):
        (folder / name).mkdir()
        images = [{"id": i, "file_name": f"{i}.png"} for i in range(5)]
        for image in images:
            Image.new("RGB", (48, 32)).save(folder / name / image["file_name"])
        boxes = [{"id": i, "image_id": i, "category_id": 0, "bbox": bbox} for i in range(1, 5)]
        described = {"images": images, "annotations": boxes, "categories": [{"id": 0, "name": "x"}]}
        (folder / name / "annotations.json").write_text(json.dumps(described))
    (folder / "broken_json").mkdir()
    (folder / "broken_json" / "annotations.json").write_text('{"images": [')


@pytest.mark.parametrize(("arguments", "message"), CASES)
def test_bad_input_gets_one_line_and_leaves_nothing(tmp_path, monkeypatch, capsys, arguments, message):
    for write in (write_tables, write_images, write_boxes):
        write(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    status = train_command.run(["tfaccel train", *arguments, "--run_dir=run", "--quiet"])
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert message in err
    assert err.startswith("tfaccel train: ") and err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_images_of_mixed_sizes_and_channels_are_brought_to_one(tmp_path):
    """The stated rule: the median of the longer sides, and colors where any image has them."""
    for name, mode, size in (("a", "L", (8, 8)), ("b", "RGB", (20, 12))):
        (tmp_path / name).mkdir()
        for i in range(4):
            Image.new(mode, size).save(tmp_path / name / f"{i}.png")
    images = read_image_set(tmp_path)
    assert (images.image_size, images.num_channels) == (14, 3)
