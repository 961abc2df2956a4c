"""The ledger of the speedrun: each row changes one thing of the row before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

Program = Literal["keras", "tfaccel", "torch"]
FILTERS = (32, 64, 128)
PATCH_SIZE, PATCH_STRIDE = 4, 2
NORM_MOMENTUM, NORM_EPSILON = 0.9, 1e-3
MOMENTUM = 0.9
ERASED_AREA = (0.02, 0.3)  # of an image, the least and the most


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is learned, whatever computes it.

    Attributes:
        network: "plain" or "pooled"; see `tfaccel.benchmarks.speedrun_network.build_network`.
        precision: "float32", or "bfloat16" for mixed bfloat16.
        batch_size: rows of a step.
        optimizer: "adam", or "sgd" for SGD with Nesterov's momentum of 0.9.
        learning_rate: the peak of a triangular schedule that ends at zero, or the constant rate.
        warm_up: the share of the steps in which the rate rises; None for a constant rate.
        weight_decay: of the kernels, in each step as a share of them times the rate.
        label_smoothing: of the loss.
        is_flipped: whether half of the images are flipped from left to right.
        erased: the share of the images of which a box of 2 to 30 % is black.
        is_whitened: whether the first layer holds the eigenvectors of the images' patches, and is not trained.
        views: by how many views a test image is classified: 1, itself; 2, with its mirror image; 10, with both of them
            moved by a pixel to each side, at half the weight.
    """

    network: Literal["plain", "pooled"] = "plain"
    precision: Literal["float32", "bfloat16"] = "float32"
    batch_size: int = 32
    optimizer: Literal["adam", "sgd"] = "adam"
    learning_rate: float = 0.001
    warm_up: float | None = None
    weight_decay: float = 0.0
    label_smoothing: float = 0.0
    is_flipped: bool = False
    erased: float = 0.0
    is_whitened: bool = False
    views: Literal[1, 2, 10] = 1


@dataclass(frozen=True, kw_only=True)
class Row:
    """One program with one recipe.

    Attributes:
        change: what is new in it.
        program: `Model.fit`, `tfaccel.fit` or PyTorch.
        recipe: what it learns.
        epochs: accuracy on the test images, in percent -> the epochs trained to reach it. Of those that were tried,
            they are the fewest whose accuracy on held-out training images is 0.3 % above it, or else the best. The rows
            of 8 epochs in a plain network train longer than that.
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
_ROUNDED = replace(_SCHEDULED, precision="bfloat16")
_POOLED = replace(_ROUNDED, network="pooled")
_AUGMENTED = replace(_POOLED, is_flipped=True, erased=0.25)
_SMOOTHED = replace(_AUGMENTED, label_smoothing=0.2)
_DECAYED = replace(_SMOOTHED, optimizer="sgd", batch_size=128, learning_rate=0.2, weight_decay=0.005)
_WHITENED = replace(_DECAYED, is_whitened=True)
_VIEWED = replace(_WHITENED, views=10)

STOCK, FASTEST = "stock", "viewed"
TORCH = ("torch_eager", "torch_compiled")
ROWS: Mapping[str, Row] = {
    STOCK: Row(change="Model.fit, Adam, batches of 32", program="keras", recipe=_STOCK, epochs={93: 12}),
    "scheduled": Row(
        change="batches of 256, a rate that falls to 0", program="keras", recipe=_SCHEDULED, epochs={93: 8}
    ),
    "tfaccel": Row(
        change="tfaccel.fit, Keras's operations",
        program="tfaccel",
        recipe=_SCHEDULED,
        epochs={93: 8},
        options={"exact_kernels": True},
    ),
    "fused": Row(change="fused kernels", program="tfaccel", recipe=_SCHEDULED, epochs={93: 8}),
    "bfloat16": Row(change="mixed bfloat16", program="tfaccel", recipe=_ROUNDED, epochs={93: 8}),
    "pooled": Row(change="convolutions on smaller images", program="tfaccel", recipe=_POOLED, epochs={93: 10}),
    "augmented": Row(change="images flipped, and boxes erased", program="tfaccel", recipe=_AUGMENTED, epochs={93: 12}),
    "smoothed": Row(change="label smoothing", program="tfaccel", recipe=_SMOOTHED, epochs={93: 9}),
    "decayed": Row(change="SGD with weight decay, batches of 128", program="tfaccel", recipe=_DECAYED, epochs={93: 11}),
    "whitened": Row(change="a first layer that whitens", program="tfaccel", recipe=_WHITENED, epochs={93: 8}),
    FASTEST: Row(change="test images seen ten times", program="tfaccel", recipe=_VIEWED, epochs={92: 3, 93: 5, 94: 15}),
    **{
        name: Row(
            change=f"the last row in PyTorch{', compiled' if compiled else ''}",
            program="torch",
            recipe=_VIEWED,
            epochs={94: 15},
            options={"compiled": compiled},
        )
        for name, compiled in zip(TORCH, (False, True), strict=True)
    },
}


def triangle_sides(step: Any, num_steps: int, warm_up: float) -> tuple[Any, Any]:
    """The rising and the falling side of the triangle, as factors of its peak.

    Example:
        >>> triangle_sides(1.0, 10, 0.5), triangle_sides(9.0, 10, 0.5)
        ((0.4, 1.8), (2.0, 0.2))
    """
    top = num_steps * warm_up
    return (step + 1) / top, (num_steps - step) / (num_steps - top)
