"""Dates in tables: read in several orders, described by numbers, and the same in files, in Python and in the graph."""

import datetime
import json

import numpy as np
import pytest

from tfaccel.data.tables.column_kinds import get_kind
from tfaccel.data.tables.encoding import TableEncoding
from tfaccel.data.tables.table import PARTS, Column, Table, date_parts
from tfaccel.data.tables.tabular_set import TableOptions, make_tabular_set
from tfaccel.errors import DataError


def column(name, values):
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return Column(name, array)


def date_order(texts):
    return column("day", texts).date_order


def days(form="%Y-%m-%d", num_rows=400, step=1):
    start = datetime.datetime(2022, 12, 25, 6, 30)
    return [(start + datetime.timedelta(days=step * row, hours=row % 18)).strftime(form) for row in range(num_rows)]


def weather(form="%Y-%m-%d", num_rows=400):
    warmth = 10 + 9 * np.sin(2 * np.pi * np.arange(num_rows) / 365)
    return Table("weather.csv", (column("day", days(form, num_rows)), Column("warmth", warmth)))


@pytest.mark.parametrize(
    ("form", "order"),
    [
        ("%Y-%m-%d", "ymd"),
        ("%Y/%m/%d %H:%M", "ymd"),
        ("%Y-%m-%dT%H:%M:%S.123Z", "ymd"),
        ("%d.%m.%Y", "dmy"),
        ("%m/%d/%Y", "mdy"),
        ("%d-%m-%Y %H:%M", "dmy"),
        ("%Y-%m-%d %H:%M:%S+02:00", "ymd"),
        ("%Y-%m-%d %H:%M:%S+02", "ymd"),  # as PostgreSQL writes them
        ("%Y-%m-%d %H:%M:%S UTC", "ymd"),
    ],
)
def test_dates_are_read_as_python_reads_them(form, order):
    texts = days(form)
    assert (date_order(texts), get_kind(column("day", texts))) == (order, "date")
    found = date_parts(texts, order)
    assert tuple(found) == PARTS
    for row, text in enumerate(days("%Y-%m-%d %H:%M")):
        moment = datetime.datetime.fromisoformat(text)
        if "%H" not in form:
            moment = datetime.datetime.combine(moment, datetime.time())
        angle = 2 * np.pi * (moment.timetuple().tm_yday - 1) / 365.25
        time = 2 * np.pi * (moment.hour + moment.minute / 60) / 24
        expected = (
            moment.year,
            moment.month,
            moment.day,
            moment.weekday(),
            np.sin(angle),
            np.cos(angle),
            np.sin(time),
            np.cos(time),
        )
        np.testing.assert_allclose([values[row] for values in found.values()], expected, atol=1e-9)


def test_what_is_no_date_is_left_alone():
    for texts in (["red", "blue"], ["2024-13-01", "2024-02-30"], ["12.5", "3.25"], ["1-2", "3-4"], []):
        assert date_order(texts) is None
    assert date_order(["01.02.2024", "03.04.2024"]) == "dmy"
    assert column("day", ["01/02/2024", "03/04/2024"]).has_ambiguous_dates
    assert not column("day", ["01/22/2024"]).has_ambiguous_dates
    assert get_kind(column("day", ["01/02/2024", "03/04/2024"] * 3)) == "categorical"
    assert get_kind(column("year", ["2024", "2023"])) == "numeric"


def test_a_table_keeps_its_season(tmp_path):
    found = make_tabular_set(weather(), TableOptions(target="warmth"), classification=False)
    names = [one.name for one in found.encoding.numeric]
    assert names == [
        "day (year)",
        "day (month)",
        "day (day)",
        "day (weekday)",
        "day (season, sine)",
        "day (season, cosine)",
    ]
    assert found.report.ignored == {}
    assert found.train.inputs["numbers"].shape == (320, 6)
    (tmp_path / "preprocessing.json").write_text(json.dumps(found.encoding.to_json()))
    assert TableEncoding.load(tmp_path / "preprocessing.json") == found.encoding
    assert found.encoding.sources == {"day": "date"}
    season = np.linalg.lstsq(np.c_[found.train.inputs["numbers"][:, 4:], np.ones(320)], found.train.targets, rcond=None)
    assert season[1][0] < 0.01 * found.train.targets.var() * 320  # The season is all that the warmth depends on.


def test_missing_wrong_and_ambiguous_dates():
    table = weather()
    table.columns[0].values[::7] = None
    found = make_tabular_set(table, TableOptions(target="warmth"), classification=False)
    assert [one.has_missing for one in found.encoding.numeric] == [True] + [False] * 5
    assert found.report.imputed["day (year)"]["num_rows"] == 58
    table = weather()
    table.columns[0].values[3] = "soon"
    with pytest.raises(DataError, match=r"'day' of weather\.csv holds dates, but row 4 below the header has 'soon'"):
        make_tabular_set(table, TableOptions(target="warmth"), classification=False)
    with pytest.raises(
        DataError, match=r"'day' of new\.csv holds dates, but row 1 below the header has '31\.12\.2024'"
    ):
        found.encoding.encode(Table("new.csv", (column("day", ["31.12.2024"]),)))
    either = Table(
        "t.csv",
        (
            column("day", [f"{row % 12 + 1:02}/{row % 11 + 1:02}/{1900 + row}" for row in range(99)]),
            Column("size", np.arange(99.0)),
            Column("warmth", np.arange(99.0) % 7),
        ),
    )
    found = make_tabular_set(either, TableOptions(target="warmth"), classification=False)
    assert found.report.ignored == {"day": "day and month of its dates are ambiguous; write them as 2024-05-31"}
    ignored = make_tabular_set(
        weather(), TableOptions(target="warmth", column_kinds="day=categorical"), classification=False
    )
    assert ignored.encoding.numeric == ()
    with pytest.raises(DataError, match=r"'size' of t\.csv holds no dates that can be read"):
        make_tabular_set(either, TableOptions(target="warmth", column_kinds="size=date"), classification=False)


@pytest.mark.parametrize("form", ["%Y-%m-%d %H:%M", "%d.%m.%Y", "\u00a0%Y-%m-%d %H:%M:%S+02\u2003"])
def test_graph_makes_the_same_of_dates_as_python(logical_devices, form):
    import tensorflow as tf

    from tfaccel.data.raw_input import TableInput
    from tfaccel.exporting.preprocessing import table_preprocessing
    from tfaccel.exporting.sample_rows import raw_rows, rows_of_raw
    from tfaccel.exporting.signatures import column_names

    table = weather(form)
    table.columns[0].values[5] = None
    encoding = make_tabular_set(table, TableOptions(target="warmth"), classification=False).encoding
    raw_input = TableInput.of(encoding)
    encode, specs, _ = table_preprocessing(encoding, column_names(raw_input))
    assert {name: spec.dtype for name, spec in specs.items()} == {"day": tf.string}
    function = tf.function(encode).get_concrete_function(**specs)
    texts = [b"" if text is None else f" {text}".encode() for text in table.columns[0].values]
    expected = encoding.encode(table)["numbers"]
    np.testing.assert_allclose(function(day=tf.constant(texts))["numbers"], expected, atol=1e-4)
    sample = raw_rows(raw_input, {"numbers": expected[:4]})
    made = function(**{name: tf.constant(values.tolist()) for name, values in sample.items()})["numbers"]
    np.testing.assert_allclose(made, rows_of_raw(raw_input, sample, {})["numbers"], atol=1e-4)
    with pytest.raises(tf.errors.InvalidArgumentError, match="The column day holds dates"):
        function(day=tf.constant([b"soon"]))
