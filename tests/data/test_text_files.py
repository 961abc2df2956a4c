"""Text from files, and one clear line for each way in which it cannot be read."""

import gzip
import re

import pyarrow
import pytest
from pyarrow import parquet

from tfaccel.data import BadData
from tfaccel.data.texts.files import read_aligned_lines, read_columns, read_labelled_texts, read_text, whole_lines
from tfaccel.data.texts.text_data import TextPairs, read_summaries, read_translations
from tfaccel.errors import DataError


def test_text_has_newlines_and_no_mark_at_its_start(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffÄ\r\nb\rc".encode())
    assert read_text(tmp_path / "a.txt") == "Ä\nb\nc"


def test_only_newlines_end_lines(tmp_path):
    odd = "one\u2028two\x85three\ffour\x1cfive"
    (tmp_path / "a.txt").write_text(f"{odd}\nsix\n", encoding="utf-8")
    assert whole_lines(tmp_path / "a.txt", BadData()) == [f"{odd}\n", "six\n"]
    (tmp_path / "a.csv").write_text(f"label,text\ngood,{odd}\nbad,six\n", encoding="utf-8")
    assert read_columns(tmp_path / "a.csv", ("text", "label")) == ([odd, "six"], ["good", "bad"])
    (tmp_path / "a.csv").write_text('label,text\ngood,"a\u2028b\n\nc"\n', encoding="utf-8")
    assert read_columns(tmp_path / "a.csv", ("text", "label"))[0] == ["a\u2028b\n\nc"]


def test_a_missing_value_is_a_text_but_no_label(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text,label\nNA,good\nno,NA\n")
    with pytest.raises(DataError, match=r"line 3: column 'label' is empty"):
        read_columns(path, ("text", "label"), texts=("text",))
    assert read_columns(path, ("text", "label")) == (["NA", "no"], ["good", "NA"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"good\ncaf\xe9\n",
            "is not written in utf-8: byte 0xe9 cannot be read. It is in line 2. Save the file as UTF-8.",
        ),
        ("Text".encode("utf-16-le"), "is damaged, or not a text file: line 1 holds a zero byte."),
        (gzip.compress(b"Text", mtime=0)[:-4], "Cannot read"),
        (b"PK\3\4Text", "Cannot read"),
        (b" \n", "holds no text."),
        (None, "There is no file"),
    ],
)
def test_text_that_cannot_be_read_is_refused(tmp_path, content, message):
    path = tmp_path / "a.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        read_text(path)
    assert str(path) in str(caught.value)


def test_folder_is_no_text_file(tmp_path):
    with pytest.raises(DataError, match=re.escape(f"Expected a text file. Received the folder {tmp_path}.")):
        read_text(tmp_path)


def test_columns_are_read_by_name(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('label, text ,other\ngood,"one, two\nthree",1\nbad,four,2\n')
    assert read_columns(path, ("text", "label")) == (["one, two\nthree", "four"], ["good", "bad"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("txt,label\na,b\n", "has no column 'text'. Did you mean 'txt'?"),
        ("words,label\na,b\n", "has no column 'text'. Columns: words, label."),
        ("text:label\na:b\n", "has no column 'text'. Columns: text:label."),
        ("text,label,text\na,b,c\n", "are called 'text'. Give each a different name."),
        (
            "text,label\na,b\none, two,c\n",
            "line 3: it has 3 fields, but the header has 2. Fix it. Put fields that hold",
        ),
        ("text,label\na,b\n,c\n", "line 3: column 'text' is empty. Fill or remove it."),
        ("text,label\na,b\nc\n", "line 3: it has 1 fields, but the header has 2."),
        ('text,label\na,b\nc,""\n', "line 3: column 'label' is empty."),
        ('text,label\n"a"b,c\n', "line 2: ',' expected after '\"'. Fix the row."),
        ('text,label\na,b\n"c,d\ne,f\n', "line 3: unexpected end of data. Fix the row."),
        ("text,label\n", "has a header, but no rows."),
    ],
)
def test_columns_that_cannot_be_used_are_refused(tmp_path, content, message):
    path = tmp_path / "a.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=re.escape(message)):
        read_columns(path, ("text", "label"))


def test_texts_of_tables_are_read_as_other_tables_are(tmp_path):
    path, found = tmp_path / "a.csv", (["sch\u00f6n, neu", "None"], ["gut", "NA"])
    for start, encoding in (("sep=;\r\n", "utf-16"), ("", "utf-8-sig"), ("\n", "latin-1")):
        path.write_text(start + "text;label\nsch\u00f6n, neu;gut\nNone;NA\n", encoding=encoding)
        given = encoding if encoding == "latin-1" else "utf-8"
        assert read_columns(path, ("text", "label"), encoding=given) == found
    with pytest.raises(DataError, match=r"is not written in utf-8: .* --encoding=latin-1"):
        read_columns(path, ("text", "label"))
    table = pyarrow.table({"text": found[0], "label": found[1]})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert read_columns(tmp_path / "a.parquet", ("text", "label")) == found


def test_aligned_lines_without_empty_ones(tmp_path):
    (tmp_path / "a").write_text("one\n\n two \n")
    (tmp_path / "b").write_text("eins\n\nzwei")
    assert read_aligned_lines(tmp_path / "a", tmp_path / "b") == [("one", "eins"), ("two", "zwei")]


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("a\nb\nc\n", "A\nB\n", "are not aligned: line 3 of {0} has no line in {1}, which ends with line 2."),
        ("a\n", "A\nB\nC\n", "are not aligned: line 2 of {1} has no line in {0}, which ends with line 1."),
        ("a\n\nc\n", "A\nB\nC\n", "are not aligned: line 2 of {0} is empty, but that of {1} is not."),
        ("a\nb\nc\n", "A\nB\n \n", "are not aligned: line 3 of {1} is empty, but that of {0} is not."),
    ],
)
def test_lines_that_do_not_go_together_are_named(tmp_path, source, target, message):
    (tmp_path / "source.txt").write_text(source)
    (tmp_path / "target.txt").write_text(target)
    message = message.format(tmp_path / "source.txt", tmp_path / "target.txt")
    with pytest.raises(DataError, match=re.escape(message)):
        read_translations(tmp_path)


