"""An option that would have no effect on the chosen data is refused."""

import importlib
import re

import pytest

from tfaccel.errors import WorkloadError

FOR_OWN_DATA = {
    "autoencoder": {"encoding": "latin-1"},
    "object_detection": {"image_size": 64},
    "recommendation": {
        "user_column": "visitor",
        "item_column": "film",
        "label_column": "stars",
        "positive_from": 4.0,
        "user_features": "age",
        "item_features": "genre",
        "column_kinds": "age=numeric",
        "encoding": "latin-1",
    },
    "sequence_forecasting": {"time_column": "day", "target": "sales", "encoding": "latin-1"},
    "summarization": {"document_column": "text", "summary_column": "title"},
    "tabular_classification": {"target": "kind", "encoding": "latin-1"},
    "tabular_regression": {"target": "price", "encoding": "latin-1"},
    "text_classification": {"text_column": "review", "label_column": "stars"},
}
FOR_BUNDLED_DATA = {
    "object_detection": {"test_part": "validation"},
    "recommendation": {"num_users": 10, "num_items": 10, "num_interactions": 1000},
    "tabular_classification": {"data": "wine"},
}


@pytest.mark.parametrize(
    ("recipe", "option", "value"),
    [(recipe, option, value) for recipe, options in FOR_OWN_DATA.items() for option, value in options.items()],
)
def test_options_for_own_data_are_refused_without_data_dir(recipe, option, value):
    workload = importlib.import_module(f"tfaccel.recipes.{recipe}").workload
    message = (
        f"`{option}` is for your own data. Received: {option}={value!r} without data_dir. Add data_dir, or leave "
        f"{option} out."
    )
    with pytest.raises(WorkloadError, match=re.escape(message)):
        workload(**{option: value})


@pytest.mark.parametrize(
    ("recipe", "option", "value"),
    [(recipe, option, value) for recipe, options in FOR_BUNDLED_DATA.items() for option, value in options.items()],
)
def test_options_for_the_bundled_data_are_refused_with_data_dir(recipe, option, value):
    workload = importlib.import_module(f"tfaccel.recipes.{recipe}").workload
    message = (
        f"`{option}` is for the bundled data. Received: {option}={value!r} with data_dir='mine'. Leave one of them out."
    )
    with pytest.raises(WorkloadError, match=re.escape(message)):
        workload(data_dir="mine", **{option: value})
