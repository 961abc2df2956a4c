"""Tables made ready for training: columns, missing values, rare categories, unequal classes, the split, the batches."""

import json
import re

import keras
import numpy as np
import pytest

from tfaccel.data.tables.column_kinds import as_numbers, check_float32, lost_in_float32
from tfaccel.data.tables.encoding import NumericColumn, TableEncoding
from tfaccel.data.tables.layers import table_inputs
from tfaccel.data.tables.table import Column, Table
from tfaccel.data.tables.table_data import embedded_table, read_tabular_set
from tfaccel.data.tables.tabular_set import TableOptions, make_tabular_set
from tfaccel.errors import DataError

ROWS = 60


def text_column(name, values):
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return Column(name, column)


def pets(**changed):
    """A table with every difficulty; `changed` replaces columns, None removes one."""
    columns = {
        "weight": [str(1 + row / 7) if row % 10 else None for row in range(ROWS)],
        "color": [("red", "blue", "pink")[row % 3] if row % 7 else None for row in range(ROWS - 2)] + ["gold", "grey"],
        "legs": ["4"] * ROWS,
        "chip": [f"chip {row * row}" for row in range(ROWS)],
        "none": [None] * ROWS,
        "kind": ["cat" if row % 6 else "dog" for row in range(ROWS)],
    }
    columns |= changed
    return Table("pets.csv", tuple(text_column(name, values) for name, values in columns.items() if values))


def made(table, classification=True, test_table=None, **options):
    return make_tabular_set(
        table, TableOptions(**{"target": "kind", **options}), classification=classification, test_table=test_table
    )


def test_report_says_what_was_done():
    data = made(pets())
    report = json.loads(json.dumps(data.report.to_json()))
    assert (report["num_train_rows"], report["num_test_rows"]) == (48, 12)
    assert (report["numeric"], report["categorical"]) == (["weight"], ["color"])
    assert report["ignored"] == {
        "legs": "all its values are equal",
        "chip": "nearly all its texts are distinct",
        "none": "it holds no value",
    }
    center = data.encoding.numeric[0].center
    assert report["imputed"]["weight"] == {"value": f"the median, {center:g}", "num_rows": 6}
    assert report["imputed"]["color"]["num_rows"] == 9
    assert set(report["rare"]["color"]) <= {"gold", "grey"}
    assert report["class_counts"] == {"cat": 40, "dog": 8}
    assert report["class_weights"] == {"cat": pytest.approx(0.6), "dog": pytest.approx(3.0)}
    text = "\n".join(data.report.lines())
    for words in (
        "'legs' is not used: all its",
        "'weight' has missing values in 6 rows; they become the median,",
        "'color': ",
        "class weights: cat 0.6, dog 3.",
    ):
        assert words in text


def test_statistics_are_of_the_training_rows_alone():
    data = made(pets())
    numbers = data.train.inputs["numbers"][:, 0]
    assert data.encoding.numeric[0].center == pytest.approx(np.nanmedian(numbers), rel=1e-6)
    assert data.encoding.numeric[0].scale == pytest.approx(np.nanstd(numbers), rel=1e-6)
    assert data.encoding.numeric[0].has_missing
    codes = data.train.inputs["categories"]
    assert set(np.unique(codes)) <= {0, 1, 2, 3, 4}
    assert data.encoding.categorical[0].categories == ("blue", "pink", "red")


def test_split_is_stratified_and_always_the_same():
    first, second = made(pets()), made(pets())
    assert np.bincount(first.train.targets).tolist() == [40, 8]
    assert np.bincount(first.test.targets).tolist() == [10, 2]
    for part in ("train", "test"):
        a, b = getattr(first, part), getattr(second, part)
        assert all(np.array_equal(a.inputs[name], b.inputs[name], equal_nan=True) for name in a.inputs)
        assert np.array_equal(a.targets, b.targets)


def test_split_of_numbers_keeps_their_spread():
    data = made(embedded_table("diabetes"), classification=False, target="target")
    assert (len(data.train.targets), len(data.test.targets)) == (353, 89)
    assert data.train.targets.dtype == np.float32
    assert np.mean(data.test.targets) == pytest.approx(np.mean(data.train.targets), rel=0.05)
    assert data.encoding.class_names == ()


