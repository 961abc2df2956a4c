"""Damaged tables, texts and series: named, or exactly what is damaged is left out, as if it had never been there."""

import re

import numpy as np
import pytest
from damage import flip, skipping

from tfaccel.data import BadData, read_labelled_texts, read_series, read_summaries, read_text_parts, read_translations
from tfaccel.data.tables.files import read_table
from tfaccel.data.tables.table_data import read_number_rows, read_tabular_set
from tfaccel.data.tables.tabular_set import TableOptions
from tfaccel.errors import DataError

GOOD = [f"{1.5 * n},{n % 7},{'yes' if n % 2 else 'no'}" for n in range(40)]


def csv_file(folder, lines, header="size,legs,kind"):
    folder.mkdir(exist_ok=True)
    (folder / "t.csv").write_bytes(b"\n".join([header.encode(), *lines]) + b"\n")
    return folder / "t.csv"


def test_rows_of_tables_are_left_out_and_named_by_their_lines(tmp_path):
    lines = [line.encode() for line in GOOD]
    broken = {
        3: b"1.5,2",
        7: b"caf\xe9,1,yes",
        11: b"\0\0\0\0,3,no",
        15: b"x1.5,2,yes",
        20: b'"2.5"7,1,no',
        21: b"7,1,no,8",
    }
    for row, line in broken.items():
        lines[row] = line
    path = csv_file(tmp_path / "bad", lines)
    clean = csv_file(tmp_path / "clean", [line for row, line in enumerate(lines) if row not in broken])
    read = {"classification": True}
    bad = skipping()
    found = read_tabular_set(path, TableOptions(target="kind"), **read, bad_data=bad)
    expected = read_tabular_set(clean, TableOptions(target="kind"), **read)
    for a, b in ((found.train, expected.train), (found.test, expected.test)):
        np.testing.assert_array_equal(a.inputs["numbers"], b.inputs["numbers"])
        np.testing.assert_array_equal(a.targets, b.targets)
    assert bad.num_skipped == 6
    assert sorted(bad.to_json()["files"][str(path)]["places"]) == [row + 2 for row in broken]
    bad = skipping()
    rows = read_number_rows(path, bad_data=bad)
    np.testing.assert_array_equal(rows.values, read_number_rows(clean).values)
    only = {3: "line 5: it has 2 fields", 7: "is not written in utf-8", 11: "line 13: it holds a zero byte"}
    only |= {15: "row 16 below the header has 'x1.5'", 20: "line 22: ',' expected after"}
    for row, message in only.items():
        path = csv_file(tmp_path / "one", [broken[row] if n == row else line.encode() for n, line in enumerate(GOOD)])
        with pytest.raises(DataError, match=re.escape(message)):
            read_tabular_set(path, TableOptions(target="kind"), **read)


def test_a_quotation_mark_that_is_never_closed_takes_the_rest_of_the_file(tmp_path):
    path = csv_file(
        tmp_path, [*[line.encode() for line in GOOD[:30]], b'"1,2,yes', *[line.encode() for line in GOOD[31:]]]
    )
    bad = skipping()
    read_tabular_set(path, TableOptions(target="kind"), classification=True, bad_data=bad)
    entry = bad.to_json()["files"][str(path)]
    assert (entry["num_skipped"], entry["places"]) == (10, [32])


def test_row_groups_of_parquet_files_are_left_out(tmp_path):
    import pyarrow
    from pyarrow import parquet

    path = tmp_path / "t.parquet"
    table = pyarrow.table({"size": np.random.default_rng(0).random(100), "kind": ["ab"[n % 2] for n in range(100)]})
    parquet.write_table(table, path, row_group_size=20, use_dictionary=False, write_page_checksum=True)
    place = parquet.ParquetFile(path).metadata.row_group(2).column(0).data_page_offset
    flip(path, place + 100)
    bad = skipping()
    found = read_tabular_set(path, TableOptions(target="kind"), classification=True, bad_data=bad)
    assert (len(found.train.targets) + len(found.test.targets), bad.num_skipped) == (80, 20)
    with pytest.raises(DataError, match=r"the row group 2 \(from 0\) is damaged"):
        read_tabular_set(path, TableOptions(target="kind"), classification=True)


def test_rows_of_series_are_left_out(tmp_path):
    lines = [f"2024-01-{n + 1:02},{n}".encode() for n in range(30)]
    broken = {4: b"2024-01-x5,4", 9: b"2024-01-10,9,9", 12: b"2024-01-13,\xff1", 20: b"2024-01-02,20"}
    path = csv_file(tmp_path / "bad", [broken.get(n, line) for n, line in enumerate(lines)], "day,sales")
    clean = csv_file(tmp_path / "clean", [line for n, line in enumerate(lines) if n not in broken], "day,sales")
    bad = skipping()
    found = read_series(path, time_column="day", bad_data=bad)
    np.testing.assert_array_equal(found.values, read_series(clean, time_column="day").values)
    assert sorted(bad.to_json()["files"][str(path)]["places"]) == [6, 11, 14, 22]
    with pytest.raises(DataError):
        read_series(path, time_column="day")


