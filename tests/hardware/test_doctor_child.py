from made_up_machine import make_machine

from tfaccel.hardware.doctor import run_probes

MODULES = {
    "loud": "print('to stdout'); import os; os.write(1, b'{}' + bytes([10]))",
    "aborts": "import os, sys; print('Check failed: no such device', file=sys.stderr, flush=True); os.abort()",
    "hangs": "import subprocess, time; subprocess.Popen(['sleep', '600']); time.sleep(600)",
    "leaves": "import os; os._exit(3)",
    "raises": "raise ImportError('libfoo.so.1:\\n cannot open')",
}


def probe_modules(tmp_path, *names, time_limit_seconds=60.0, **fields):
    for name, code in MODULES.items():
        (tmp_path / f"{name}.py").write_text(code)
    machine = make_machine(tmp_path, environ={"PYTHONPATH": str(tmp_path)}, **fields)
    started = []
    probes = [["import", name] for name in names]
    results = run_probes(machine, probes, time_limit_seconds=time_limit_seconds, on_start=started.append)
    assert started == probes[: len(started)]
    return results


def test_a_crash_costs_its_own_probe_only(tmp_path):
    results = probe_modules(tmp_path, "loud", "aborts", "leaves", "raises", "json")
    assert [result.ok for result in results] == [True, False, False, False, True]
    assert results[1].cause == "its process was killed by SIGABRT (the program aborted itself)"
    assert "Check failed: no such device" in results[1].output
    assert results[2].cause == "its process ended with status 3"
    assert results[3].cause == "ImportError: libfoo.so.1: cannot open"


def test_what_hangs_is_ended_with_all_it_started_and_two_are_enough(tmp_path):
    results = probe_modules(tmp_path, "hangs", "hangs", "json", time_limit_seconds=1.0)
    assert [result.ok for result in results] == [False, False, False]
    assert [result.has_hung for result in results] == [True, True, False]
    assert results[0].cause == "no answer within 1 seconds (ended it)"
    assert [result.was_tried for result in results] == [True, True, False]


def test_an_interpreter_that_cannot_start_or_dies_at_once(tmp_path):
    missing = probe_modules(tmp_path, "json", "math", python=str(tmp_path / "none"))
    assert [result.cause for result in missing] == [f"cannot start {tmp_path / 'none'}: No such file or directory"] * 2
    dying = tmp_path / "dying-python"
    dying.write_text("#!/bin/sh\nkill -ILL $$\n")
    dying.chmod(0o755)
    (result,) = probe_modules(tmp_path, "json", python=str(dying))
    assert result.cause.startswith("its process was killed by SIGILL (the processor lacks an instruction")


def test_settings_with_checks_of_their_own_do_not_reach_the_children(tmp_path):
    code = "import os; raise RuntimeError([os.environ.get(n) for n in ('KERAS_BACKEND', 'TF_USE_LEGACY_KERAS')])"
    (tmp_path / "tells.py").write_text(code)
    environ = {"PYTHONPATH": str(tmp_path), "KERAS_BACKEND": "jax", "TF_USE_LEGACY_KERAS": "1"}
    (result,) = run_probes(make_machine(tmp_path, environ=environ), [["import", "tells"]], time_limit_seconds=60)
    assert result.cause == "RuntimeError: ['tensorflow', None]"