def test_rows_without_target_are_left_out_and_rows_are_named_as_in_the_file():
    kinds = [None, *pets().column("kind").values[1:]]
    data = made(pets(kind=kinds))
    assert data.report.rows_without_target == 1
    assert len(data.train.targets) + len(data.test.targets) == ROWS - 1
    weights = [*pets().column("weight").values[:40], "heavy", *pets().column("weight").values[41:]]
    with pytest.raises(DataError, match=r"Column 'weight' of pets\.csv holds numbers, but row 41 .* has 'heavy'"):
        made(pets(kind=kinds, weight=weights))


def milliseconds(rows, step=1000):
    return [str(1_700_000_000_000 + step * row) for row in range(rows)]


def test_numbers_that_float32_would_merge_are_centered_first():
    data = made(pets(weight=milliseconds(ROWS)))
    column = data.encoding.numeric[0]
    assert column.offset == column.center
    numbers = np.concatenate([part.inputs["numbers"][:, 0] for part in (data.train, data.test)])
    assert len(np.unique(numbers)) == ROWS
    assert np.array_equal(np.sort(numbers), 1000 * np.arange(ROWS) + 1_700_000_000_000 - column.center)
    assert data.report.merged == {}
    assert TableEncoding.from_json(json.loads(json.dumps(data.encoding.to_json()))) == data.encoding
    # Numbers that need no offset are the model's inputs as they are.
    assert [column.offset for column in made(embedded_table("wine"), target="target").encoding.numeric] == [0.0] * 13
    far = [str(row * 10**9 if row < 40 else 4 * 10**10 + row) for row in range(ROWS)]  # more than seven digits
    report = made(pets(weight=far)).report
    count = report.merged["weight"]
    assert count > 5
    text = f"Column 'weight': {count} of its distinct values differ from others by less than float32 can hold."
    assert text in report.lines()


def test_outliers_do_not_make_targets_too_coarse():
    numbers = np.concatenate([np.linspace(0, 1, 91), np.full(9, 4001.1)])  # The error at 4001.1 is 1e-4.
    assert lost_in_float32(numbers) == (0, False)
    assert lost_in_float32(1.7e9 + 60 * numbers)[1]


@pytest.mark.parametrize("size", [1e-20, 1e20])
def test_targets_whose_squares_float32_cannot_hold_are_refused(size):
    with pytest.raises(DataError, match=r"vary by [0-9.e+-]*\. Their squares are summed in float32"):
        check_float32(size * np.arange(5.0), "mass", "t.csv")
    assert check_float32(np.full(5, 3.0), "mass", "t.csv") == 0


@pytest.mark.parametrize("size", [1e-37, 1e-12, 1e22, 1e36])
def test_numbers_of_any_size_are_scaled(logical_devices, size):
    numbers = size * np.random.default_rng(0).normal(5, 1, size=100)
    encoding = TableEncoding(numeric=(NumericColumn.of("mass", numbers),), categorical=(), target="y")
    inputs, features = table_inputs(encoding)
    found = keras.Model(inputs, features)({"numbers": numbers[:, None].astype(np.float32)}).numpy()[:, 0]
    np.testing.assert_allclose(found, (numbers - np.median(numbers)) / numbers.std(), atol=2e-6)


def test_targets_that_float32_would_merge_are_refused():
    message = r"column 'kind' of pets\.csv are around 1\.7e\+12 and vary by 1\.73e\+04: float32, .* is too coarse"
    with pytest.raises(DataError, match=message):
        made(pets(kind=milliseconds(ROWS)), classification=False)
    prices = [str(100_000_000 * (row % 7) + row) for row in range(ROWS)]
    data = made(pets(kind=prices), classification=False)
    assert data.report.merged["kind"] > 0