def test_texts_are_left_out(tmp_path):
    lines = [f"text {n} of many,{'good' if n % 2 else 'bad'}".encode() for n in range(20)]
    broken = {2: b"caf\xe9,good", 5: b"only a text", 9: b"a\0b,bad"}
    path = csv_file(tmp_path / "bad", [broken.get(n, line) for n, line in enumerate(lines)], "text,label")
    clean = csv_file(tmp_path / "clean", [line for n, line in enumerate(lines) if n not in broken], "text,label")
    bad = skipping()
    assert read_labelled_texts(path, bad_data=bad) == read_labelled_texts(clean)
    assert bad.to_json()["files"][str(path)]["places"] == [4, 7, 11]
    columns = {"document_column": "text", "summary_column": "label"}
    assert read_summaries(path, **columns, bad_data=skipping()) == read_summaries(clean, **columns)
    for n in range(8):
        (tmp_path / "files" / "ab"[n % 2]).mkdir(parents=True, exist_ok=True)
        (tmp_path / "files" / "ab"[n % 2] / f"{n}.txt").write_bytes({2: b"", 5: b"\xff\xfe"}.get(n, b"text %d" % n))
    bad = skipping()
    texts = read_labelled_texts(tmp_path / "files", bad_data=bad)
    assert {*texts.train_texts, *texts.test_texts} == {f"text {n}" for n in range(8) if n not in (2, 5)}
    assert {entry["num_skipped"] for entry in bad.to_json()["files"].values()} == {1}
    with pytest.raises(DataError, match=r"2\.txt holds no text\. Or leave out"):
        read_labelled_texts(tmp_path / "files")


def test_lines_are_left_out_and_lines_that_belong_together_stay_together(tmp_path):
    lines = [b"line %d of this text\n" % n for n in range(40)]
    (tmp_path / "clean.txt").write_bytes(b"".join(line for n, line in enumerate(lines) if n not in (3, 30)))
    lines[3], lines[30] = b"l\xffne\n", bytes(12) + b"\n"
    (tmp_path / "bad.txt").write_bytes(b"".join(lines))
    bad = skipping()
    found = read_text_parts(tmp_path / "bad.txt", min_characters=2, bad_data=bad)
    assert found == read_text_parts(tmp_path / "clean.txt", min_characters=2)
    assert bad.to_json()["files"][str(tmp_path / "bad.txt")]["places"] == [4, 31]
    with pytest.raises(DataError, match=r"not written in utf-8: .* It is in line 4"):
        read_text_parts(tmp_path / "bad.txt", min_characters=2)
    (tmp_path / "source.txt").write_bytes(b"".join(lines))
    (tmp_path / "target.txt").write_bytes(b"".join(b"\n" if n == 8 else b"Zeile %d\n" % n for n in range(40)))
    bad = skipping()
    pairs = read_translations(tmp_path, bad_data=bad)
    numbers = sorted(int(target.split()[1]) for _, target in (*pairs.train, *pairs.test))
    assert numbers == [n for n in range(40) if n not in (3, 8, 30)]
    assert all(source == f"line {target.split()[1]} of this text" for source, target in (*pairs.train, *pairs.test))
    (tmp_path / "target.txt").write_bytes(b"Zeile\n" * 39)
    with pytest.raises(DataError, match="are not aligned"):
        read_translations(tmp_path, bad_data=skipping())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ignore",), '`on_bad_data` must be "fail" or "skip". Received: on_bad_data=\'ignore\'.'),
        (("skip", 1.0), "`max_bad_fraction` must be a number from 0 to below 1. Received: max_bad_fraction=1.0."),
        (("skip", float("nan")), "`max_bad_fraction` must be a number from 0 to below 1."),
        (("skip", True), "`max_bad_fraction` must be a number from 0 to below 1."),
    ],
)
def test_other_values_are_refused(arguments, message):
    with pytest.raises(DataError, match=re.escape(message)):
        BadData(*arguments)


def test_commands_that_cannot_leave_anything_out_do_not_advise_it(tmp_path):
    path = csv_file(tmp_path, [b"1,2,yes", b"3,4"])
    with pytest.raises(DataError, match=r"line 3: it has 2 fields, but the header has 3\. Fix it\.$"):
        read_table(path)
    with pytest.raises(
        DataError, match=r'Fix it\. Or leave out what is damaged: on_bad_data="skip" \(--on_bad_data=skip\)\.$'
    ):
        read_table(path, bad_data=BadData())
