"""The content of files, compressed or not; and the characters of text files, in any encoding."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import os
import re
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow

from tfaccel.errors import DataError

COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst", ".zip")
_BYTE_ORDER_MARKS = {b"\xff\xfe\0\0": "utf-32", b"\0\0\xfe\xff": "utf-32", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_MARK = "\ufeff"  # which some programs put first
KEEP_BYTES = "surrogateescape"  # how bytes that cannot be decoded become characters, which `text_damage` finds
_DAMAGE = re.compile("[\0\udc80-\udcff]")


def data_suffix(path: str | os.PathLike[str]) -> str:
    """The ending of a file's name in lowercase, without that of its compression.

    Example:
        >>> data_suffix("a.CSV"), data_suffix("a.csv.gz"), data_suffix("a.gz")
        ('.csv', '.csv', '')
    """
    name = Path(path)
    return (Path(name.stem) if name.suffix.lower() in COMPRESSED_SUFFIXES else name).suffix.lower()


def _from_zip(content: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX/")]
        if len(names) != 1:
            raise OSError(f"it is a ZIP archive of {len(names)} files, not of one")
        return archive.read(names[0])


def _from_zstd(content: bytes) -> bytes:
    return bytes(pyarrow.CompressedInputStream(pyarrow.BufferReader(content), "zstd").read())


_DECOMPRESS: dict[bytes, Callable[[bytes], bytes]] = {  # by how such files begin, whatever their names
    rb"\x1f\x8b\x08": gzip.decompress,
    rb"BZh[1-9]1AY&SY": bz2.decompress,
    rb"\xfd7zXZ\x00": lzma.decompress,
    rb"\x28\xb5\x2f\xfd": _from_zstd,
    rb"PK\x03\x04": _from_zip,
}


def read_decompressed(path: Path) -> bytes:
    """The content of a file, decompressed if it is compressed, whatever its name.

    Raises:
        DataError: if it cannot be read or decompressed.
    """
    try:
        content = path.read_bytes()
        decompress = next((one for start, one in _DECOMPRESS.items() if re.match(start, content)), None)
        return content if decompress is None else decompress(content)
    except FileNotFoundError as error:
        raise DataError(f"There is no file {path}.") from error
    except (OSError, EOFError, RuntimeError, lzma.LZMAError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"Cannot read {path}: {getattr(error, 'strerror', None) or error}.") from error


def read_characters(path: Path, codec: str = "utf-8-sig", *, keeps_damage: bool = False, advice: str = "") -> str:
    """The characters of a text file, decompressed, with newlines as line ends and without a byte order mark.

    Args:
        path: the file.
        codec: Python's name of its encoding, see `get_codec`. UTF-16 with its byte order mark is recognized.
        keeps_damage: whether bytes that are not in the encoding are kept for `text_damage` to find.
        advice: what to do about them.

    Raises:
        DataError: if it cannot be read, decompressed or decoded; the line is named.
    """
    content = read_decompressed(path)
    if codec == "utf-8-sig":
        codec = next((name for mark, name in _BYTE_ORDER_MARKS.items() if content.startswith(mark)), codec)
    try:
        text = content.decode(codec, KEEP_BYTES if keeps_damage else "strict")
    except UnicodeError as error:
        wrong = str(error)
        if isinstance(error, UnicodeDecodeError):
            line = content.count(b"\n", 0, error.start) + 1
            wrong, codec = f"byte {content[error.start]:#04x} cannot be read. It is in line {line}", error.encoding
        raise DataError(f"{path} is not written in {codec}: {wrong}. {advice}".strip()) from error
    text = text.removeprefix(_MARK)  # as codecs whose name says the order of bytes keep it
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def get_codec(encoding: str) -> str:
    """Python's name of an encoding; in UTF-8, the mark that some programs put first is passed over.

    Raises:
        DataError: if there is none.

    Example:
        >>> get_codec("latin1"), get_codec("UTF-8")
        ('iso8859-1', 'utf-8-sig')
    """
    try:
        name = codecs.lookup(str(encoding)).name
        "".encode(name)  # rot13, say, encodes no text
    except LookupError as error:
        raise DataError(
            f"There is no encoding {encoding!r}. Common ones: utf-8, utf-16, latin-1, cp1252, shift_jis, gb18030."
        ) from error
    return "utf-8-sig" if name == "utf-8" else name


def text_damage(text: str) -> str:
    """What is wrong with a text, or "": zero bytes, and bytes that are not in the encoding (see `KEEP_BYTES`).

    Example:
        >>> text_damage(b"a\\xffb".decode("utf-8", KEEP_BYTES)), text_damage("a")
        ('byte 0xff is not in the encoding of the file', '')
    """
    found = _DAMAGE.search(text)
    if found is None:
        return ""
    byte = ord(found[0]) & 0xFF
    return f"byte 0x{byte:02x} is not in the encoding of the file" if byte else "it holds a zero byte"
