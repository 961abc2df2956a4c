"""Outputs as `:classify` and `:regress` give them, or why they cannot be given so."""

import numpy as np
import pytest

from tfaccel.data.raw_input import RawInput
from tfaccel.extras.serving.messages import RequestError
from tfaccel.extras.serving.models import classes_of_rows, one_value_a_row

LOGITS = {"logits": np.array([[0.0, 0.0], [np.log(3.0), 0.0]])}


def test_scores_have_the_names_of_their_classes():
    pets = RawInput(class_names=("cat", "dog"))
    assert classes_of_rows(LOGITS, pets) == [
        [["cat", pytest.approx(0.5)], ["dog", pytest.approx(0.5)]],
        [["cat", pytest.approx(0.75)], ["dog", pytest.approx(0.25)]],
    ]
    assert classes_of_rows({"label": np.array([b"a"]), "probabilities": np.array([[0.5, 0.5]])}, pets)[0][1] == [
        "dog",
        0.5,
    ]
    assert classes_of_rows(LOGITS, None)[0] == [["", 0.0], ["", 0.0]]


@pytest.mark.parametrize(
    ("outputs", "known"),
    [
        (LOGITS, RawInput(class_names=("a", "b", "c"))),
        (LOGITS, RawInput(outputs="values")),
        ({"y": np.zeros(3)}, None),
        ({"y": np.zeros((3, 2)), "z": np.zeros((3, 2))}, None),
        ({"y": np.zeros((3, 2), np.int32)}, None),
    ],
)
def test_what_is_no_score_is_refused(outputs, known):
    with pytest.raises(
        RequestError, match=r"The model does not classify: its output has the shape \(.*\)\. Use :predict"
    ):
        classes_of_rows(outputs, known)


def test_one_number_a_row_is_a_result():
    assert one_value_a_row({"y": np.array([1.5, 2.0])}) == [1.5, 2.0]
    for outputs in ({"y": np.zeros((2, 2))}, {"y": np.zeros(2), "z": np.zeros(2)}, {"y": np.array([b"a"], object)}):
        with pytest.raises(RequestError, match="The model does not give one number for each row, but y"):
            one_value_a_row(outputs)
