"""The ledger of the speedrun: each row changes one thing of the row before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

Program = Literal["keras", "tfaccel", "torch"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is learned, whatever computes it.

    Attributes:
        batch_size: rows of a step.
        learning_rate: of Adam: the peak of a triangular schedule that ends at zero, or the constant rate.
        warm_up: the share of the steps in which the rate rises; None for a constant rate.
        label_smoothing: of the loss.
        max_shift: images are moved by up to so many pixels, and half of them are flipped; 0 for neither.
        is_whitened: whether the first layer holds the eigenvectors of the images' patches, and is not trained.
    """

    batch_size: int = 32
    learning_rate: float = 0.001
    warm_up: float | None = None
    label_smoothing: float = 0.0
    max_shift: int = 0
    is_whitened: bool = False


@dataclass(frozen=True, kw_only=True)
class Row:
    """One program with one recipe.

    Attributes:
        change: what is new in it.
        program: `Model.fit`, `tfaccel.fit` or PyTorch.
        recipe: what it learns.
        epochs: accuracy on the test images, in percent -> the epochs that reached it on held-out training images.
        options: of the program.
    """

    change: str
    program: Program
    recipe: Recipe
    epochs: Mapping[int, int]
    options: Mapping[str, Any] = field(default_factory=dict)

    def task(self, target: int, seed: int) -> dict[str, Any]:
        """What a process needs to train it once; see `tfaccel.benchmarks.speedrun_program`."""
        return {
            "program": self.program,
            "recipe": asdict(self.recipe),
            "epochs": self.epochs[target],
            "options": dict(self.options),
            "seed": seed,
        }


_STOCK = Recipe()
_SCHEDULED = replace(_STOCK, batch_size=256, learning_rate=0.01, warm_up=0.2)
_MOVED = replace(_SCHEDULED, max_shift=1)
_SMOOTHED = replace(_MOVED, label_smoothing=0.1)
_WHITENED = replace(_SMOOTHED, is_whitened=True)
_EXACT = {"exact_kernels": True}

STOCK, FASTEST = "stock", "whitened"
TORCH = ("torch_eager", "torch_compiled")
ROWS: Mapping[str, Row] = {
    STOCK: Row(change="Model.fit, Adam, batches of 32", program="keras", recipe=_STOCK, epochs={93: 10}),
    "scheduled": Row(
        change="batches of 256, a rate that rises and falls", program="keras", recipe=_SCHEDULED, epochs={92: 3, 93: 8}
    ),
    "tfaccel": Row(
        change="tfaccel.fit with Keras's operations",
        program="tfaccel",
        recipe=_SCHEDULED,
        epochs={92: 3, 93: 8},
        options=_EXACT,
    ),
    "fused": Row(change="fused kernels", program="tfaccel", recipe=_SCHEDULED, epochs={92: 3, 93: 8}),
    "moved": Row(change="images moved and flipped", program="tfaccel", recipe=_MOVED, epochs={92: 3, 93: 6}),
    "smoothed": Row(change="label smoothing", program="tfaccel", recipe=_SMOOTHED, epochs={92: 3, 93: 5, 94: 12}),
    FASTEST: Row(
        change="a first layer that whitens", program="tfaccel", recipe=_WHITENED, epochs={92: 3, 93: 5, 94: 12}
    ),
    **{
        name: Row(
            change=f"the same in PyTorch{', compiled' if compiled else ''}",
            program="torch",
            recipe=_WHITENED,
            epochs={94: 12},
            options={"compiled": compiled},
        )
        for name, compiled in zip(TORCH, (False, True), strict=True)
    },
}
