"""Interactions: which columns are read, how ids become rows of a table, and what is refused by name."""

import json
import re

import numpy as np
import pytest

from tfaccel.data import BadData, Catalogue, InteractionData, generated_clicks, read_interactions
from tfaccel.data.interactions import generated_tables
from tfaccel.data.tables.encoding import MISSING_CODE, NUM_SPECIAL_CODES, OTHER_CODE
from tfaccel.data.tables.table import Column
from tfaccel.errors import DataError

HEADER = "when,film,visitor,stars,genre,age"
COLUMNS = {"user_column": "visitor", "item_column": "film", "label_column": "stars", "positive_from": 4}
FEATURES = {"user_features": "age", "item_features": "genre"}


def make_row(number):
    return f"{number},film {number % 4},v{number % 6},{1 + number % 5},{'ab'[number % 4 // 2]},{30 + number % 6}"


ROWS = [make_row(number) for number in range(120)]


@pytest.fixture
def write(tmp_path):
    """A function that writes a table and returns its path."""

    def write(rows, name="views.csv", header=HEADER):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join([header, *rows]) + "\n")
        return path

    return write


def test_columns_have_their_roles(write):
    clicks = read_interactions(write(ROWS), **COLUMNS, **FEATURES)
    encoding, report = clicks.table.encoding, clicks.table.report
    assert (clicks.user_names, clicks.item_names) == (("visitor", "age"), ("film", "genre"))
    assert [column.name for column in encoding.categorical] == ["visitor", "film", "genre"]
    assert [column.name for column in encoding.numeric] == ["age"]
    assert encoding.categorical[0].categories == tuple(f"v{number}" for number in range(6))
    assert (report.num_train_rows, report.num_test_rows, dict(report.ignored)) == (96, 24, {})
    assert clicks.true_probabilities is None


def test_ratings_from_a_number_on_are_clicks(write):
    for positive_from, fraction in ((4, 0.4), (2.5, 0.6), (5, 0.2)):
        clicks = read_interactions(write(ROWS), **{**COLUMNS, "positive_from": positive_from})
        targets = np.concatenate([clicks.table.train.targets, clicks.table.test.targets])
        assert targets.dtype == np.float32
        assert sorted(set(targets.tolist())) == [0.0, 1.0]
        assert targets.mean() == pytest.approx(fraction)


def test_train_and_test_tables_and_ids_that_only_one_has(write):
    write([*ROWS, "120,film 9,v77,5,a,40"], "both/train.csv")  # too few rows for rows of their own
    folder = write(
        ["0,film 0,v0,5,a,30", "1,film 1,new,1,a,31", "2,film 9,,5,b,32", "3,film 2,v1,,b,33"], "both/test.csv"
    )
    clicks = read_interactions(folder.parent, **COLUMNS)
    known, test = NUM_SPECIAL_CODES, clicks.table.test
    assert test.inputs["categories"].tolist() == [[known, known], [OTHER_CODE, known + 1], [MISSING_CODE, OTHER_CODE]]
    assert test.targets.tolist() == [1.0, 0.0, 1.0]
    assert clicks.table.report.rows_without_target == 1
    assert clicks.table.report.rare == {"visitor": ("v77",), "film": ("film 9",)}
    kept = read_interactions(folder.parent, **COLUMNS, min_rows=1)
    assert {"v77", "film 9"} <= {name for one in kept.table.encoding.categorical for name in one.categories}


def test_ids_are_hashed_into_buckets(write):
    clicks = read_interactions(write(ROWS), **COLUMNS, **FEATURES, num_buckets=7)
    visitor, film, genre = clicks.table.encoding.categorical
    assert [one.num_codes for one in (visitor, film, genre)] == [9, 9, 4]
    assert (visitor.categories, film.categories, genre.categories) == ((), (), ("a", "b"))
    codes = clicks.table.train.inputs["categories"]
    assert NUM_SPECIAL_CODES <= codes[:, :2].min() <= codes[:, :2].max() < 9
    known, unknown, missing = visitor.codes(Column("visitor", np.array(["v1", "nobody", None], dtype=object)))
    assert (known, missing) == (film.codes(Column("film", np.array(["v1"], dtype=object)))[0], MISSING_CODE)
    assert unknown >= NUM_SPECIAL_CODES