@pytest.mark.parametrize(
    "texts",
    [
        *(
            ["1,5", "2,75"],
            ["1.234,50", "12,00"],
            ["1,234", "12,345,678.9"],
            ["$1,200.00", "$3"],
            ["\u20ac 3,50", "4 \u20ac"],
        ),
        *(
            ["5%", "7.5 %"],
            ["1 234", "5"],
            ["1\u202f234", "5"],
            ["1'234.5", "7"],
            ["(1,200)", "300"],
            ["3 EUR", "5 EUR"],
        ),
        *(["5/31/24", "6/1/24"], ["31.12.24", "01.01.25 14:00"], ["19-Sep-03", "3-may-04"], ["05MAY1984", "6JUN1984"]),
        *(["May 5, 2024", "June 16th, 2024"], ["Jan-1-1995", "Feb-1-1995"], ["Sept. 95", "Dec. 95"]),
        *(
            ["5/31/2024 2:00 PM", "6/1/2024 11:30 AM"],
            ["2024-05-31 14", "2024-06-01 15"],
            ["20240531T140000", "20240601T150000"],
        ),
        *(["2024-05-31 14:00:00,5", "2024-06-01 15:00:00,5"], ["2024-05-31 14:00 CET", "2024-06-01 15:00 CET"]),
        *(["Fri, 31 May 2024 14:00:00 GMT", "Sat, 1 Jun 2024 15:00:00 GMT"], ["2024 05 31", "2024 06 01"]),
        *(["Fri May 31 14:00:00 2024", "Sat Jun 1 15:00:00 UTC 2024"], ["31/May/2024:14:00:00", "1/Jun/2024:15:00:00"]),
        *(["31. 5. 2024", "1. 6. 2024"], ["2024年5月31日", "2024年6月1日"], ["2024-31-05", "2024-30-06"]),
        *(["2024-05-31", "31.05.2024"], ["13.01.2024", "2024-01-14"]),
        ["1,23,456", "12,34,567.8"],
    ],
)
def test_numbers_and_dates_in_other_notations_are_named(texts):
    is_date = re.search(r"[A-Za-z]{3,}(?<!EUR)|[/.]24$|2024", texts[0])
    kind = "dates" if is_date else "numbers"
    for rows in (texts * 30, [*texts * 29, "x", "y"]):
        with pytest.raises(
            DataError, match=re.escape(f"pets.csv holds {kind} such as {texts[0]!r} in column 'color'.")
        ):
            made(pets(color=rows))
    assert "color" in made(pets(color=texts * 30), column_kinds="color=categorical").report.categorical
    if kind == "numbers":
        with pytest.raises(
            DataError, match=re.escape(f"column 'kind' of pets.csv holds numbers such as {texts[0]!r}. W")
        ):
            made(pets(kind=texts * 30), classification=False)


@pytest.mark.parametrize(
    "texts",
    [
        *(["1.2.3", "1.10.0"], ["192.168.0.1", "10.0.0.1"], ["a%", "5 %"], ["555 1234", "5 5"]),
        *(["55-20-1234", "61-45-2020"], ["True", "False"], ["true", "maybe"]),
    ],
)
def test_other_texts_are_categories(texts):
    assert "color" in made(pets(color=texts * 30)).report.categorical


def test_truth_values_are_spelled_in_one_way():
    with pytest.raises(DataError, match=r"holds truth values such as 'True' and 'TRUE' in column 'color'"):
        made(pets(color=["True", "TRUE", "False"] * 20))
    with pytest.raises(DataError, match=r"has the classes 'TRUE' and 'True', which are the same"):
        made(pets(kind=["True", "TRUE", "False"] * 20))
    assert made(pets(kind=["T", "t", "F"] * 20)).encoding.class_names == ("F", "T", "t")


@pytest.mark.parametrize("texts", [["1", "1.0", "2"], ["01", "1", "2"], ["1e0", "1", "2"], ["-0", "0", "1"]])
def test_classes_that_are_one_number_are_refused(texts):
    with pytest.raises(
        DataError, match=r"column 'kind' of pets\.csv has the classes '.*' and '.*', which are the same"
    ):
        made(pets(kind=texts * 20))


def test_ids_that_float64_takes_for_one_number_are_not_called_equal():
    ids = [str(9 * 10**18 + row) for row in range(ROWS)]
    with pytest.raises(DataError, match=r"Column 'color' of pets\.csv holds the integers 9000000000000000000 and 9"):
        made(pets(color=ids))


def test_none_is_a_class_and_a_category_but_no_number():
    kinds = [("cat", "NONE", "dog")[row % 3] for row in range(ROWS)]
    colors = [("red", "None", None)[row % 3] for row in range(ROWS)]
    data = made(pets(kind=kinds, color=colors, weight=["none", *pets().column("weight").values[1:]]))
    assert (data.encoding.class_names, data.report.rows_without_target) == (("NONE", "cat", "dog"), 0)
    assert data.encoding.categorical[0].categories == ("None", "red")
    assert data.report.imputed["weight"]["num_rows"] == 6
    data = made(pets(kind=["1.5", "none", "3"] * 20), classification=False)
    assert data.report.rows_without_target == 20


def test_truth_values_are_the_numbers_that_a_parquet_file_has_for_them():
    np.testing.assert_array_equal(
        as_numbers(Column("tame", np.array(["True", None, "false"], object)), "a.csv"), [1, np.nan, 0]
    )
    with pytest.raises(DataError, match=r"'tame' of a\.csv holds numbers, but row 1 below the header has 'True'"):
        as_numbers(Column("tame", np.array(["True", "2", "maybe"], object)), "a.csv")


