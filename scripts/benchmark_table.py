"""The table that `tfaccel benchmark` prints."""

from rich.table import Table
from rich.text import Text

from tfaccel.benchmarks.figure import Figure
from tfaccel.benchmarks.report import Report
from tfaccel.scripts.command import table_console


def print_report(report: Report) -> None:
    """Prints a table of all figures, then warnings about their reliability."""
    console = table_console()
    table = Table(title=f"Benchmark of the {report.suite}", title_justify="left")
    for heading in ("figure", "quantity"):
        table.add_column(heading, overflow="fold")
    for heading in ("median", "min", "max", "CPU time", "loss diff", "bound", "met"):
        table.add_column(heading, justify="right", no_wrap=True)
    for figure in report.figures:
        table.add_row(*(Text(cell) for cell in make_row(figure)))
    console.print(table)
    for warning in report.warnings:
        console.print(Text(f"warning: {warning}"))


def make_row(figure: Figure) -> list[str]:
    """The cells of a figure's row."""
    bound = ""
    if figure.at_most is not None:
        bound = f"<= {figure.at_most:g}"
    elif figure.at_least is not None:
        bound = f">= {figure.at_least:g}"
    difference = "" if figure.loss_difference is None else f"{figure.loss_difference:.1e}"
    cpu = "" if figure.cpu_median is None else f"{figure.cpu_median:.3f}"
    numbers = [f"{value:.3f}" for value in (figure.median, figure.minimum, figure.maximum)]
    met = {True: "yes", False: "NO", None: ""}[figure.met]
    return [figure.name, figure.quantity, *numbers, cpu, difference, bound, met]
