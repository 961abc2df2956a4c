"""Native PyTorch on a task of the GPU suite, in timed windows: compiled, with bfloat16 autocast, on the GPU if there is
one; images in the memory format `channels_last`.

The loop is the one that its users write: small data sets on the device, pinned batches of images that are copied while
a step runs, the fused optimizer, and no waiting for the loss between steps.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from tfaccel.benchmarks.gpu.jpeg_files import training_files
from tfaccel.benchmarks.gpu.tasks import ADAM_EPSILON, LEARNING_RATE, MOMENTUM, GpuTask, task_named
from tfaccel.benchmarks.gpu.torch_models import MODELS
from tfaccel.benchmarks.window_answers import WindowAnswers, answered

Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


def main(connection: Connection, arguments: list[str]) -> int:
    """Trains as ordered; returns the exit status."""
    task = connection.recv()
    return answered(connection, lambda: _train(connection, task))


def _train(connection: Connection, order: dict[str, Any]) -> None:
    answers = WindowAnswers(connection)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    task = task_named(order["task"], is_tiny=order["is_tiny"])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = MODELS[task.name](task.size).to(device)
    if task.is_image:
        model = model.to(memory_format=torch.channels_last)
    optimizer = _optimizer(task, model)
    answers.built(sum(one.numel() for one in model.parameters() if one.requires_grad))
    forward = torch.compile(model) if order["compiled"] else model
    batches = _on(device, _image_files(task, order["folder"]) if order["folder"] else _in_memory(task, device))
    while True:
        num_steps = answers.wait()
        total = torch.zeros((), device=device)
        num_correct = torch.zeros((), dtype=torch.int64, device=device)
        for _ in range(num_steps):
            x, y = next(batches)
            with torch.autocast(device, dtype=torch.bfloat16):
                logits = forward(x)
                loss = functional.cross_entropy(logits, y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            total += loss.detach()
            num_correct += (logits.detach().argmax(dim=1) == y).sum()
        num_correct.item()
        answers.done(total.item() / num_steps)


def _optimizer(task: GpuTask, model: torch.nn.Module) -> torch.optim.Optimizer:
    if task.is_image:
        return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, fused=True)
    return torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, eps=ADAM_EPSILON, fused=True)


def _in_memory(task: GpuTask, device: str) -> Batches:
    """Endless epochs of the task's arrays, reshuffled in each; synthetic images are one batch, again and again."""
    arrays = task.arrays() if task.is_image else task.epoch_arrays()
    x, y = torch.from_numpy(arrays[0]), torch.from_numpy(arrays[1]).long()
    if task.is_image:
        x = x.permute(0, 3, 1, 2)
        if torch.cuda.is_available():
            x, y = x.pin_memory(), y.pin_memory()
        while True:
            yield x, y
    x, y = x.to(device), y.to(device)
    while True:
        for rows in torch.randperm(len(x), device=device).split(task.size.global_batch_size):
            yield x[rows], y[rows]


class _Images(Dataset):
    """JPEG files, decoded and resized when asked for."""

    def __init__(self, folder: Path, size: int) -> None:
        self.paths, self.labels = training_files(folder)
        self._size = size

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.paths[index]) as image:
            resized = image.convert("RGB").resize((self._size, self._size), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.asarray(resized).copy()).permute(2, 0, 1), self.labels[index]


def _image_files(task: GpuTask, folder: str) -> Batches:
    """Endless epochs of the images in a folder, decoded by as many processes as there are cores."""
    loader = DataLoader(
        _Images(Path(folder), task.size.input_shape[0]),
        batch_size=task.size.global_batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=len(os.sched_getaffinity(0)),
        pin_memory=torch.cuda.is_available(),
        persistent_workers=True,
    )
    while True:
        yield from loader


def _on(device: str, batches: Batches) -> Batches:
    """The batches on the device, each copied while the step before it runs; images as floats from 0 to 1."""
    for x, y in batches:
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        yield (x.float() / 255).contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x, y
