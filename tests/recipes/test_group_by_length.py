"""Texts of similar lengths in a batch that is cut to the longest: exact, on replicas and when a run goes on."""

import json

import numpy as np
import pytest
from own_data import PROGRAM

OPTIONS = {"group_by_length": True}
CASES = [
    {"recipe": "text_classification", "data": "labels.csv", "options": {"model": "lstm", "num_words": 40}},
    {"recipe": "translation", "data": "", "options": {"unit": "words", "width": 16, "num_blocks": 1}},
    {"recipe": "summarization", "data": "summaries.csv", "options": {"width": 16, "num_words": 40}},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Texts of 1 to 40 words."""
    folder = tmp_path_factory.mktemp("lengths")
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(list("abcdef"), length)) for length in generator.integers(1, 41, 160)]
    (folder / "labels.csv").write_text("\n".join(["text,label", *(f"{text},{text[0] < 'd'}" for text in texts)]))
    (folder / "source.txt").write_text("\n".join(texts))
    (folder / "target.txt").write_text("\n".join(text.upper() for text in texts))
    rows = [f"{text},{text[: 1 + len(text) // 2]}" for text in texts]
    (folder / "summaries.csv").write_text("\n".join(["document,summary", *rows]))
    return folder


@pytest.mark.parametrize(
    "case",
    [CASES[0], *(pytest.param(case, marks=pytest.mark.slow) for case in CASES[1:])],
    ids=lambda case: case["recipe"],
)
def test_replicas_give_the_losses_of_one_device_and_a_run_goes_on_to_the_last_bit(run_python, folder, tmp_path, case):
    options = {**case["options"], **OPTIONS, "dropout": 0.0}
    kinds = [
        {**case, "name": case["recipe"], "options": options, "kind": kind, "run_dirs": str(tmp_path)}
        for kind in ("whole", "2 replicas", "killed", "resumed")
    ]
    assert run_python(PROGRAM, folder, json.dumps(kinds[2:3]), check=False, timeout_seconds=300).returncode == 7
    child = run_python(PROGRAM, folder, json.dumps([kinds[0], kinds[1], kinds[3]]), timeout_seconds=300)
    (digest, losses, _), (_, of_two, _), (resumed, *_) = json.loads(child.stdout.splitlines()[-1])
    assert resumed == digest
    assert of_two["loss"] == pytest.approx(losses["loss"], rel=1e-5)


@pytest.mark.parametrize("name", ["embedding", "lstm", "transformer"])
def test_what_is_cut_off_changes_no_score(logical_devices, name):
    from tfaccel.recipes.text_classification import build_model

    sizes = {"num_tokens": 9, "num_words": 24, "num_classes": 3, "dropout": 0.0, "remat": False}
    model = build_model(name, **sizes, any_length=True)
    tokens = np.random.default_rng(0).integers(1, 9, (4, 24)) * (np.arange(24) < [[5], [8], [2], [7]])
    np.testing.assert_allclose(model(tokens[:, :8]), model(tokens), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("copying", [False, True], ids=["translation", "summarization"])
def test_what_is_cut_off_changes_no_token(logical_devices, copying):
    from tfaccel.recipes import summarization, translation

    sizes = {"width": 16, "num_blocks": 1, "any_length": True}
    if copying:
        model = summarization.build_model(9, (24, 16), **sizes)
    else:
        model = translation.build_model((9, 9), (24, 16), **sizes)
    generator = np.random.default_rng(0)
    source = generator.integers(1, 9, (3, 24)) * (np.arange(24) < [[5], [8], [2]])
    written = generator.integers(1, 9, (3, 16)) * (np.arange(16) < [[3], [8], [6]])
    cut = model({"source": source[:, :8], "written": written[:, :8]})
    np.testing.assert_allclose(cut, model({"source": source, "written": written})[:, :8], rtol=1e-5, atol=1e-5)
