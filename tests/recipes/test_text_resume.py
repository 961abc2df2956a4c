"""Text recipes that are killed and resumed end as whole runs, to the last bit; two replicas give one device's loss."""

import json
from pathlib import Path

import pytest
from own_texts import write_own_texts

# Their modules of layers are imported by the recipe when the model is built, or by what uses the model.
PROGRAM = "import tfaccel.models.text_run\n" + Path(__file__).with_name("text_resume_runs.py").read_text()
CASES = [
    {"name": "reader", "recipe": "text_classification", "data": "labels.csv",
     "options": {"num_words": 8, "model": "transformer"}},
    {"name": "characters", "recipe": "text_generation", "data": "long.txt", "options": {"width": 16, "num_layers": 1}},
    {"name": "pairs", "recipe": "translation", "data": "", "options": {"width": 32, "num_blocks": 1, "dropout": 0.1}},
    {"name": "summaries", "recipe": "summarization", "data": "summaries.csv",
     "options": {"width": 32, "num_words": 12, "ema": True}},
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("resumed")
    write_own_texts(folder)
    (folder / "long.txt").write_text("over and over again. " * 400)
    return folder


@pytest.fixture
def run(run_python, folder):
    """A function that runs cases, each of a kind, in one child process: its status, and what the cases gave."""

    def run(*cases):
        child = run_python(PROGRAM, folder, json.dumps(cases), check=False, timeout_seconds=500)
        return child.returncode, json.loads(child.stdout.splitlines()[-1]) if child.returncode == 0 else child.stderr

    return run


@pytest.mark.slow
@pytest.mark.parametrize("names", [("reader", "characters"), ("pairs", "summaries")])
def test_resumed_run_equals_whole_run(run, folder, names):
    cases = [case for case in CASES if case["name"] in names]
    for case in cases:
        assert run({**case, "kind": "killed"})[0] == 7
        assert list((folder / f"{case['name']}-stopped" / "checkpoints").iterdir())
        assert not (folder / f"{case['name']}-stopped" / "model.keras").exists()
    both = [{**case, "kind": kind} for case in cases for kind in ("whole", "resumed")]
    status, ended = run(*both)
    assert status == 0, ended
    for whole, resumed in zip(ended[::2], ended[1::2], strict=True):
        assert resumed == whole


@pytest.mark.slow
def test_two_replicas_give_the_losses_of_one_device(run):
    # Each replica draws its own dropout, so there is none; words are made unknown in the data, whatever the replicas.
    cases = [
        {**case, "name": f"{case['name']} without dropout", "options": {**case["options"], "dropout": 0.0}}
        for case in CASES
    ]
    one, two = (run(*[{**case, "kind": kind} for case in cases]) for kind in ("whole", "mirrored"))
    assert (one[0], two[0]) == (0, 0), (one, two)
    for (_, history, _), (_, other, _) in zip(one[1], two[1], strict=True):
        for name, values in history.items():
            assert other[name] == pytest.approx(values, rel=1e-4, abs=1e-5), name
