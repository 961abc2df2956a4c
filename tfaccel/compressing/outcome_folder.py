"""The output folder of `compress`, written atomically."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tfaccel.compressing.compress_result import CompressResult
from tfaccel.compressing.litert.file import make_archive
from tfaccel.compressing.variant import KERAS_SUFFIX, LITERT_SUFFIX
from tfaccel.data.raw_input import RawInput
from tfaccel.errors import CompressionError
from tfaccel.files import folder_beside, write_json
from tfaccel.local_path import local_path

REPORT = "report.json"
PICTURE = "size_and_metric.png"
VARIANTS = "variants"
_WINNER = "model"
_CONTENTS = frozenset({REPORT, PICTURE, VARIANTS, f"{_WINNER}{LITERT_SUFFIX}", f"{_WINNER}{KERAS_SUFFIX}"})


class OutcomeFolder:
    """An output folder that replaces an earlier one only when it is complete."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = local_path(path, CompressionError)
        if not str(path):
            raise CompressionError("`out_dir` must be a folder. Received an empty text.")
        parent = self.path.absolute().parent
        while not parent.exists():
            parent = parent.parent
        if not parent.is_dir() or not os.access(parent, os.W_OK):
            raise CompressionError(f"The folder {self.path} cannot be made: {parent} cannot be written.")
        foreign = self._foreign()
        if foreign:
            raise CompressionError(
                f"{self.path} holds something else than compressed models ({foreign}). Choose another folder (out_dir)."
            )

    @contextlib.contextmanager
    def working_folder(self) -> Iterator[Path]:
        """A temporary folder on the same disk, removed at the end.

        Raises:
            CompressionError: if it is moved away in between, together with the folder that it is in.
        """
        place = self.path.resolve()
        place.parent.mkdir(parents=True, exist_ok=True)
        folder = folder_beside(place)
        try:
            (folder / VARIANTS).mkdir()
            yield folder
        except Exception as error:
            if folder.exists():
                raise
            raise self._gone() from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def keep(self, folder: Path, result: CompressResult, *, raw_input: RawInput | None = None) -> CompressResult:
        """Writes the report and the winner into the working folder, and moves it into place.

        Args:
            folder: the working folder.
            result: the variants in it, compared.
            raw_input: the model's raw inputs, recorded in the winner if it is a LiteRT file.

        Returns:
            The result, with the new paths of its files.
        """
        if not (folder / VARIANTS).is_dir():
            raise self._gone()
        result = replace(
            result,
            results=tuple(
                replace(one, variant=replace(one.variant, path=str(self.path / VARIANTS / Path(one.variant.path).name)))
                for one in result.results
            ),
        )
        best = result.winner
        if best is not None:
            kept = Path(best.variant.path)
            winner = folder / f"{_WINNER}{kept.suffix}"
            shutil.copyfile(folder / VARIANTS / kept.name, winner)
            if best.variant.is_litert:
                with winner.open("ab") as file:
                    file.write(make_archive(raw_input))
        write_json(folder / REPORT, result.to_json())
        place = self.path.resolve()
        if place.exists():
            old = folder.with_name(f"{folder.name}-old")
            place.rename(old)
            folder.rename(place)
            shutil.rmtree(old, ignore_errors=True)
        else:
            folder.rename(place)
        return result

    def _gone(self) -> CompressionError:
        return CompressionError(
            f"The folder that {self.path} is in was moved or emptied, and nothing is written there. Compress the model "
            "again where it is now."
        )

    def _foreign(self) -> str:
        """A file in the folder, or at its path, that `compress` did not write; "" for none."""
        if not self.path.exists():
            return ""
        if not self.path.is_dir():
            return "a file"
        found = sorted(entry.name for entry in self.path.iterdir())
        others = [name for name in found if name not in _CONTENTS]
        if not others and found and REPORT not in found:
            others = found
        return ", ".join(others[:3])
