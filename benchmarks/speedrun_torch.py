"""The network and the recipes of the speedrun in PyTorch, eager or compiled."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tfaccel.benchmarks.speedrun_network import (
    FILTERS,
    NORM_EPSILON,
    NORM_MOMENTUM,
    PATCH_SIZE,
    PATCH_STRIDE,
    triangle_sides,
    whitening_kernel,
)
from tfaccel.benchmarks.speedrun_program import Images, accuracy
from tfaccel.hardware.detect import detect_hardware

_PREDICTED_ROWS = 1000


class _Convolved(nn.Sequential):
    def __init__(self, channels: int, filters: int, convolution: nn.Module | None = None) -> None:
        super().__init__(
            convolution or nn.Conv2d(channels, filters, 3, padding="same", bias=False),
            nn.BatchNorm2d(filters, eps=NORM_EPSILON, momentum=1 - NORM_MOMENTUM),
            nn.ReLU(),
        )


class Network(nn.Module):
    """The layers of `speedrun_network.build_network`, with Keras's initial distributions."""

    def __init__(self, images: Images, recipe: dict[str, Any]) -> None:
        super().__init__()
        channels = images.x.shape[-1]
        padding = (PATCH_SIZE - PATCH_STRIDE) // 2
        patches = nn.Conv2d(channels, FILTERS[0], PATCH_SIZE, stride=PATCH_STRIDE, padding=padding, bias=False)
        self.layers = nn.Sequential(
            _Convolved(channels, FILTERS[0], patches),
            _Convolved(FILTERS[0], FILTERS[1]),
            _Convolved(FILTERS[1], FILTERS[1]),
            nn.MaxPool2d(2),
            _Convolved(FILTERS[1], FILTERS[2]),
            _Convolved(FILTERS[2], FILTERS[2]),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
            nn.Linear(FILTERS[2], images.num_classes),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        if recipe["is_whitened"]:
            kernel = torch.from_numpy(whitening_kernel(images.x)).permute(3, 2, 0, 1)
            patches.weight = nn.Parameter(kernel.contiguous(), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def moved(x: torch.Tensor, max_shift: int, generator: torch.Generator) -> torch.Tensor:
    """What the layer `MovedImages` does, to images of the shape (num_images, channels, height, width)."""
    num_images, _, height, width = x.shape
    flips = torch.rand(num_images, 1, 1, 1, generator=generator) < 0.5
    x = functional.pad(torch.where(flips, x.flip(3), x), [max_shift] * 4)
    for axis, size in ((2, height), (3, width)):
        first = torch.randint(0, 2 * max_shift + 1, (num_images, 1), generator=generator)
        index = first + torch.arange(size)
        index = index[:, None, :, None] if axis == 2 else index[:, None, None, :]
        x = torch.take_along_dim(x, index, dim=axis)
    return x


def train(images: Images, task: dict[str, Any]) -> dict[str, Any]:
    """Trains once; returns the seconds and the accuracy, as `tfaccel.benchmarks.speedrun_program.run` does."""
    recipe, epochs, options, seed = task["recipe"], task["epochs"], task["options"], task["seed"]
    torch.set_num_threads(detect_hardware().num_usable_cores)
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    x = torch.from_numpy(images.x).permute(0, 3, 1, 2).contiguous()
    y = torch.from_numpy(images.y).long()
    num_steps = -(-len(x) // recipe["batch_size"]) * epochs
    started = time.perf_counter()
    model: Any = Network(images, recipe)
    model.to(memory_format=torch.channels_last)
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.Adam(trained, eps=1e-7, fused=True)
    forward = torch.compile(model) if options["compiled"] else model
    step = 0
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator).split(recipe["batch_size"]):
            rate = recipe["learning_rate"]
            if recipe["warm_up"] is not None:
                rate *= min(triangle_sides(float(step), num_steps, recipe["warm_up"]))
            for group in optimizer.param_groups:
                group["lr"] = rate
            batch = x[rows]
            if recipe["max_shift"]:
                batch = moved(batch, recipe["max_shift"], generator)
            batch = batch.contiguous(memory_format=torch.channels_last)
            loss = functional.cross_entropy(forward(batch), y[rows], label_smoothing=recipe["label_smoothing"])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
    seconds = time.perf_counter() - started
    model.eval()

    def predict(x: np.ndarray) -> np.ndarray:
        rows = torch.from_numpy(np.ascontiguousarray(x)).permute(0, 3, 1, 2)
        with torch.no_grad():
            return torch.cat([model(one) for one in rows.split(_PREDICTED_ROWS)]).numpy()

    return {"seconds": seconds, "accuracy": accuracy(images, predict)}
