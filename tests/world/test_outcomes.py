"""Rows that processes write become outcomes: the worst of the workers, "wrong" for a model that broke its process."""

import outcomes
import pytest
from outcomes import PLACEMENTS, counts, run_models

# A stand-in for comparison.py: a model's name is what becomes of it.
PROGRAM = """
import json, os, sys

placements = ["two workers"] if "TF_CONFIG" in os.environ else ["no strategy", "two replicas"]
index = json.loads(os.environ.get("TF_CONFIG", '{"task": {"index": 0}}'))["task"]["index"]
for name in sys.argv[2:]:
    if name == "breaks" and index:
        sys.exit("it broke")
    for placement in placements:
        outcome = "wrong" if name == "differs" and index else "equal"
        print(json.dumps([name, placement, outcome, f"worker {index}", 0.1]), flush=True)
        if outcome == "wrong":
            sys.exit(1)
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    (tmp_path / "comparison.py").write_text(PROGRAM)
    monkeypatch.setattr(outcomes, "HERE", tmp_path)


def test_outcomes_of_all_placements(program):
    seen = []
    found = run_models(
        ["right", "differs", "breaks", "last"],
        workers=True,
        interpreter_options=["-I"],
        on_outcome=lambda *row: seen.append(row[:2]),
    )
    assert [found["right", placement][0] for placement in PLACEMENTS] == ["equal"] * 3
    assert found["differs", "two workers"] == ("wrong", "worker 1")
    outcome, remark = found["breaks", "two workers"]
    assert outcome == "wrong"
    assert "it broke" in remark
    assert found["last", "two workers"][0] == "equal"
    assert seen == [
        *((name, one) for name in ("right", "differs", "breaks", "last") for one in PLACEMENTS[:2]),
        *((name, "two workers") for name in ("right", "differs", "breaks", "last")),
    ]
    assert counts(found).splitlines()[-1] == "two workers: 4 models: 2 equal, 2 wrong"


def test_without_workers(program):
    found = run_models(["right"], workers=False)
    assert list(found) == [("right", "no strategy"), ("right", "two replicas")]
    assert counts(found) == "no strategy: 1 models: 1 equal\ntwo replicas: 1 models: 1 equal"
