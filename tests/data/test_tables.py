"""Tables from files: what is read, what columns are taken for, and what is refused with which words."""

import bz2
import codecs
import gzip
import io
import lzma
import re
import zipfile

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from tfaccel.data import BadData
from tfaccel.data.tables import files
from tfaccel.data.tables.column_kinds import as_numbers, check_kinds, class_numbers, get_kind, kinds_from_text
from tfaccel.data.tables.files import read_table
from tfaccel.data.tables.table import Column, Table
from tfaccel.errors import DataError


def texts(*values):
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return Column("x", column)


def write(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_delimiters_quotes_and_missing_values(tmp_path, delimiter):
    lines = [["name", "age"], ['"Mia, the; old|\tcat"', "3"], ["Rex", "NA"], [" Tom ", " n/a"], ["?", "7.5"]]
    table = read_table(write(tmp_path / "t.csv", "\n".join(delimiter.join(line) for line in lines)))
    assert table.names == ("name", "age")
    assert table.column("name").values.tolist() == ["Mia, the; old|\tcat", "Rex", "Tom", None]
    assert table.column("age").values.tolist() == ["3", None, None, "7.5"]
    assert table.column("age").missing.tolist() == [False, True, True, False]


def test_encodings(tmp_path):
    text = "stadt\nKöln\n"
    for encoding in ("utf-8", "latin-1", "utf-16"):
        path = write(tmp_path / "t.csv", text, encoding)
        assert read_table(path, encoding=encoding).column("stadt").values.tolist() == ["Köln"]
    path.write_bytes(codecs.BOM_UTF8 + text.encode())
    assert read_table(path).names == ("stadt",)


@pytest.mark.parametrize(
    ("name", "header", "encoding", "names"),
    [
        ("t.csv", '"size, in m, or ft";a', "utf-8", ("size, in m, or ft", "a")),
        ("t.csv", '"size,\nin m, or ""ft""";a', "utf-8", ('size,\nin m, or "ft"', "a")),
        ("t.tsv", "name, first, last\tage", "utf-8", ("name, first, last", "age")),
        ("t.tsv", "a,b", "utf-8", ("a", "b")),
        ("t.csv", "\ufeffa,b", "utf-16-le", ("a", "b")),
        ("t.csv", "\ufeffa,b", "utf-32-be", ("a", "b")),
    ],
)
def test_headers_are_split_where_their_names_end(tmp_path, name, header, encoding, names):
    delimiter = next(mark for mark in "\t;," if mark in header)
    path = write(tmp_path / name, f"{header}\n1{delimiter}2\n", encoding)
    table = read_table(path, encoding=encoding)
    assert table.names == names
    assert [column.values.tolist() for column in table.columns] == [["1"], ["2"]]


def test_columns_without_names_are_called_by_their_place(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(",sales,\n2024-01-01,3,x\n2024-01-02,4,y\n")
    table = read_table(path)
    assert table.names == ("column_1", "sales", "column_3")
    assert table.column("column_1").values.tolist() == ["2024-01-01", "2024-01-02"]


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("", {}, "t.csv is empty: its first line must be a header"),
        ("a,b\n", {}, "t.csv has a header, but no rows."),
        ("a,b\n1,2\n1,2,3\n", {}, "{path}, line 3: it has 3 fields, but the header has 2. Fix it."),
        ("a,a\n1,2\n", {}, "Two columns of {path} are called 'a'."),
        ('a,b\n1,"2\n', {}, "{path}, line 2: unexpected end of data. Fix the row."),
        ("stadt\nKöln\n", {"encoding": "utf-9"}, "There is no encoding 'utf-9'. Common ones: utf-8,"),
        ("stadt\nKöln\n", {"encoding": "rot13"}, "There is no encoding 'rot13'."),
        ("stadt\nKöln\n", {"encoding": "ascii"}, "{path} is not written in ascii: byte 0xc3 cannot be read."),
        ("a\0b,c\n1,2\n", {}, "{path} is not a text file: its first line holds a zero byte."),
    ],
)
def test_bad_csv_is_refused(tmp_path, content, options, message):
    path = write(tmp_path / "t.csv", content)
    with pytest.raises(DataError, match=re.escape(message.format(path=path))):
        read_table(path, **options)