def test_damaged_rows_are_left_out(write):
    rows = [*ROWS, "1,film 1", "2,film 2,v2,many,a,30", "3,film 3,v3,5,b,old"]
    bad = BadData("skip", max_bad_fraction=0.1)
    clicks = read_interactions(write(rows), bad_data=bad, **COLUMNS, **FEATURES)
    assert clicks.table.report.num_train_rows + clicks.table.report.num_test_rows == 120
    assert sorted(bad.to_json()["files"][str(write(rows))]["places"]) == [122, 123, 124]


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (ROWS, {"user_column": "visitr"}, r"has no column 'visitr'\. Did you mean 'visitor'\?"),
        (ROWS, {"item_features": "genr"}, r"has no column 'genr'\. Did you mean 'genre'\?"),
        (ROWS, {"item_features": "genre,visitor"}, "A column is a user, an item.* Received: 'visitor' twice. Name it"),
        (
            ROWS,
            {"label_column": "genre"},
            r"Column 'genre' of .* has 'a'\. Fix the row: a label is a number, such as 0",
        ),
        (
            ROWS,
            {"positive_from": 6},
            r"Labels of at least positive_from=6 are clicks.* the rows of .* 'stars'. Rec",
        ),
        (
            ROWS,
            {"positive_from": 1},
            r"need both clicks and others in column 'stars'\. Received: only such labels\. Set",
        ),
        (
            ROWS,
            {"positive_from": float("nan")},
            r"`positive_from` must be a finite number\. Received: positive_from=nan",
        ),
        (ROWS, {"min_rows": 0}, r"`min_rows` must be a whole number of at least 1\. Received: min_rows=0"),
        (ROWS, {"num_buckets": 0}, r"`num_buckets` must be a whole number of at least 1\. Received: num_buckets=0"),
        (
            ROWS,
            {"column_kinds": "film=numeric"},
            r"for the columns in user_features and item_features\. Received: colu",
        ),
        (ROWS, {"column_kinds": "film"}, r"Kinds of columns are written NAME=KIND"),
        (
            ["0,tea,anna,4,a,1", "1,cake,anna,1,a,1"] * 5,
            {},
            r"'visitor' of .* at least two ids\. Received: 'anna' only",
        ),
        (
            ["0,,anna,4,a,1", "1,,bert,1,a,1"] * 5,
            {},
            r"Column 'film' of .* must have at least two ids\. Received: none",
        ),
        (["0,tea,anna,,a,1", "1,cake,bert,,a,1"] * 5, {}, r"need both clicks and others .* Received: no label"),
    ],
)
def test_what_cannot_be_used_is_refused(write, rows, options, message):
    with pytest.raises(DataError, match=message):
        read_interactions(write(rows), **{**COLUMNS, **options})


def test_items_are_paired_with_a_user(write):
    changed = "121,film 3,v2,5,b,77"  # the last row of a user counts
    clicks = read_interactions(write([*ROWS, changed]), **COLUMNS, **FEATURES)
    catalogue = Catalogue.from_json(json.loads(json.dumps(clicks.catalogue.to_json())))
    assert catalogue.item_ids == ["film 0", "film 1", "film 2", "film 3"]
    known, new = catalogue.pairs("v2"), catalogue.pairs("nobody")
    first = NUM_SPECIAL_CODES
    films = [[first, first], [first + 1, first], [first + 2, first + 1], [first + 3, first + 1]]
    assert known["categories"].tolist() == [[first + 2, *film] for film in films]
    assert new["categories"].tolist() == [[OTHER_CODE, *film] for film in films]
    assert known["numbers"].tolist() == [[77.0]] * 4
    assert np.isnan(new["numbers"]).all()
    assert catalogue.best(np.array([0.1, 0.4, 0.2, 0.4]), 3) == [("film 1", 0.4), ("film 3", 0.4), ("film 2", 0.2)]
    with pytest.raises(DataError, match=r"`count` must be at least 1. Received: -1"):
        catalogue.best(np.zeros(4), -1)


def test_a_catalogue_that_is_none_is_named(tmp_path):
    with pytest.raises(DataError, match=r"There is no file .*catalogue\.json\. Was this folder left by a finished run"):
        Catalogue.load(tmp_path / "catalogue.json")
    (tmp_path / "catalogue.json").write_text('{"users": []}')
    with pytest.raises(DataError, match=r"catalogue\.json holds no catalogue of users and items"):
        Catalogue.load(tmp_path / "catalogue.json")


