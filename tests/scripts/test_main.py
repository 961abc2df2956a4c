"""The `tfaccel` command finds its subcommands, also by the names that they had before."""

import pytest

from tfaccel.scripts.main import OLD_NAMES, main


@pytest.mark.parametrize(("before", "now"), OLD_NAMES.items())
def test_old_names_still_work_and_say_what_they_are_now(before, now, capsys):
    assert main(["tfaccel", before, "--help"]) == 0
    shown = capsys.readouterr()
    assert shown.err.splitlines()[0] == f"`tfaccel {before}` is now `tfaccel {now}`; use that name."
    assert f"tfaccel {now}" in shown.out


def test_an_unknown_command_is_named(capsys):
    assert main(["tfaccel", "find-fast"]) == 2
    assert "unknown command 'find-fast'. Did you mean 'find-fastest'?" in capsys.readouterr().err