def test_empty_lines_may_precede_the_header(tmp_path):
    table = read_table(write(tmp_path / "t.csv", "\n\na;b\n1,5;2\n"))
    assert table.names == ("a", "b")
    assert table.places.tolist() == [4]


def test_row_names_without_a_header_are_explained(tmp_path):
    path = write(tmp_path / "t.csv", '"a","b"\n"1",3,4\n"2",5,6\n')
    with pytest.raises(DataError, match="as R writes it, name that column in the header too"):
        read_table(path)


def test_bad_encoding_says_what_to_do(tmp_path):
    path = write(tmp_path / "t.csv", "stadt\nKöln\n", "latin-1")
    with pytest.raises(DataError, match=r"not written in utf-8: byte 0xf6 .* for example --encoding=latin-1"):
        read_table(path)


def zipped(content, *others):
    stored = io.BytesIO()
    with zipfile.ZipFile(stored, "w") as archive:
        archive.writestr("t.csv", content)
        for name in others:
            archive.writestr(name, "a")
    return stored.getvalue()


@pytest.mark.parametrize(
    ("name", "compress"),
    [
        ("t.csv.gz", gzip.compress),
        ("t.csv.bz2", bz2.compress),
        ("t.CSV.XZ", lzma.compress),
        ("t.csv.zst", lambda content: pyarrow.compress(content, "zstd", asbytes=True)),
        ("t.csv.zip", lambda content: zipped(content, "__MACOSX/._t.csv", "folder/")),
        ("t.csv", gzip.compress),
        ("t.tsv.gz", lambda content: gzip.compress(content.replace(b",", b"\t"))),
        ("t.csv.gz", lambda content: content),
    ],
)
def test_compressed_tables_are_read(tmp_path, name, compress):
    (tmp_path / name).write_bytes(compress("name,age\nÄ,3\n".encode()))
    table = read_table(tmp_path / name)
    assert [column.values.tolist() for column in table.columns] == [["Ä"], ["3"]]
    assert table.names == ("name", "age")


