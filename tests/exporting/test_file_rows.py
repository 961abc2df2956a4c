"""Rows to predict are read from text files as training reads them: their encodings, compression and damage."""

import gzip
import re
from types import SimpleNamespace

import numpy as np
import pytest

from tfaccel.errors import DataError
from tfaccel.exporting.file_rows import read_rows
from tfaccel.exporting.predict_files import _predicted

TEXTS = SimpleNamespace(kind="text")
LINES = '"one"\n{"text": "zwei ü"}\n'


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", LINES.encode("utf-8-sig")),
        ("a.jsonl", LINES.encode("utf-16")),
        ("a.jsonl.gz", gzip.compress(LINES.replace("\n", "\r\n").encode(), mtime=0)),
        ("a.txt", "one\n\nzwei ü".encode("utf-16")),
        ("a.txt.gz", gzip.compress("one\rzwei ü".encode(), mtime=0)),
        ("a.csv.gz", gzip.compress("text\none\nzwei ü\n".encode(), mtime=0)),
    ],
)
def test_texts_of_all_encodings_are_read(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert read_rows(tmp_path / name, {}, TEXTS).texts == ("one", "zwei ü")


def test_a_wrong_encoding_says_what_to_do(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\ncaf\xe9")
    with pytest.raises(
        DataError, match=re.escape("line 2: byte 0xe9 is not in the encoding of the file. Fix the line. Or")
    ):
        read_rows(tmp_path / "a.txt", {}, TEXTS)
    assert read_rows(tmp_path / "a.txt", {}, TEXTS, encoding="latin-1").texts == ("one", "café")


def test_files_of_a_folder_have_the_encoding_that_is_given(tmp_path, monkeypatch):
    for name, content in {"a.txt": "日本".encode("iso2022_jp"), "b.txt": b"a\0b", "c.txt": b" \n"}.items():
        (tmp_path / name).write_bytes(content)
    rows = read_rows(tmp_path, {}, TEXTS, encoding="iso2022_jp")
    read, unreadable = {}, {}
    monkeypatch.setattr(
        "tfaccel.exporting.predict_files._of_contents", lambda _, contents, wrong: read.update(contents)
    )
    _predicted(None, rows, slice(0, 3), unreadable)
    assert read == {str(tmp_path / "a.txt"): "日本".encode()}
    assert "line 1 holds a zero byte" in unreadable[str(tmp_path / "b.txt")]
    assert "holds no text" in unreadable[str(tmp_path / "c.txt")]


def test_an_image_file_for_a_model_of_arrays_says_how_to_describe_images(tmp_path):
    (tmp_path / "a.png").write_bytes(b"")
    inputs = {"pixels": np.zeros((1, 8, 8, 3), np.float32)}
    text = r"For image files, train with a description of them: raw_input=tfaccel\.options\.ImageInput.*image_size=8"
    with pytest.raises(DataError, match=text):
        read_rows(tmp_path / "a.png", inputs, None)