def test_kinds_that_are_given_win():
    data = made(pets(), column_kinds="weight=ignored,chip=categorical")
    assert data.report.ignored["weight"] == "set by you"
    assert data.report.categorical == ("color", "chip")
    assert "numbers" not in data.train.inputs
    assert data.encoding.categorical[1].categories == ()
    with pytest.raises(DataError, match=r"Column 'color' of .* holds numbers, but row 2 below the header has 'blue'"):
        made(pets(), column_kinds={"color": "numeric"})


def test_class_weights_can_be_chosen():
    assert made(pets(), class_weights="none").class_weights is None
    wine = made(embedded_table("wine"), target="target")
    assert wine.class_weights is None
    assert made(embedded_table("wine"), target="target", class_weights="balanced").class_weights is not None


def test_a_test_table_of_its_own():
    data = made(pets(), test_table=pets(legs=["3"] * ROWS))
    assert (len(data.train.targets), len(data.test.targets)) == (ROWS, ROWS)
    with pytest.raises(DataError, match=r"pets\.csv has no column 'weight'"):
        made(pets(), test_table=pets(weight=None))
    with pytest.raises(
        DataError, match=r"has the class 'dogs', which the training rows do not have\. Did you mean 'dog"
    ):
        made(pets(), test_table=pets(kind=["cat", "dogs"] * 30))


def test_categories_are_the_same_from_every_kind_of_file():
    """A Parquet file has numbers and truth values, a CSV file their texts."""

    def codes(train, test):
        data = made(pets(color=train, weight=None), test_table=given(test), column_kinds={"color": "categorical"})
        return data.test.inputs["categories"][:2, 0].tolist(), data.encoding.categorical[0].categories

    def given(test):
        table = pets(weight=None)
        column = Column("color", test) if isinstance(test, np.ndarray) else text_column("color", test)
        return Table("test", (column, *(one for one in table.columns if one.name != "color")))

    truths, numbers = np.array([1.0, 0.0] * 30), np.array([3.0, 2.5] * 30)
    assert codes(["True", "False"] * 30, truths) == ([3, 2], ("False", "True"))
    assert codes(["3.0", "2.50"] * 30, numbers) == ([3, 2], ("2.50", "3.0"))
    assert codes(["3", "2.5"] * 30, numbers) == ([3, 2], ("2.5", "3"))
    assert codes(["003", "2.5"] * 30, numbers) == ([1, 3], ("003", "2.5"))
    for train, test in (("3 2.5", "3.0 2.5"), ("True False", "TRUE False"), ("1 0", "True 0")):
        first, other = train.split()[0], test.split()[0]
        with pytest.raises(DataError, match=f"'color' of test has '{other}', and the training rows have '{first}', w"):
            codes(train.split() * 30, test.split() * 30)


@pytest.mark.parametrize(
    ("changed", "options", "message"),
    [
        ({}, {"target": "kid"}, "pets.csv has no column 'kid'. Did you mean 'kind'?"),
        ({"kind": ["cat"] * 59 + ["dog"]}, {}, "The class 'dog' of column 'kind' in pets.csv has one row; it needs"),
        ({"kind": ["cat"] * ROWS}, {}, "must have at least two classes. Received: 'cat' only."),
        ({"kind": [None] * ROWS}, {}, "No row of pets.csv has a value in the target column 'kind'."),
        ({"kind": ["x"] * 58 + ["y"] * 2, "weight": None, "color": None}, {}, "There is no column of use beside"),
        (
            {"kind": ["x"] * 58 + ["y"] * 2, "weight": None, "color": None},
            {},
            "Not used: 'legs': all its values are equal",
        ),
        ({}, {"column_kinds": "weigt=numeric"}, "has no column 'weigt'. Did you mean 'weight'?"),
        ({}, {"classification": False}, "holds texts, but numbers are predicted."),
        ({"kind": ["1"] * ROWS}, {"classification": False}, "must hold at least two different numbers."),
        ({"kind": ["1", "2", "x"] * 20}, {"classification": False}, "row 3 below the header has 'x'"),
    ],
)
def test_bad_tables_are_refused(changed, options, message):
    with pytest.raises(DataError, match=re.escape(message)):
        made(pets(**changed), **options)


def test_fields_between_spaces_are_one_column():
    table = Table("t.csv", (text_column("age kind", [f"{number % 4} cat" for number in range(ROWS)]),))
    with pytest.raises(DataError, match=r"it has one column only\. Separate its fields by commas"):
        make_tabular_set(table, TableOptions(target="age kind"), classification=True)


