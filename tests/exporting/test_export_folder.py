"""What is exported moves to its folder whole, beside what is there, or not at all."""

import pytest

from tfaccel.errors import ExportError
from tfaccel.exporting.export import export_folder, next_version


def in_folder(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_what_comes_later_stands_beside_what_is_there(tmp_path):
    for number in (None, None, 7):
        version = next_version(tmp_path / "out", number)
        with export_folder(tmp_path / "out") as folder:
            (folder / "saved_model" / str(version)).mkdir(parents=True)
            (folder / "saved_model" / str(version) / "saved_model.pb").write_text(str(version))
            (folder / "export.json").write_text(str(version))
    assert in_folder(tmp_path / "out") == [
        "export.json",
        "saved_model/1/saved_model.pb",
        "saved_model/2/saved_model.pb",
        "saved_model/7/saved_model.pb",
    ]
    assert (tmp_path / "out/export.json").read_text() == "7"
    with pytest.raises(ExportError, match="holds version 2 already"):
        next_version(tmp_path / "out", 2)


def test_export_that_came_second_says_so_and_leaves_the_first(tmp_path):
    def write(folder, text):
        (folder / "saved_model" / "1").mkdir(parents=True)
        (folder / "saved_model" / "1" / "saved_model.pb").write_text(text)

    with (
        pytest.raises(ExportError, match=r"Cannot write to .*out: .*not empty"),
        export_folder(tmp_path / "out") as folder,
    ):
        write(folder, "second")
        (tmp_path / "out").mkdir()
        write(tmp_path / "out", "first")
    assert in_folder(tmp_path) == ["out/saved_model/1/saved_model.pb"]
    assert (tmp_path / "out/saved_model/1/saved_model.pb").read_text() == "first"


def test_error_while_writing_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError, match="power"), export_folder(tmp_path / "out") as folder:
        (folder / "half").write_text("written")
        raise RuntimeError("power")
    assert list(tmp_path.iterdir()) == []
