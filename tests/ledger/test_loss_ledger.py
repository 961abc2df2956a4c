"""`scripts/loss_ledger`: a changed number is found, and the bits of another machine are not compared."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LEDGER = ROOT / "scripts" / "loss_ledger"
pytestmark = pytest.mark.skipif(not LEDGER.exists(), reason="needs the sources")


def ledger(*arguments):
    command = [sys.executable, LEDGER, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def test_bits_of_another_machine_are_not_compared(tmp_path):
    file = tmp_path / "ledger.json"
    assert f"there is no file {file}" in ledger("--check", file).stderr
    file.write_text(json.dumps({"processor": {"model": "another"}, "versions": {"keras": "1.0"}, "lines": {}}))
    ended = ledger("--check", file)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert f"The bits cannot be compared: {file} is of another machine." in ended.stderr
    assert all(f'  {name}: {{"' in ended.stderr for name in ("processor", "versions"))


@pytest.mark.slow
def test_a_run_repeats_to_the_last_bit_and_a_changed_number_is_found(tmp_path):
    file, only = tmp_path / "ledger.json", "--only=table on the host, lazy"
    assert ledger("--write", file, only).returncode == 0
    ended = ledger("--check", file, only)
    assert (ended.returncode, ended.stdout.splitlines()[0]) == (0, "same     table on the host, lazy")
    stored = json.loads(file.read_text())
    (line,) = stored["lines"].values()
    line["history"][1]["loss"] *= 1 + 1e-15
    file.write_text(json.dumps(stored))
    ended = ledger("--check", file, only)
    assert (ended.returncode, ended.stdout.splitlines()[0]) == (1, "CHANGED  table on the host, lazy: history")


def test_every_case_has_a_line(logical_devices, monkeypatch):
    for folder in ("ledger", "recipes", "training", "tuning"):
        monkeypatch.syspath_prepend(str(ROOT / "tests" / folder))
    import ledger_cases

    lines = json.loads((ROOT / "tests" / "ledger" / "ledger.json").read_text())["lines"]
    assert list(lines) == list(ledger_cases.CASES)