def test_texts_in_parquet_that_are_read_as_missing_are_told(tmp_path, caplog):
    columns = {"country": ["NA", "DE", "NA"], "age": [1.0, None, 3.0], "note": ["N/A", "a", "b"]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet", texts=("note",))
    assert table.column("country").values.tolist() == [None, "DE", None]
    told = "holds 'NA' or the like in 2 rows: missing values, as in CSV files."
    assert [record.getMessage() for record in caplog.records] == [
        f"Column 'country' of {tmp_path / 't.parquet'} {told}"
    ]


def test_damaged_archives_are_refused(tmp_path):
    whole = gzip.compress(b"a,b\n1,2\n")
    for content, reason in [
        (whole[:-5], "Compressed file ended before"),
        (whole[:-8] + bytes(8), "CRC check failed"),
        (zipped("a,b\n1,2\n", "u.csv"), "it is a ZIP archive of 2 files, not of one"),
        (lzma.compress(b"a,b\n1,2\n")[:-9], "Compressed data ended"),
    ]:
        (tmp_path / "t.csv.gz").write_bytes(content)
        with pytest.raises(DataError, match=re.escape(f"Cannot read {tmp_path / 't.csv.gz'}: ") + reason):
            read_table(tmp_path / "t.csv.gz")


def test_missing_file_and_unknown_suffix(tmp_path):
    with pytest.raises(DataError, match=r"There is no file .*nothing\.csv"):
        read_table(tmp_path / "nothing.csv")
    for path in (write(tmp_path / "t.xlsx", "a"), tmp_path):
        with pytest.raises(DataError, match=r"must be a file that ends in \.csv, \.tsv, \.parquet, \.pq"):
            read_table(path)


def test_parquet(tmp_path):
    from pyarrow import parquet

    columns = {"age": [3, None, 5], "city": ["Köln", None, "Bonn"], "new": [True, False, None]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet")
    assert table.column("age").texts().tolist() == ["3", None, "5"]
    assert table.column("city").values.tolist() == ["Köln", None, "Bonn"]
    assert table.column("new").texts().tolist() == ["1", "0", None]
    parquet.write_table(pyarrow.table({"boxes": [[1, 2], [3]]}), tmp_path / "nested.parquet")
    with pytest.raises(DataError, match=r"Column 'boxes' of .* holds list<.*>; a column must hold numbers or texts"):
        read_table(tmp_path / "nested.parquet")
    (tmp_path / "broken.parquet").write_bytes((tmp_path / "t.parquet").read_bytes()[:-30])
    with pytest.raises(DataError, match=r"Cannot read .*broken\.parquet"):
        read_table(tmp_path / "broken.parquet")


def test_integers_keep_all_digits(tmp_path):
    from pyarrow import parquet

    ids = [1234567890123456000 + number for number in range(40)]
    parquet.write_table(
        pyarrow.table({"id": ids, "size": pyarrow.array(ids, pyarrow.uint64())}), tmp_path / "t.parquet"
    )
    write(tmp_path / "t.csv", "\n".join(["id,size", *(f"{number},{number}" for number in ids)]))
    (tmp_path / "t.jsonl").write_text("\n".join(f'{{"id": {number}, "size": {number}}}' for number in ids))
    from tfaccel.exporting.file_rows import json_lines, table_of_lines

    lines = table_of_lines(tmp_path / "t.jsonl", json_lines(tmp_path / "t.jsonl"))
    for table in (read_table(tmp_path / "t.parquet"), read_table(tmp_path / "t.csv"), lines):
        for name in ("id", "size"):
            assert table.column(name).texts().tolist() == [str(number) for number in ids]
            names, classes = class_numbers(table.column(name), "t")
            assert (names[0], classes.tolist()) == (str(ids[0]), list(range(40)))
            with pytest.raises(
                DataError, match=r"holds the integers 1234567890123456000 and 12345678901234560\d\d, which"
            ):
                as_numbers(table.column(name), "t")
    assert Column("id", np.array([9007199254740991.0, 0.1, 1e300])).texts().tolist() == [
        "9007199254740991",
        "0.1",
        "1e+300",
    ]
    assert as_numbers(texts("9007199254740992", "-18014398509481984"), "").tolist() == [2.0**53, -(2.0**54)]


def test_every_kind_of_parquet_column_is_read_as_from_csv(tmp_path):
    from datetime import date, datetime, time, timedelta, timezone
    from decimal import Decimal

    from pyarrow import parquet

    zone = timezone(timedelta(hours=2))
    columns = {
        "binary": pyarrow.array([b"red", b"blau"], pyarrow.binary()),
        "price": pyarrow.array([Decimal("12.50"), None]),
        "day": pyarrow.array([date(2024, 5, 31), None]),
        "begin": pyarrow.array([time(14, 30), time(9, 0, 1, 250)], pyarrow.time64("us")),
        "when": pyarrow.array([datetime(2024, 5, 31, 14), datetime(2024, 6, 1)], pyarrow.timestamp("us")),
        "there": pyarrow.array([datetime(2024, 5, 31, 14, tzinfo=zone), None], pyarrow.timestamp("ms", "+02:00")),
        "kind": pyarrow.array(["cat", " dog "]).dictionary_encode(),
        "nothing": pyarrow.nulls(2),
        "size": pyarrow.array([1.5, float("nan")], pyarrow.float32()),
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet")
    assert {column.name: column.texts().tolist() for column in table.columns} == {
        "binary": ["red", "blau"],
        "price": ["12.50", None],
        "day": ["2024-05-31", None],
        "begin": ["14:30:00", "09:00:01.000250"],
        "when": ["2024-05-31 14:00:00.000000", "2024-06-01 00:00:00.000000"],
        "there": ["2024-05-31 14:00:00.000+0200", None],
        "kind": ["cat", "dog"],
        "nothing": [None, None],
        "size": ["1.5", None],
    }
    assert [get_kind(table.column(name)) for name in ("day", "when", "there")] == ["date"] * 3
    parquet.write_table(pyarrow.table({"x": pyarrow.array([b"\xff"], pyarrow.binary())}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"Column 'x' of .* holds binary, which cannot be read as texts"):
        read_table(tmp_path / "t.parquet")


def test_durations_are_seconds_in_every_unit_and_the_index_of_pandas_is_no_column(tmp_path):
    from datetime import timedelta

    from pyarrow import parquet

    times = [timedelta(minutes=90), None]
    for unit in ("s", "ms", "us", "ns"):
        columns = {"x": pyarrow.array(times, pyarrow.duration(unit)), "__index_level_0__": [3, 1]}
        parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
        table = read_table(tmp_path / "t.parquet")
        assert table.names == ("x",)
        assert table.column("x").texts().tolist() == ["5400", None]


def test_markers_of_missing_values(tmp_path):
    markers = ["", "NA", "n/a", "NaN", "-nan", "+NaN", "NULL", "?", "#N/A", "#NA", "<NA>", "#DIV/0!", "#VALUE!"]
    table = read_table(write(tmp_path / "t.csv", "\n".join(["x,y", *(f"{marker},1" for marker in markers)])))
    assert table.column("x").values.tolist() == [None] * len(markers)
    table = read_table(
        write(tmp_path / "t.csv", "\n".join(["x,y", *(f"{marker},1" for marker in markers)])), texts=["x"]
    )
    assert table.column("x").values.tolist() == [None, *markers[1:]]
    numbers = texts("1", "2", "None", "NONE", "3_45", "+5", "\u0663")
    assert numbers.numbers[0][[0, 1, 5, 6]].tolist() == [1, 2, 5, 3]
    assert numbers.numbers[1].tolist() == [4]  # Underscores are Python's own notation; none is no number, but a gap.
    assert get_kind(texts("1", "2", "none", "#4")) == "categorical"
    assert get_kind(texts("1", "inf", "-Infinity", "1e999")) == "numeric"  # which is refused by name
    table = read_table(write(tmp_path / "t.csv", "symbol,y\nH,1\nNa,2\nNull,-nan(ind)\nNAN,-1.#IND\n"))
    assert table.column("symbol").values.tolist() == ["H", "Na", "Null", None]
    assert table.column("y").values.tolist() == ["1", "2", None, None]
    assert get_kind(texts("1", "2", "none")) == "numeric"
    assert get_kind(texts("2024-05-31", "none", "None")) == "date"


def test_files_of_spreadsheets(tmp_path):
    for encoding in ("utf-8-sig", "utf-16", "utf-32"):
        path = write(tmp_path / "t.csv", "sep=;\r\nstadt;gr\u00f6\u00dfe\r\nK\u00f6ln, am Rhein;3\r\n", encoding)
        table = read_table(path)
        assert table.names == ("stadt", "gr\u00f6\u00dfe")
        assert table.column("stadt").values.tolist() == ["K\u00f6ln, am Rhein"]
        assert table.places.tolist() == [3]
    with pytest.raises(DataError, match=r"line 4: it has 1 fields, but the header has 2\."):
        read_table(write(tmp_path / "t.csv", "sep=|\na|b\n1|2\n3\n"))


@pytest.mark.parametrize("seed", range(30))
def test_both_ways_of_reading_a_file_agree(tmp_path, seed):
    """Arrow reads well-formed files and Python's csv module finds the damage in others."""
    rng = np.random.default_rng(seed)
    parts = ["a", '"', '""', ",", "\n", "\r\n", " ", "x\u2028y", '"b,\n"', "NA", "", "\n\n", '"",', ";"]
    content = "u,v\n" + "".join(rng.choice(parts, size=rng.integers(1, 14)))
    path = write(tmp_path / "t.csv", content)
    text = files._Text.read(path, "utf-8-sig", BadData("skip"))
    found = text.fields_by_arrow(path)
    bad = BadData("skip", 0.99)
    names, columns, places = text.fields_by_rows(path, bad)
    if found is None:
        assert bad.num_skipped or '"' in content
    else:
        assert not bad.num_skipped
        assert (found[0], found[2].tolist()) == (names, places.tolist())
        assert [one.to_pylist() for one in found[1]] == [one.to_pylist() for one in columns]


def test_reading_needs_neither_tensorflow_nor_scikit_learn(run_python, tmp_path):
    code = "import sys\nfrom tfaccel.data.tables.files import read_table\nread_table(sys.argv[1])\n"
    code += "sys.exit(', '.join({'tensorflow', 'keras', 'sklearn'} & set(sys.modules)) or 0)"
    run_python(code, write(tmp_path / "t.csv", "a\n1\n"), fresh=True)


def test_missing_column_names_the_nearest():
    table = Table("pets.csv", (texts("a"),))
    with pytest.raises(DataError, match=r"pets\.csv has no column 'y'\. Columns: x\."):
        table.column("y")
    with pytest.raises(DataError, match=r"pets\.csv has no column 'xx'\. Did you mean 'x'\?"):
        table.column("xx")


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (texts("1", "2.5", "-3e2", None), "numeric"),
        (texts(*"12345", "six"), "numeric"),  # One text among many numbers is an error, which reading will name.
        (texts("1", "two", "three"), "categorical"),
        (texts("red", "blue", "red"), "categorical"),
        (texts(*(f"id {number}" for number in range(30))), "ignored"),
        (texts(None, None), "numeric"),
        (Column("x", np.array([1.0, 2.0])), "numeric"),
    ],
)
def test_kinds(column, kind):
    assert get_kind(column) == kind


def test_text_among_numbers_names_row_and_column():
    message = (
        "Column 'x' of pets.csv holds numbers, but row 3 below the header has 'three'. Fix the row, or say what the "
        "column is: --column_kinds=x=categorical."
    )
    with pytest.raises(DataError, match=re.escape(message)):
        as_numbers(texts("1", None, "three", "4", "five"), "pets.csv")
    with pytest.raises(DataError, match="row 2 below the header has 'inf'"):
        as_numbers(texts("1", "inf"), "pets.csv")
    with pytest.raises(DataError, match="row 1 below the header has '1e999'"):
        as_numbers(texts("1e999", "1"), "pets.csv")
    assert as_numbers(texts("1", None, " 4"), "")[[0, 2]].tolist() == [1, 4]


def test_kinds_that_users_give():
    assert kinds_from_text(" zip = categorical ,id=ignored,") == {"zip": "categorical", "id": "ignored"}
    assert kinds_from_text("a=b=numeric") == {"a=b": "numeric"}
    with pytest.raises(DataError, match=r"written NAME=KIND,NAME=KIND\. Received: 'zip'"):
        kinds_from_text("zip")
    table = Table("pets.csv", (texts("a"),))
    with pytest.raises(DataError, match=r"Column 'x' cannot be 'categoric'\. Did you mean 'categorical'\?"):
        check_kinds({"x": "categoric"}, table)
    with pytest.raises(DataError, match="has no column 'y'"):
        check_kinds({"y": "numeric"}, table)


def test_columns_of_unequal_length_are_refused():
    with pytest.raises(DataError, match=r"needs columns of one length\. Received, from t: \[1, 2\]"):
        Table("t", (texts("a"), Column("y", np.zeros(2))))