def test_far_too_many_classes_are_numbers():
    table = Table("t", (Column("x", np.arange(300.0) % 7), Column("kind", np.arange(300.0))))
    with pytest.raises(DataError, match=r"has 300 classes in 300 rows\. If it holds numbers to predict, use the"):
        made(table)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"class_weights": "balance"}, "There are no class weights 'balance'. Did you mean 'balanced'?"),
        ({"min_category_rows": 0}, "`min_category_rows` must be a whole number of at least 1."),
        ({"column_kinds": "zip"}, "Kinds of columns are written NAME=KIND,NAME=KIND. Received: 'zip'."),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(DataError, match=re.escape(message)):
        TableOptions(**options)


def test_classes_that_are_numbers_stand_in_order():
    table = Table("t", (Column("x", np.arange(30.0)), text_column("kind", ["10", "9", "-1"] * 10)))
    assert made(table).encoding.class_names == ("-1", "9", "10")


def test_encoding_goes_to_json_and_back_and_takes_new_rows(tmp_path):
    encoding = made(pets()).encoding
    (tmp_path / "preprocessing.json").write_text(json.dumps(encoding.to_json()))
    loaded = TableEncoding.load(tmp_path / "preprocessing.json")
    assert loaded == encoding
    new = Table("new.csv", (text_column("color", ["pink", "violet", None]), text_column("weight", ["2", None, "3"])))
    inputs = loaded.encode(new)
    assert inputs["categories"][:, 0].tolist() == [3, 1, 0]
    assert np.array_equal(inputs["numbers"][:, 0], [2, np.nan, 3], equal_nan=True)
    with pytest.raises(DataError, match=r"Cannot read how tables are encoded from .*none\.json"):
        TableEncoding.load(tmp_path / "none.json")


def test_folders_and_files(tmp_path):
    lines = ["x,y", *(f"{row},{'ab'[row % 2]}" for row in range(20))]
    for name in ("train.csv", "test.csv"):
        (tmp_path / name).write_text("\n".join(lines))
    data = read_tabular_set(tmp_path, TableOptions(target="y"), classification=True)
    assert (data.report.num_train_rows, data.report.num_test_rows) == (20, 20)
    with pytest.raises(DataError, match=r"Say which column of .*train\.csv is to be predicted: .* Columns: x, y\."):
        read_tabular_set(tmp_path, TableOptions(), classification=True)
    (tmp_path / "test.csv").unlink()
    with pytest.raises(DataError, match=r"must hold one table called test .* Received: train\.csv\. To split"):
        read_tabular_set(tmp_path, TableOptions(target="y"), classification=True)


def test_embedded_tables():
    shapes = {name: (embedded_table(name).num_rows, len(embedded_table(name).columns)) for name in ("wine", "diabetes")}
    assert shapes == {"wine": (178, 14), "diabetes": (442, 11)}
    with pytest.raises(DataError, match=r"There is no embedded table 'vine'\. Did you mean 'wine'"):
        embedded_table("vine")


def test_batches_follow_from_seed_and_epoch(logical_devices):
    from tfaccel.data.tables.table_data import tabular_batches

    def epoch(seed, number):
        found = tabular_batches(data, one_hot=True).train(20, seed=seed, epoch=number).as_numpy_iterator()
        return [tuple(np.nan_to_num(np.concatenate([np.ravel(leaf) for leaf in leaves(batch)]))) for batch in found]

    def leaves(batch):
        inputs, labels, weights = batch
        return [*inputs.values(), labels, weights]

    data = made(pets())
    assert len(epoch(0, 0)) == 2  # Eight rows are left over, other ones in each epoch.
    assert epoch(0, 0) == epoch(0, 0)
    assert epoch(0, 0) != epoch(0, 1)
    assert epoch(0, 0) != epoch(1, 0)
    inputs, labels, weights = next(tabular_batches(data, one_hot=True).train(20, seed=0, epoch=0).as_numpy_iterator())
    assert (inputs["numbers"].shape, inputs["categories"].dtype, labels.shape) == ((20, 1), np.int32, (20, 2))
    assert weights[labels[:, 1] == 1] == pytest.approx(3.0)
    tested = list(tabular_batches(data, one_hot=True).test(5).as_numpy_iterator())
    assert [len(labels) for _, labels in tested] == [5, 5, 2]
    with pytest.raises(DataError, match=r"A batch takes 64 rows, but there are 48 to train on\. Use .* at most 48\."):
        tabular_batches(data).train(64, seed=0, epoch=0)
