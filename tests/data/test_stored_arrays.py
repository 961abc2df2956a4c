"""Arrays from files: nothing is unpickled, and what would not fit is refused before it is read."""

import io
import re
import zipfile

import numpy as np
import pytest

from tfaccel.data.stored_arrays import check_archive, read_arrays


def claimed(shape):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return header.getvalue()


def test_arrays_come_back(tmp_path):
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.array("text"), "c": np.zeros((0, 4), np.int8)}
    np.savez(tmp_path / "plain.npz", **arrays)
    np.savez_compressed(tmp_path / "packed.npz", **arrays)
    np.save(tmp_path / "one.npy", np.asfortranarray(arrays["a"]))
    for name in ("plain.npz", "packed.npz"):
        found = read_arrays(tmp_path / name)
        assert list(found) == list(arrays)
        assert all(np.array_equal(found[key], arrays[key]) for key in arrays)
    assert np.array_equal(read_arrays(tmp_path / "one.npy")[""], arrays["a"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (claimed((10**13,)), "it claims 40,000,000,000,000 bytes of values, but there are 0"),
        (claimed((2,)) + b"123456789", "it claims 8 bytes of values, but there are 9"),
        (b"no array", "the magic string is not correct"),
        (b"PK no archive", "File is not a zip file"),
    ],
)
def test_files_that_are_not_what_they_claim_are_refused(tmp_path, content, message):
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(message)):
        read_arrays(tmp_path / "a.npy")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_changed_bytes_are_found(tmp_path, save):
    save(tmp_path / "a.npz", a=np.random.default_rng(0).random(1000))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    for place in (len(content) // 2, len(content) // 3):
        content[place] ^= 0xFF
        (tmp_path / "a.npz").write_bytes(content)
        with pytest.raises(ValueError, match=r".+"):
            read_arrays(tmp_path / "a.npz")


def test_arrays_that_do_not_fit_are_refused_before_they_are_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros.npy", claimed((2**20,)) + bytes(4 * 2**20))
    assert (tmp_path / "bomb.npz").stat().st_size < 10_000
    with (
        open(tmp_path / "bomb.npz", "rb") as file,
        pytest.raises(ValueError, match=r"its arrays take 4,194,432 bytes, more than this machine's memory"),
    ):
        check_archive(file, max_bytes=2**20)
    assert read_arrays(tmp_path / "bomb.npz")["zeros"].sum() == 0
