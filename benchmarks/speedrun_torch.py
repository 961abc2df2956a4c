"""The network and the recipes of the speedrun in PyTorch, eager or compiled."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tfaccel.benchmarks.speedrun_program import PREDICTED_ROWS, Images, accuracy, whitening_kernel
from tfaccel.benchmarks.speedrun_rows import (
    ERASED_AREA,
    FILTERS,
    MOMENTUM,
    NORM_EPSILON,
    NORM_MOMENTUM,
    PATCH_SIZE,
    PATCH_STRIDE,
    triangle_sides,
)
from tfaccel.hardware.detect import detect_hardware


class _Convolved(nn.Sequential):
    def __init__(
        self, channels: int, filters: int, convolution: nn.Module | None = None, *, is_pooled: bool = False
    ) -> None:
        super().__init__(
            convolution or nn.Conv2d(channels, filters, 3, padding="same", bias=False),
            nn.MaxPool2d(2) if is_pooled else nn.Identity(),
            nn.BatchNorm2d(filters, eps=NORM_EPSILON, momentum=1 - NORM_MOMENTUM),
            nn.ReLU(),
        )


class Network(nn.Module):
    """The "pooled" layers of `speedrun_network.build_network`, with Keras's initial distributions."""

    def __init__(self, images: Images, recipe: dict[str, Any]) -> None:
        super().__init__()
        channels = images.x.shape[-1]
        padding = (PATCH_SIZE - PATCH_STRIDE) // 2
        patches = nn.Conv2d(channels, FILTERS[0], PATCH_SIZE, stride=PATCH_STRIDE, padding=padding, bias=False)
        self.layers = nn.Sequential(
            _Convolved(channels, FILTERS[0], patches),
            _Convolved(FILTERS[0], FILTERS[1], is_pooled=True),
            _Convolved(FILTERS[1], FILTERS[1]),
            _Convolved(FILTERS[1], FILTERS[2], is_pooled=True),
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


def erased(x: torch.Tensor, share: float, generator: torch.Generator) -> torch.Tensor:
    """What `keras.layers.RandomErasing` does with boxes of `ERASED_AREA`, to (num_images, channels, height, width)."""
    num_images, _, *lengths = x.shape
    inside = torch.rand(num_images, 1, 1, 1, generator=generator) < share
    low, high = ERASED_AREA
    for axis, length in ((2, lengths[0]), (3, lengths[1])):
        size = length * torch.sqrt(low + (high - low) * torch.rand(num_images, 1, generator=generator))
        start = (length - size) * torch.rand(num_images, 1, generator=generator)
        place = torch.arange(length)
        within = (place >= start) & (place < start + size)
        inside = inside & (within[:, None, :, None] if axis == 2 else within[:, None, None, :])
    return x.masked_fill(inside, 0.0)


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
    kernels = [one for one in trained if one.ndim > 1]
    optimizer: torch.optim.Optimizer
    if recipe["optimizer"] == "adam":
        optimizer = torch.optim.Adam(trained, eps=1e-7, fused=True)
    else:
        optimizer = torch.optim.SGD(trained, lr=1.0, momentum=MOMENTUM, nesterov=True, fused=True)
    autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=recipe["precision"] == "bfloat16")
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
            if recipe["is_flipped"]:
                batch = torch.where(torch.rand(len(batch), 1, 1, 1, generator=generator) < 0.5, batch.flip(3), batch)
            if recipe["erased"]:
                batch = erased(batch, recipe["erased"], generator)
            batch = batch.contiguous(memory_format=torch.channels_last)
            with autocast:
                logits = forward(batch)
            loss = functional.cross_entropy(logits.float(), y[rows], label_smoothing=recipe["label_smoothing"])
            loss.backward()
            with torch.no_grad():
                for kernel in kernels:
                    kernel.mul_(1 - rate * recipe["weight_decay"])
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
    model.eval()

    def predict(x: np.ndarray) -> np.ndarray:
        rows = torch.from_numpy(np.ascontiguousarray(x)).permute(0, 3, 1, 2)
        with torch.no_grad(), autocast:
            return torch.cat([model(one).float() for one in rows.split(PREDICTED_ROWS)]).numpy()

    share = accuracy(images, recipe, predict)
    return {"seconds": time.perf_counter() - started, "accuracy": share}
