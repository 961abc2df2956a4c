"""Flags that a workload brings along: named, typed and explained as the parameters of its function."""

import pytest
from absl import flags

from tfaccel.errors import WorkloadError
from tfaccel.scripts import train
from tfaccel.scripts.train_flags import define_train_flags
from tfaccel.scripts.workload_flags import define_workload_flags
from tfaccel.scripts.workload_parameters import COUNT, NUMBER, TEXT, WorkloadParameters, get_value

MODULE = '''
from typing import Literal

def workload(*, model: Literal["gru", "lstm"] = "gru", width: int = 8, dropout: float = 0.1, title: str | None = None,
             folded: bool = False, sizes: tuple[int, ...] = (1,), epochs: int = 3, undocumented: int = 1):
    """Makes it.

    Args:
        model: the kind of
            layer.
        width: units. Of each layer.
        dropout: part that is dropped.

    Raises:
        Nothing: at all.
    """
'''
OURS = ["train", "--workload=own_parameters:workload"]


@pytest.fixture(autouse=True)
def own_parameters(tmp_path, monkeypatch):
    (tmp_path / "own_parameters.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


def flags_for(*argv):
    """The flags of `train` for a command line, not parsed yet, and those of the workload's own parameters."""
    found = flags.FlagValues()
    define_workload_flags(found)
    define_train_flags(found)
    return found, WorkloadParameters(argv, found)


def values(*arguments):
    found, parameters = flags_for(*OURS, *arguments)
    found([*OURS, *arguments])
    return parameters.chosen()


def test_values_have_the_kind_of_their_parameter():
    assert values() == {}
    assert values("--model=lstm", "--width=3", "--dropout=0.5", "--title=a b", "--folded") == {
        "model": "lstm",
        "width": 3,
        "dropout": 0.5,
        "title": "a b",
        "folded": True,
    }
    assert values("--nofolded", "--width=auto") == {"folded": False}


def test_help_is_the_docstring_s():
    found, parameters = flags_for(*OURS)
    assert found["model"].help == "the kind of layer (gru, lstm)"
    assert found["width"].help == "units. Of each layer"
    assert found["undocumented"].help == "an option of own_parameters"
    assert found["epochs"].help.startswith("passes over the training data")  # the flag of `train` itself
    assert "sizes" not in found
    assert parameters.names == ["model", "width", "dropout", "title", "folded", "undocumented"]


def test_help_is_the_comment_s_where_the_docstring_says_nothing(tmp_path):
    signature = """def workload(
    *,
    # how much, in
    # all
    much: float = 0.5,
    many: int = 3,  # how many # of them
    none: str = "#",
):
    '''Makes it.'''
"""
    (tmp_path / "commented_parameters.py").write_text(signature)
    found, _ = flags_for("train", "--workload=commented_parameters:workload")
    texts = {name: found[name].help for name in ("much", "many", "none")}
    assert texts == {
        "much": "how much, in all",
        "many": "how many # of them",
        "none": "an option of commented_parameters",
    }


def test_flags_go_with_their_workload():
    recipe, _ = flags_for("train", "--recipe", "image_classification")
    own, _ = flags_for(*OURS)
    unknown, _ = flags_for("train", "--recipe=no_such_recipe")
    assert "image_size" in recipe
    assert "image_size" not in own
    assert "width" in own
    assert "width" not in unknown


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("x", NUMBER, "--it must be a number, or auto. Received: --it=x."),
        ("0", COUNT, "--it must be a whole number of at least 1, or auto. Received: --it=0."),
        ("c", ("a", "b"), "--it must be one of a, b, or auto. Received: --it=c."),
    ],
)
def test_other_values_are_refused(text, kind, message):
    with pytest.raises(WorkloadError, match=message):
        get_value("it", text, kind)


def test_texts_are_taken_as_they_are():
    assert get_value("it", "1", TEXT) == "1"


def test_command_names_a_wrong_value(tmp_path, capsys):
    assert train.run([*OURS, "--model=cnn", f"--run_dir={tmp_path / 'run'}"]) == 2
    assert "--model must be one of gru, lstm, or auto. Received: --model=cnn." in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
