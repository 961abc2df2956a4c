"""Tables from files: what is read, what columns are taken for, and what is refused with which words."""

import codecs
import doctest
import importlib
import re

import numpy as np
import pytest

from tfaccel.data.tables.column_kinds import as_numbers, check_kinds, kind_of, kinds_from_text
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
        ("stadt\nKöln\n", {"encoding": "ascii"}, "{path} is not written in ascii: byte 0xc3 cannot be read."),
        ("a\0b,c\n1,2\n", {}, "{path} is not a text file: its first line holds a zero byte."),
    ],
)
def test_bad_csv_is_refused(tmp_path, content, options, message):
    path = write(tmp_path / "t.csv", content)
    with pytest.raises(DataError, match=re.escape(message.format(path=path))):
        read_table(path, **options)


def test_bad_encoding_says_what_to_do(tmp_path):
    path = write(tmp_path / "t.csv", "stadt\nKöln\n", "latin-1")
    with pytest.raises(DataError, match=r"not written in utf-8: byte 0xf6 .* for example --encoding=latin-1"):
        read_table(path)


def test_missing_file_and_unknown_suffix(tmp_path):
    with pytest.raises(DataError, match=r"There is no file .*nothing\.csv"):
        read_table(tmp_path / "nothing.csv")
    for path in (write(tmp_path / "t.xlsx", "a"), tmp_path):
        with pytest.raises(DataError, match=r"must be a file that ends in \.csv, \.tsv, \.parquet, \.pq"):
            read_table(path)


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
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


def test_parquet_without_pyarrow_names_the_command(run_python, tmp_path):
    write(tmp_path / "t.parquet", "PAR1")
    code = """
import sys
sys.modules["pyarrow"] = None
from tfaccel.data.tables.files import read_table
from tfaccel.errors import DataError
try:
    read_table(sys.argv[1])
except DataError as error:
    print(error)
"""
    said = run_python(code, tmp_path / "t.parquet").stdout
    assert "needs pyarrow, which is not installed. Install it: pip install 'tfaccel[data]'." in said


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
    assert kind_of(column) == kind


def test_text_among_numbers_names_row_and_column():
    message = (
        "Column 'x' of pets.csv holds numbers, but row 3 below the header has 'three'. Fix the row, or say what the "
        "column is: --column_kinds=x=categorical."
    )
    with pytest.raises(DataError, match=re.escape(message)):
        as_numbers(texts("1", None, "three", "4", "five"), "pets.csv")
    with pytest.raises(DataError, match="row 2 below the header has 'inf'"):
        as_numbers(texts("1", "inf"), "pets.csv")
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


EXAMPLES = "tables.table tables.files tables.column_kinds tables.encoding tables.options tables.report"
EXAMPLES += " tables.targets tables.features images.class_balance tables.tabular_set tables.tabular_files"


@pytest.mark.parametrize("name", EXAMPLES.split())
def test_examples(name):
    result = doctest.testmod(importlib.import_module(f"tfaccel.data.{name}"))
    assert (result.failed, result.attempted > 0) == (0, True)
