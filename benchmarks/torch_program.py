"""Native PyTorch on a family, in timed windows: the loop that its users write, on tensors in memory."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch.nn import functional

from tfaccel.benchmarks.choice_tasks import ADAM_EPSILON, FAMILIES, LEARNING_RATE, Family
from tfaccel.benchmarks.torch_models import MODELS
from tfaccel.benchmarks.window_answers import WindowAnswers, answered
from tfaccel.hardware.detect import detect_hardware


def main(connection: Connection, arguments: list[str]) -> int:
    """Trains as ordered; returns the exit status."""
    task = connection.recv()
    return answered(connection, lambda: _train(connection, task))


def _train(connection: Connection, task: dict[str, Any]) -> None:
    answers = WindowAnswers(connection)
    torch.set_num_threads(detect_hardware().num_usable_cores)
    torch.manual_seed(task["seed"])
    family = FAMILIES[task["family"]]
    model = MODELS[family.name]()
    if task["channels_last"]:
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, eps=ADAM_EPSILON, fused=True)
    answers.built(sum(one.numel() for one in model.parameters() if one.requires_grad))
    forward = torch.compile(model) if task["compiled"] else model
    batches = _batches(family, channels_last=task["channels_last"])
    while True:
        num_steps = answers.wait()
        total, num_correct = torch.zeros(()), torch.zeros((), dtype=torch.int64)
        for _ in range(num_steps):
            x, y = next(batches)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=task["bfloat16"]):
                logits = forward(x)
                loss = functional.cross_entropy(logits, y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            total += loss.detach()
            num_correct += (logits.detach().argmax(dim=1) == y).sum()
        num_correct.item()
        answers.done(total.item() / num_steps)


def _batches(family: Family, *, channels_last: bool) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless epochs of batches, reshuffled in each."""
    arrays = family.arrays()
    x, y = torch.from_numpy(arrays[0]), torch.from_numpy(arrays[1]).long()
    if family.is_image and not channels_last:
        x = x.permute(0, 3, 1, 2).contiguous()
    while True:
        order = torch.randperm(len(x))
        for rows in order.split(family.global_batch_size):
            batch = x[rows]
            yield batch.permute(0, 3, 1, 2) if channels_last else batch, y[rows]
