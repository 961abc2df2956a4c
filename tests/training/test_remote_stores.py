"""Runs in a bucket, with servers of the stores' own protocols: killed, and continued from another machine's folder."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from remote_stores import store

HERE = Path(__file__).parent


def run(command, environment, cache):
    env = {**os.environ, **environment, "TFACCEL_CACHE": str(cache)}
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=400, check=False)


def trained(verb, place, environment, cache, *killed):
    child = run([sys.executable, str(HERE / "remote_run_program.py"), verb, str(place), *killed], environment, cache)
    assert child.returncode == (-9 if killed else 0), child.stderr
    return None if killed else json.loads(child.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("kind", "verb"),
    [
        ("s3", "fit"),
        pytest.param("s3", "train", marks=pytest.mark.slow),
        pytest.param("gs", "fit", marks=pytest.mark.slow),
        pytest.param("gs", "train", marks=pytest.mark.slow),
    ],
)
def test_a_run_killed_in_a_bucket_is_continued_from_another_machine(kind, verb, tmp_path):
    expected = trained(verb, tmp_path / "whole", {}, tmp_path / "cache")
    with store(kind) as environment:
        address = f"{kind}://bucket/runs/one"
        trained(verb, address, environment, tmp_path / "first machine", "2")
        trained(verb, address, environment, tmp_path / "second machine", "4")
        assert trained(verb, address, environment, tmp_path / "third machine") == expected
        assert trained(verb, address, environment, tmp_path / "fourth machine") == expected  # complete: restored


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_recipe_reads_trains_reports_and_exports_in_a_bucket(tmp_path):
    table = "a,b,kind\n" + "".join(f"{i % 7},{i % 5},{'odd' if i % 7 > 3 else 'even'}\n" for i in range(200))
    tfaccel = [sys.executable, "-m", "tfaccel"]
    with store("s3") as environment:
        upload = "import fsspec, sys; fsspec.filesystem('s3').pipe_file('bucket/table.csv', sys.argv[1].encode())"
        assert run([sys.executable, "-c", upload, table], environment, tmp_path).returncode == 0
        data = ["--recipe=tabular_classification", "--data_dir=s3://bucket/table.csv", "--target=kind", "--epochs=2"]
        child = run([*tfaccel, "train", *data, "--run_dir=s3://bucket/run"], environment, tmp_path / "first")
        assert child.returncode == 0, child.stderr
        assert "s3://bucket/run/model.keras" in child.stdout
        away = tmp_path / "second"
        child = run([*tfaccel, "train", *data, "--run_dir=s3://bucket/run"], environment, away)
        assert (child.returncode, "s3://bucket/run already holds a run" in child.stderr) == (2, True)
        page = tmp_path / "report.html"
        child = run([*tfaccel, "report", "s3://bucket/run", f"--output={page}"], environment, away)
        assert (child.returncode, "0 sections" in child.stdout) == (0, False), child.stderr
        for version in (1, 2):
            export = ["export", "--run_dir=s3://bucket/run", "--out=s3://bucket/exported", "--formats=saved_model"]
            child = run([*tfaccel, *export], environment, tmp_path / f"cache {version}")
            assert child.returncode == 0, child.stderr
            assert f"s3://bucket/exported/saved_model/{version}" in child.stdout
        predict = ["predict", "--model=s3://bucket/exported", f"--input={tmp_path / 'rows.csv'}"]
        (tmp_path / "rows.csv").write_text("a,b\n1,2\n6,2\n")
        child = run([*tfaccel, *predict, f"--output={tmp_path / 'kinds.csv'}"], environment, tmp_path / "third")
        assert child.returncode == 0, child.stderr
        assert len((tmp_path / "kinds.csv").read_text().splitlines()) == 3
        child = run([*tfaccel, "compress", "--run_dir=s3://bucket/run"], environment, away)
        assert child.returncode == 2
        assert "is not a local path" in child.stderr
    assert not list(Path.cwd().glob("s3:*"))