def test_translations_need_a_folder(tmp_path):
    with pytest.raises(DataError, match=re.escape("must be a folder with source.txt and target.txt.")):
        read_translations(tmp_path / "none")


def test_pairs_are_cut_the_same_way_each_time(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("document,summary\n" + "".join(f"text {n},sum {n}\n" for n in range(30)) + "text 0,sum 0\n")
    pairs = read_summaries(path)
    assert (len(pairs.train), len(pairs.test)) == (27, 3)
    assert not set(pairs.train) & set(pairs.test)
    assert read_summaries(path) == pairs
    with pytest.raises(
        DataError, match=re.escape("here must have two different pairs of texts at least. Received: 1.")
    ):
        TextPairs.cut([("a", "b"), ("a", "b")], "here")


def test_labelled_texts_from_a_folder_and_from_a_file_are_the_same(tmp_path):
    rows = ["text,label"]
    for number in range(20):
        name = "ab"[number % 2]
        (tmp_path / "folder" / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / name / f"{number:02}.txt").write_text(f"text {number}")
        rows.append(f"text {number},{name}")
    (tmp_path / "a.csv").write_text("\n".join([rows[0], *rows[1::2], *rows[2::2]]) + "\n")
    texts = read_labelled_texts(tmp_path / "folder")
    assert texts == read_labelled_texts(tmp_path / "a.csv")
    assert (texts.class_names, len(texts.train_texts), sorted(texts.test_labels)) == (("a", "b"), 16, [0, 0, 1, 1])


def test_folders_train_and_test_of_texts_are_the_split(tmp_path):
    def write(name, text):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    for part in ("Train", "TEST"):
        for name in ("neg", "pos"):
            write(f"{part}/{name}/1.txt", f"{part} {name}")
    texts = read_labelled_texts(tmp_path)
    assert texts.class_names == ("neg", "pos")
    assert (texts.train_texts, texts.train_labels) == (("Train neg", "Train pos"), (0, 1))
    assert (texts.test_texts, texts.test_labels) == (("TEST neg", "TEST pos"), (0, 1))
    write("Train/unsup/1.txt", "of no class")
    with pytest.raises(DataError, match=r"The class folder .*TEST/unsup holds no \.txt file\."):
        read_labelled_texts(tmp_path)
    (tmp_path / "Train").rename(tmp_path / "TEST" / "Train")
    with pytest.raises(DataError, match=r"has a folder 'TEST' with classes, but no folder 'train'\. Add it\."):
        read_labelled_texts(tmp_path)


@pytest.mark.parametrize(("first", "second"), [("1", "1.0"), ("True", "true")])
def test_classes_of_texts_are_spelled_in_one_way(tmp_path, first, second):
    (tmp_path / "a.csv").write_text(f"text,label\na,{first}\nb,{second}\nc,0\nd,0\n")
    with pytest.raises(
        DataError, match=f"The column 'label' of .* has the classes '{first}' and '{second}', which are"
    ):
        read_labelled_texts(tmp_path / "a.csv")


def test_labelled_texts_that_cannot_be_used_are_refused(tmp_path):
    def refused(message, path):
        with pytest.raises(DataError, match=re.escape(message)):
            read_labelled_texts(path)

    refused("There is no folder or file", tmp_path / "none")
    refused("must have one sub-folder of .txt files for each class. Received: none.", tmp_path)
    (tmp_path / "a").mkdir()
    refused("a holds no .txt file.", tmp_path)
    (tmp_path / "a" / "1.txt").write_text("one")
    refused("must have at least two classes. Received one, 'a'.", tmp_path)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "1.txt").write_text("one")
    refused("has one text; it needs at least two", tmp_path)
    (tmp_path / "b" / "2.txt").write_bytes(b"\xff")
    refused("2.txt is not written in utf-8", tmp_path)


def test_text_files_of_other_encodings_are_read(tmp_path):
    text = "Füße\n日本\n"
    for content in (
        text.encode("utf-16"),
        text.encode("utf-8-sig"),
        gzip.compress(text.replace("\n", "\r\n").encode()),
    ):
        (tmp_path / "a.txt").write_bytes(content)
        assert read_text(tmp_path / "a.txt") == text
    for name in "ab":
        (tmp_path / name).mkdir()
        for number in range(2):  # all its bytes are ASCII
            (tmp_path / name / f"{number}.txt").write_bytes("日本".encode("iso2022_jp"))
    assert set(read_labelled_texts(tmp_path, encoding="iso2022_jp").train_texts) == {"日本"}