def test_batches_follow_seed_epoch_step_and_shard(logical_devices, write):
    views = InteractionData(read_interactions(write(ROWS), **COLUMNS, **FEATURES), id_dropout=0.3)

    def epoch(**changed):
        found = views.train_data(16, **{"seed": 0, "epoch": 0, **changed}).as_numpy_iterator()
        return [(x["categories"].tolist(), x["numbers"].tolist(), y.tolist()) for x, y in found]

    whole = epoch()
    assert (len(whole), len(whole[0][0])) == (6, 16)
    assert epoch() == whole
    assert epoch(seed=1) != whole != epoch(epoch=1)
    assert epoch(start_step=4) == whole[4:]
    assert epoch(num_epochs=2) == whole + epoch(epoch=1)
    halves = zip(epoch(shard=(0, 2)), epoch(shard=(1, 2)), strict=True)
    assert [tuple(a + b for a, b in zip(*parts, strict=True)) for parts in halves] == whole
    tested = list(views.validation_data(10).as_numpy_iterator())
    assert [len(labels) for _, labels in tested] == [10, 10, 4]


def test_unknown_ids_are_trained(logical_devices):
    clicks = generated_clicks(num_users=50, num_items=20, num_interactions=20_000)

    def fractions(data, dataset):
        codes = np.concatenate([x["categories"] for x, _ in dataset.as_numpy_iterator()])
        return (codes == OTHER_CODE).mean(axis=0).tolist(), [
            one.has_rare for one in data.raw_input.encoding.categorical
        ]

    data = InteractionData(clicks, id_dropout=0.25)
    found, has_rare = fractions(data, data.train_data(16_000, seed=0, epoch=0))
    assert found == [pytest.approx(0.25, abs=0.02), 0.0, pytest.approx(0.25, abs=0.02), 0.0]
    assert has_rare == [True, False, True, False]
    assert fractions(data, data.validation_data(1000))[0] == [0.0] * 4
    none = InteractionData(clicks)
    assert fractions(none, none.train_data(16_000, seed=0, epoch=0)) == ([0.0] * 4, [False] * 4)
    hashed = InteractionData(
        generated_clicks(num_users=50, num_items=20, num_interactions=2000, num_buckets=9), id_dropout=0.5
    )
    assert fractions(hashed, hashed.train_data(1600, seed=0, epoch=0)) == ([0.0] * 4, [False] * 4)
    with pytest.raises(DataError, match=r"`id_dropout` must be a number from 0 to below 1\. Received: id_dropout=1"):
        InteractionData(clicks, id_dropout=1)


def test_generated_clicks_are_drawn_with_the_probabilities_that_are_given():
    train, test, probabilities = generated_tables(300, 100, 100_000)
    clicks = test.column("click").values
    order = np.argsort(probabilities)
    for part in np.array_split(order, 10):
        expected, spread = probabilities[part].mean(), np.sqrt(np.mean(probabilities[part] * (1 - probabilities[part])))
        assert clicks[part].mean() == pytest.approx(expected, abs=4 * spread / np.sqrt(len(part)))
    assert probabilities.std() > 0.15
    counts = np.unique(train.column("item").values, return_counts=True)[1]
    assert counts.max() > 10 * np.median(counts)  # few items are shown often
    again = generated_tables(300, 100, 100_000)
    assert np.array_equal(again[2], probabilities)
    assert again[1].column("user").values.tolist() == test.column("user").values.tolist()


def test_too_few_generated_clicks_are_refused():
    message = "At least 2 users, 2 items and 100 interactions are generated. Received: num_users=1, num_items=500, num"
    with pytest.raises(DataError, match=re.escape(message)):
        generated_clicks(num_users=1)


def test_hashed_codes_are_those_of_tensorflow(logical_devices):
    import tensorflow as tf

    from tfaccel.data.tables.encoding import hash_buckets

    generator = np.random.default_rng(0)
    texts = ["", "a", "7 bytes", "8 bytes!", "x" * 300, "Äffchen 猫"]
    texts += ["".join(map(chr, generator.integers(32, 400, length))) for length in range(40)]
    for num_buckets in (1, 7, 1000, 2**31):
        expected = tf.strings.to_hash_bucket_strong(texts, num_buckets, key=[0, 0]).numpy()
        assert np.array_equal(hash_buckets(texts, num_buckets), expected)
    assert hash_buckets([], 7).tolist() == []
