"""TFRecord files and their `tf.train.Example` messages without TensorFlow: written atomically, validated record by
record, and read in random order."""

from __future__ import annotations

import contextlib
import functools
import glob
import itertools
import os
import re
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import google_crc32c
import numpy as np

from tfaccel.data.bad_data import BadData
from tfaccel.errors import DataError
from tfaccel.local_path import local_path
from tfaccel.remote import readable_path

_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_HEAD = _LENGTH.size + _CHECKSUM.size
_NAME = re.compile(r".*\.tfrecords?(-\d+-of-\d+)?(\.gz|\.zlib)?")
_NUMBERED = re.compile(r"(.*)-(\d+)-of-(\d+)(.*)")
_COMPRESSED = (b"\x1f\x8b", b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")  # magic numbers of gzip and zlib
_MASK_DELTA = 0xA282EAD8

Value = bytes | str | int | float
_LISTS = (("bytes_list", "TYPE_BYTES"), ("float_list", "TYPE_FLOAT"), ("int64_list", "TYPE_INT64"))


def masked_crc32c(data: bytes) -> int:
    """The masked CRC-32C of TFRecord files.

    Source: https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecord_files_in_python

    Example:
        >>> hex(masked_crc32c(b"123456789"))
        '0xc78ab0e5'
    """
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def write_tfrecords(
    examples: Iterable[Mapping[str, Value | Sequence[Value]]],
    folder: str | os.PathLike[str],
    *,
    num_shards: int = 1,
    name: str = "examples",
) -> list[Path]:
    """Writes examples to `NAME-00000-of-00004.tfrecord` and so on: all files, or none if something fails.

    Args:
        examples: each maps feature names to bytes, strings or numbers; see `encode_example`.
        folder: where to write the files; it is created if missing.
        num_shards: number of files. Examples are distributed round-robin.
        name: prefix of the file names. `read_image_set` recognizes "train" and "test" as those parts.

    Returns:
        The paths of the files.

    Raises:
        DataError: if a file exists already, a feature cannot be written, or there are fewer examples than files.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     files = write_tfrecords([{"number": i} for i in range(5)], folder, num_shards=2)
        ...     [file.name for file in files], len(RecordIndex.of(files))
        (['examples-00000-of-00002.tfrecord', 'examples-00001-of-00002.tfrecord'], 5)
    """
    if num_shards < 1:
        raise DataError(f"`num_shards` must be at least 1. Received: num_shards={num_shards}.")
    folder = local_path(folder, DataError)
    paths = [folder / f"{name}-{i:05d}-of-{num_shards:05d}.tfrecord" for i in range(num_shards)]
    there = next((path for path in paths if path.exists()), None)
    if there is not None:
        raise DataError(f"The file {there} exists already. Remove it, or choose another folder or name.")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unfinished-") as unfinished:
        num_examples = 0
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(open(Path(unfinished, path.name), "wb")) for path in paths]
            for num_examples, example in enumerate(examples, start=1):
                data = encode_example(example)
                length = _LENGTH.pack(len(data))
                record = length + _CHECKSUM.pack(masked_crc32c(length)) + data + _CHECKSUM.pack(masked_crc32c(data))
                files[(num_examples - 1) % num_shards].write(record)
        if num_examples < num_shards:
            raise DataError(f"There are {num_examples} examples for {num_shards} files. Use fewer files.")
        for path in paths:
            os.replace(Path(unfinished, path.name), path)
    return paths


def find_tfrecords(place: str | os.PathLike[str], bad_data: BadData | None = None) -> list[Path]:
    """The sorted TFRecord files of a folder or of a pattern such as `data/*.tfrecord`, or the single file of that name.

    Args:
        place: the folder, pattern or file.
        bad_data: what to do if one of several numbered files is missing in a folder.

    Raises:
        DataError: if one is missing.
    """
    bad_data = bad_data or BadData()
    path = readable_path(place, DataError)
    if path.is_dir():
        found = [entry for entry in path.iterdir() if _NAME.fullmatch(entry.name) and not entry.name.startswith(".")]
    elif path.exists():
        found = [path] if _NAME.fullmatch(path.name) else []
    else:
        found = [Path(name) for name in glob.glob(str(place)) if _NAME.fullmatch(os.path.basename(name))]
    groups: dict[tuple[str, ...], set[int]] = {}
    for match in filter(None, (_NUMBERED.fullmatch(str(file)) for file in found)):
        groups.setdefault((match[1], match[3], match[4]), set()).add(int(match[2]))
    for (start, count, end), numbers in groups.items():
        missing = sorted(set(range(int(count))) - numbers) if path.is_dir() else []
        names = [f"{start}-{number:0{len(count)}d}-of-{count}{end}" for number in missing]
        for name in names:
            others = f" (nor {', '.join(names[1:5])}{' ...' if len(names) > 5 else ''})" if len(names) > 1 else ""
            error = DataError(f"There is no file {name}{others}, one of {int(count)}. Copy it as well.")
            bad_data.found(error, name, count=None)
    return sorted(found)


