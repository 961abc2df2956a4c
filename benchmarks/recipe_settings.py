"""The settings that `tfaccel benchmark settings` tries for each recipe: its current ones, and their neighbors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Setting = dict[str, Any]  # arguments of a recipe's `workload`


@dataclass(frozen=True, kw_only=True)
class RecipeSettings:
    """The settings to try for one recipe.

    Attributes:
        present: the defaults of the recipe's `workload`, for each argument that is varied.
        neighbours: argument -> other values; one argument is changed at a time.
        metric: the validation metric to compare; None for the score that the recipe's `show_result` returns.
        higher_is_better: whether a higher value of the metric is better.

    Example:
        >>> RecipeSettings(present={"epochs": 4, "width": 8}, neighbours={"epochs": (2, 8)}).candidates[1]
        {'epochs': 2, 'width': 8}
    """

    present: Mapping[str, Any]
    neighbours: Mapping[str, tuple[Any, ...]]
    metric: str | None = None
    higher_is_better: bool = False

    @property
    def candidates(self) -> list[Setting]:
        """The settings, the current ones first."""
        changed = [{name: value} for name, values in self.neighbours.items() for value in values]
        return [dict(self.present), *({**self.present, **change} for change in changed)]


def _epochs(present: int, *others: int, metric: str | None = None) -> RecipeSettings:
    return RecipeSettings(present={"epochs": present}, neighbours={"epochs": others}, metric=metric)


# Epochs are halved and doubled. Defaults that a recipe derives from its data are given as their values for these data.
RECIPE_SETTINGS = {
    "autoencoder": _epochs(120, 30, 60, 240, metric="loss"),
    "gan": _epochs(30, 15, 60),
    "image_classification": RecipeSettings(
        present={"epochs": 24, "learning_rate": 1e-2},
        neighbours={"epochs": (12, 48), "learning_rate": (5e-3, 2e-2)},
        metric="accuracy",
        higher_is_better=True,
    ),
    "object_detection": _epochs(24, 12, 48),
    "recommendation": RecipeSettings(
        present={"epochs": 8, "learning_rate": 0.1, "width": 32, "dropout": 0.2},
        neighbours={"epochs": (4, 16), "learning_rate": (0.05, 0.2), "width": (16, 64), "dropout": (0.1, 0.4)},
        metric="auc",
        higher_is_better=True,
    ),
    "sequence_forecasting": RecipeSettings(
        present={"epochs": 10, "learning_rate": 4e-3, "width": 48, "dropout": 0.0},
        neighbours={"epochs": (5, 20), "learning_rate": (2e-3, 8e-3), "width": (24, 96), "dropout": (0.1,)},
        metric="median_absolute_error",
    ),
    "summarization": _epochs(10, 5, 20),
    "tabular_classification": RecipeSettings(
        present={
            "epochs": 60,
            "learning_rate": 3e-3,
            "weight_decay": None,
            "width": 64,
            "dropout": 0.3,
            "label_smoothing": 0.1,
        },
        neighbours={
            "epochs": (30, 120),
            "learning_rate": (1e-3, 1e-2),
            "weight_decay": (1.0, 10.0),
            "width": (32, 128),
            "dropout": (0.1, 0.5),
            "label_smoothing": (0.0, 0.2),
        },
        metric="accuracy",
        higher_is_better=True,
    ),
    "tabular_regression": RecipeSettings(
        present={"epochs": 60, "learning_rate": 3e-3, "weight_decay": None, "width": 64, "dropout": 0.3},
        neighbours={
            "epochs": (30, 120),
            "learning_rate": (1e-3, 1e-2),
            "weight_decay": (0.2, 2.0),
            "width": (32, 128),
            "dropout": (0.1, 0.5),
        },
        metric="r2",
        higher_is_better=True,
    ),
    "text_generation": _epochs(12, 6, 24, metric="nats_per_character"),
    "transfer_learning": RecipeSettings(
        present={"epochs": 5, "learning_rate": 3e-3},
        neighbours={"learning_rate": (1.5e-3, 6e-3)},
        metric="accuracy",
        higher_is_better=True,
    ),
    "translation": _epochs(8, 4, 16),
}
