"""Tables in terminals of any width: no word is broken or cut, no cell is lost, and no line is too long."""

import re
from pathlib import Path

import pytest
from rich.table import Table

from tfaccel.hardware.hardware import Cluster, Device, Hardware
from tfaccel.planning.candidates import candidate_plans
from tfaccel.planning.workload import Workload
from tfaccel.scripts import command, recipes
from tfaccel.scripts import plan as plan_command
from tfaccel.scripts.doctor import print_checks

CODES_AND_LINES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\u2500-\u257f]")
WIDTHS = (100, 80, 60, 40)
FIRST_HEADINGS = {"field", "variable", "check"}  # over what heads a row where rows become text


def plans():
    gpus = tuple(Device(kind="GPU", index=i, model="H100", compute_capability=(9, 0)) for i in range(2))
    cluster = Cluster(source="tf_config", num_workers=4, task_index=0)
    machine = Hardware(num_physical_cores=32, num_usable_cores=32, devices=gpus, cluster=cluster)
    workload = Workload("mine", object, dict, list, global_batch_size=64)
    return workload, candidate_plans(machine, workload)


def print_plans():
    workload, found = plans()
    plan_command._print(workload, found, shows_all=False)


def print_all_fields():
    workload, found = plans()
    plan_command._print(workload, found, shows_all=True)


def print_recipes():
    assert recipes.run(["recipes"]) == 0


def print_names_with_brackets():
    table = Table("variable", "a heading of words", title="In runs/[bold]/model[/x].keras", title_justify="left")
    table.add_column("long", no_wrap=True, justify="right")
    table.add_row("dense[0]/kernel[/red]", "1.5", "")
    table.add_row("a_name_of_some_thirty_letters", "", "[link] two words")
    command.table_console().print(table)


def print_doctor():
    from tfaccel.hardware.doctor import Check

    text = "tensorflow.python.framework.errors_impl.InternalError when the first kernel was launched on the device"
    print_checks([Check(name="xla_on_each_device", status="fail", detail=text, remedy="pip install x")])


@pytest.mark.parametrize(
    "show", [print_plans, print_all_fields, print_recipes, print_names_with_brackets, print_doctor]
)
def test_words_are_whole_at_any_width(show, monkeypatch, capsys):
    show()
    words = set(CODES_AND_LINES.sub("", capsys.readouterr().out).split())
    for width in WIDTHS:
        for name, value in {"FORCE_COLOR": "1", "COLUMNS": str(width), "TERM": "xterm"}.items():
            monkeypatch.setenv(name, value)
        show()
        lines = CODES_AND_LINES.sub("", capsys.readouterr().out).splitlines()
        found = {part for line in lines for word in line.split() for part in (word, word.rstrip(":,"))}
        unbreakable = {word for word in words if len(word) > width - 2}
        assert words - unbreakable - FIRST_HEADINGS <= found, width
        assert max(map(len, lines)) <= width


def test_every_table_is_printed_by_the_console_that_fits_it():
    folder = Path(command.__file__).parent
    makers = {path.name for path in folder.glob("*.py") if re.search(r"\bConsole\((?!\))", path.read_text())}
    assert makers == {"test.py"}, "test.py shows progress, on standard error"