@dataclass(frozen=True)
class RecordIndex:
    """The position of each readable record in some TFRecord files.

    Records are numbered from 0, file after file. Each can be read without those before it.

    Args:
        paths: the files.
        files: int32, the index of each record's file in `paths`.
        numbers: int64, the number of each record in its file, from 0.
        offsets: int64, where each record's data begins.
        lengths: int64, its bytes.
    """

    paths: tuple[Path, ...]
    files: np.ndarray
    numbers: np.ndarray
    offsets: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, paths: Iterable[Path], bad_data: BadData | None = None) -> RecordIndex:
        """Reads and validates all files, and returns their index.

        Args:
            paths: the files.
            bad_data: what to do with damaged records and empty files. If the length of a record is damaged, the rest of
                its file is lost, and its number of records is estimated from its bytes.

        Raises:
            DataError: if a record is corrupt or truncated, or a file is empty; file and record are named.
        """
        paths, bad_data = tuple(paths), bad_data or BadData()
        places: list[tuple[int, int, int, int]] = []
        rests: list[tuple[DataError, Path, int, int]] = []
        for file, path in enumerate(paths):
            for record in _records(path):
                if record.error is None:
                    places.append((file, record.number, record.offset, record.length))
                elif record.is_last and bad_data.skips:
                    rests.append((record.error, path, record.number, record.length))
                else:
                    bad_data.found(record.error, path, record.number)
        columns = np.array(places, np.int64).reshape(-1, 4).T
        mean = max(1.0, float(columns[3].mean()) + _HEAD + _CHECKSUM.size) if places else np.inf
        for error, path, number, num_bytes in rests:
            if num_bytes:
                bad_data.found(error, path, number, count=max(1, round(num_bytes / mean)))
            else:
                bad_data.found(error, path, count=None)
        return cls(paths, columns[0].astype(np.int32), *columns[1:])

    def kept(self, rows: np.ndarray) -> RecordIndex:
        """The index of these records only."""
        return RecordIndex(self.paths, self.files[rows], self.numbers[rows], self.offsets[rows], self.lengths[rows])

    def __len__(self) -> int:
        return len(self.offsets)

    def read(self, number: int) -> bytes:
        """The data of one record."""
        with open(self.paths[self.files[number]], "rb") as file:
            return os.pread(file.fileno(), int(self.lengths[number]), int(self.offsets[number]))

    def name(self, number: int) -> str:
        """File and record for messages."""
        path, in_file = self.place(number)
        return f"record {in_file} (from 0) of {path}"

    def place(self, number: int) -> tuple[str, int]:
        """The path of a record's file, and the record's number there."""
        return str(self.paths[self.files[number]]), int(self.numbers[number])

    def identity(self) -> str:
        """A string that differs for different files."""
        return f"{file_states(self.paths)} {len(self)}"


def file_states(paths: Iterable[str | os.PathLike[str]]) -> str:
    """The names, sizes and modification times of files as a string, which changes with any of them."""
    states = [(os.path.abspath(path), os.stat(path)) for path in paths]
    return str([(name, state.st_size, state.st_mtime_ns) for name, state in states])


@dataclass(frozen=True)
class _Record:
    """A record of a file; or a damaged one, with the error. The file cannot be read any further if it `is_last`."""

    number: int
    offset: int
    length: int  # bytes; of the rest of the file if it is the last
    error: DataError | None = None
    is_last: bool = False


