"""The choices of a plan that are worth a look, each as its flag, with the reason; shared by several commands."""

from rich.table import Table
from rich.text import Text

from tfaccel.planning.moves import MEASURED
from tfaccel.planning.placements import SET_BY_YOU
from tfaccel.planning.plan import SETTINGS, FieldExplanation, Plan, explain
from tfaccel.planning.plan_checks import EVERYDAY

# Fields that are always shown; others are shown if they were set or measured.
ALWAYS_SHOWN = tuple(name for name, setting in SETTINGS.items() if setting.level == EVERYDAY)


def choices_table(plan: Plan) -> Table:
    """A table of two columns: flags, and why they have their values; it breaks lines at spaces."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 0, 0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for explanation in decisive_choices(plan):
        table.add_row(Text(_as_flag(explanation)), Text(explanation.reason))
    return table


def decisive_choices(plan: Plan) -> list[FieldExplanation]:
    """The fields of a plan that are worth a look."""
    return [
        one
        for one in explain(plan)
        if one.field in ALWAYS_SHOWN or one.reason == SET_BY_YOU or one.reason.startswith(MEASURED)
    ]


def _as_flag(explanation: FieldExplanation) -> str:
    """A choice as a command-line flag."""
    value = explanation.value
    text = ",".join(value) if isinstance(value, tuple) else "auto" if value is None else str(value)
    if isinstance(value, bool):
        text = "on" if value else "off"
    return f"{explanation.flag.removesuffix('=VALUE')}={text}"
