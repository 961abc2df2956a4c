"""The folder that `compress` leaves: written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tfaccel.compressing.gate import GateResult
from tfaccel.errors import CompressionError
from tfaccel.training.files import write_json

REPORT = "report.json"
PICTURE = "size_and_metric.png"
VARIANTS = "variants"
_WINNER = "model"


class OutcomeFolder:
    """A folder that appears when all is done, in place of the one that an earlier call left.

    Arguments:
        path: where.

    Raises:
        CompressionError: if something else is there.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        parent = self.path.absolute().parent
        while not parent.exists():
            parent = parent.parent
        if not parent.is_dir() or not os.access(parent, os.W_OK):
            raise CompressionError(f"The folder {self.path} cannot be made: {parent} cannot be written.")
        foreign = self.path.exists() and (
            not self.path.is_dir() or (any(self.path.iterdir()) and not (self.path / REPORT).is_file())
        )
        if foreign:
            raise CompressionError(
                f"{self.path} holds something else than compressed models. Choose another folder (out_dir)."
            )

    @contextlib.contextmanager
    def working_folder(self) -> Iterator[Path]:
        """A folder to work in, on the same disk; it is removed at the end if it is still there."""
        self.path.absolute().parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{self.path.name}-", dir=self.path.absolute().parent))
        try:
            (folder / VARIANTS).mkdir()
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def keep(self, folder: Path, result: GateResult) -> GateResult:
        """Writes the report and the winner into the working folder, and puts it in place.

        Returns:
            The result, with the paths at which the files now are.
        """
        result = replace(result, results=tuple(
            replace(one, variant=replace(one.variant, path=str(self.path / VARIANTS / Path(one.variant.path).name)))
            for one in result.results
        ))  # fmt: skip
        best = result.winner
        if best is not None:
            kept = Path(best.variant.path)
            shutil.copyfile(folder / VARIANTS / kept.name, folder / f"{_WINNER}{kept.suffix}")
        write_json(folder / REPORT, result.to_json())
        folder.chmod(0o755)
        if self.path.exists():
            old = folder.with_name(f"{folder.name}-old")
            self.path.rename(old)
            folder.rename(self.path)
            shutil.rmtree(old, ignore_errors=True)
        else:
            folder.rename(self.path)
        return result