def _records(path: Path) -> Iterator[_Record]:
    with _opened(path) as file:
        size, place = os.fstat(file.fileno()).st_size, 0
        if not size:
            yield _Record(0, 0, 0, DataError(f"{path} is empty (0 bytes). Write or copy the file again."), True)
        for number in itertools.count():
            if place >= size:
                return
            head = file.read(_HEAD)
            length = _LENGTH.unpack(head[:8])[0] if len(head) == _HEAD else size
            reason = ""
            if len(head) == _HEAD and _CHECKSUM.unpack(head[8:])[0] != masked_crc32c(head[:8]):
                if place == 0 and head[:2] in _COMPRESSED:
                    raise DataError(f"{path} is compressed. Write TFRecord files without compression, or use gunzip.")
                reason = "the checksum of its length is wrong"
            elif place + _HEAD + length + _CHECKSUM.size > size:
                reason = "the file ends inside of it"
            if reason:
                yield _Record(number, place, size - place, _damaged(path, number, reason), True)
                return
            data, checksum = file.read(length), file.read(_CHECKSUM.size)
            is_whole = _CHECKSUM.unpack(checksum)[0] == masked_crc32c(data)
            wrong = None if is_whole else _damaged(path, number, "its checksum is wrong")
            yield _Record(number, place + _HEAD, length, wrong)
            place += _HEAD + length + _CHECKSUM.size


def _opened(path: Path) -> IO[bytes]:
    try:
        return open(path, "rb")
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror}.") from error


def _damaged(path: Path, record: int, reason: str) -> DataError:
    return DataError(f"Record {record} (from 0) of {path} is damaged: {reason}. Write or copy the file again.")


def encode_example(features: Mapping[str, Value | Sequence[Value]]) -> bytes:
    """A serialized `tf.train.Example`.

    Args:
        features: name -> a string, bytes, an integer or a float, or several of one type.

    Raises:
        DataError: for a value of another type.

    Example:
        >>> decode_example(encode_example({"label": 3, "name": "three"}))
        {'label': [3], 'name': [b'three']}
    """
    message = _message_class()()
    for name, value in features.items():
        several: Any = [value] if np.isscalar(value) else value
        values: list[Any] = [item.encode() if isinstance(item, str) else item for item in several]
        feature = message.features.feature[name]
        if all(isinstance(item, bytes) for item in values):
            feature.bytes_list.value.extend(values)
        elif all(hasattr(item, "__index__") for item in values):
            feature.int64_list.value.extend(int(item) for item in values)
        elif all(hasattr(item, "__float__") for item in values):
            feature.float_list.value.extend(float(item) for item in values)
        else:
            raise DataError(
                f"A feature must be texts, bytes, or numbers, all of one kind. Received: {name}={value!r:.100}."
            )
    encoded: bytes = message.SerializeToString(deterministic=True)
    return encoded


def decode_example(data: bytes) -> dict[str, list[Any]]:
    """Name -> values (bytes, floats or integers) of a serialized `tf.train.Example`, in name order.

    Raises:
        DataError: if the bytes are not such a message.
    """
    from google.protobuf.message import DecodeError

    try:
        message = _message_class().FromString(data)
    except DecodeError as error:
        raise DataError(f"This is not a tf.train.Example ({error}).") from error
    features = message.features.feature
    found = {}
    for name in sorted(features):
        kind = features[name].WhichOneof("kind")
        found[name] = list(getattr(features[name], kind).value) if kind else []
    return found


@functools.cache
def _message_class() -> Any:
    """The message class, as defined by tensorflow/core/example/example.proto and feature.proto."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="tfaccel/example.proto", package="tfaccel", syntax="proto3")

    def field(message: Any, name: str, number: int, kind: str, **options: Any) -> None:
        label = kinds.LABEL_REPEATED if options.pop("repeated", False) else kinds.LABEL_OPTIONAL
        message.field.add(name=name, number=number, type=kinds.Type.Value(kind), label=label, **options)

    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, kind) in enumerate(_LISTS, start=1):
        field(file.message_type.add(name=name), "value", 1, kind, repeated=True)
        field(feature, name, number, "TYPE_MESSAGE", type_name=f".tfaccel.{name}", oneof_index=0)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    field(entry, "key", 1, "TYPE_STRING")
    field(entry, "value", 2, "TYPE_MESSAGE", type_name=".tfaccel.Feature")
    field(features, "feature", 1, "TYPE_MESSAGE", type_name=".tfaccel.Features.FeatureEntry", repeated=True)
    field(file.message_type.add(name="Example"), "features", 1, "TYPE_MESSAGE", type_name=".tfaccel.Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tfaccel.Example"))
