"""`write_report`: one self-contained HTML page about training runs, searches and compressed variants."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfaccel.errors import ReportError
from tfaccel.files import write_text
from tfaccel.html_report.figures import check_plotly
from tfaccel.html_report.page import Block, Chart, Section, page
from tfaccel.html_report.plan_sections import (
    candidate_blocks,
    plan_blocks,
    read_autotune_report,
    read_roofline,
    roofline_blocks,
)
from tfaccel.html_report.progress_sections import curve_blocks, search_blocks, system_blocks
from tfaccel.html_report.records import Records, RunRecord, find_records
from tfaccel.html_report.summary_sections import (
    comparison_blocks,
    compress_blocks,
    environment_blocks,
    settings_blocks,
    summary_blocks,
)
from tfaccel.known_names import suggests_names
from tfaccel.local_path import local_path
from tfaccel.measuring.report import Report
from tfaccel.measuring.roofline import Roofline
from tfaccel.short_repr import noun

logger = logging.getLogger("tfaccel")

_SUFFIXES = (".html", ".htm")


@noun
class WrittenReport:
    """A report that was written.

    Attributes:
        path: its file.
        num_bytes: the size of the file.
        sections: title of each section -> number of its charts.
        problems: what could not be read, and is left out.
    """

    path: Path
    num_bytes: int
    sections: dict[str, int]
    problems: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return {
            "output": str(self.path),
            "num_bytes": self.num_bytes,
            "sections": self.sections,
            "problems": list(self.problems),
        }


@suggests_names
def write_report(
    *run_dirs: str | os.PathLike[str],
    output: str | os.PathLike[str] = "report.html",
    autotune_report: str | os.PathLike[str] | None = None,
    roofline: str | os.PathLike[str] | None = None,
) -> WrittenReport:
    """Writes one HTML page about runs: verdict, learning curves, throughput, plan, measured candidates, pictures.

    The page needs no network and no other file. A directory of `tfaccel search` adds its trials, one of `tfaccel
    compress` its variants. Several runs stand side by side. What a directory does not hold is left out; what is
    damaged is left out and named on the page. Needs `pip install 'tfaccel[report]'`.

    Args:
        *run_dirs: directories that `train`, `search` or `compress` wrote. A directory given twice is shown once.
        output: the file to write, which replaces an earlier one.
        autotune_report: a file of `tfaccel find-fastest --report=FILE`, whose candidates are shown; None for those that
            are kept in TFACCEL_CACHE, if they chose a run's plan.
        roofline: a file of `tfaccel roofline --report=FILE`; None for those that are kept in TFACCEL_CACHE, if they
            are of a run's workload, plan and machine.

    Raises:
        RunDirError: without directories, or for one that holds nothing of tfaccel.
        ReportError: if the output cannot be written, or `autotune_report` or `roofline` cannot be read.
        VersionError: if Plotly or Jinja is not installed.

    Example:
        >>> write_report("no/such/run")
        Traceback (most recent call last):
        ...
        tfaccel.errors.RunDirError: There is no run directory 'no/such/run'. One holds config.json and metrics.jsonl \
(written by `tfaccel train`), search.json or trials.jsonl (`tfaccel search`), or the report.json of `tfaccel compress`.
    """
    target = checked_output(output)
    records = find_records(run_dirs)
    autotune = None if autotune_report is None else read_autotune_report(autotune_report)
    limits = None if roofline is None else read_roofline(roofline)
    check_plotly()
    for problem in records.problems:
        logger.warning("Left out of the report: %s", problem)
    sections = [section for section in report_sections(records, autotune, limits) if section.blocks]
    title, subtitle = _titles(records)
    try:
        write_text(target, page(sections, title=title, subtitle=subtitle))
        num_bytes = target.stat().st_size
    except OSError as error:
        raise ReportError(f"The report {target} cannot be written: {error.strerror or error}.") from error
    counts = {one.title: sum(isinstance(block, Chart) for block in one.blocks) for one in sections}
    return WrittenReport(path=target, num_bytes=num_bytes, sections=counts, problems=records.problems)


def report_sections(records: Records, autotune: Report | None, limits: Roofline | None) -> list[Section]:
    """All sections of a report, in order; those without blocks are left out of the page.

    Args:
        records: what the directories hold.
        autotune: measured candidates to show; None for those that are kept.
        limits: the roofline to show; None for those that are kept.
    """
    runs = records.runs
    found: list[tuple[str, str, Sequence[Block]]] = [
        ("summary", "Summary", summary_blocks(records)),
        ("runs", "Runs compared", comparison_blocks(runs)),
        ("curves", "Learning curves", curve_blocks(runs)),
        *_one_each("search", "Search", "Search {}", [(one.name, search_blocks(one)) for one in records.searches]),
        *_one_each(
            "compressed",
            "Compressed variants",
            "Compressed variants of {}",
            [(name, compress_blocks(one)) for name, one in records.comparisons],
        ),
        ("pictures", "Pictures", _picture_blocks(runs)),
        ("speed", "Speed and utilization", system_blocks(runs)),
        ("plan", "Plan", plan_blocks(runs)),
        ("candidates", "Measured candidates", candidate_blocks(runs, autotune)),
        ("roofline", "Roofline", roofline_blocks(runs, limits)),
        ("options", "Options", settings_blocks(runs)),
        ("environment", "Environment", environment_blocks(runs)),
    ]
    return [Section(anchor=anchor, title=title, blocks=blocks) for anchor, title, blocks in found]


def _one_each(
    anchor: str, title: str, title_of_one: str, named: Sequence[tuple[str, Sequence[Block]]]
) -> list[tuple[str, str, Sequence[Block]]]:
    """A section for each search or comparison, with its name if there are several."""
    if len(named) == 1:
        return [(anchor, title, named[0][1])]
    return [(f"{anchor}-{number}", title_of_one.format(name), blocks) for number, (name, blocks) in enumerate(named, 1)]


def _picture_blocks(runs: Sequence[RunRecord]) -> list[Block]:
    """What the recipes drew."""
    several = sum(bool(run.pictures) for run in runs) > 1
    return [
        replace(picture, title=f"{run.name}: {picture.title}") if several else picture
        for run in runs
        for picture in run.pictures
    ]


def _titles(records: Records) -> tuple[str, str]:
    workloads = dict.fromkeys(run.workload for run in records.runs if run.workload)
    title = f"Report: {', '.join(workloads)}" if workloads else "Report"
    names = [run.name for run in records.runs]
    names += [search.name for search in records.searches] + [name for name, _ in records.comparisons]
    return title, ", ".join(dict.fromkeys(names))


def checked_output(output: str | os.PathLike[str]) -> Path:
    """The path of a report.

    Example:
        >>> checked_output("model.keras")
        Traceback (most recent call last):
        ...
        tfaccel.errors.ReportError: The report is an HTML file: its name must end in .html. Received: 'model.keras'.
    """
    target = local_path(output, ReportError)
    if target.suffix.lower() not in _SUFFIXES:
        raise ReportError(f"The report is an HTML file: its name must end in .html. Received: {str(output)!r}.")
    folder = target.absolute().parent
    try:
        if target.is_dir():
            raise ReportError(f"The report {target} cannot be written: it is a directory.")
        if not folder.is_dir():
            raise ReportError(f"The report {target} cannot be written: there is no folder {folder}. Create it first.")
    except OSError as error:
        raise ReportError(f"The report {target} cannot be written: {error.strerror or error}.") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ReportError(f"The report {target} cannot be written: {folder} is not a writable folder.")
    return target
