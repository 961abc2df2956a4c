"""Steps of the GPU suite about the input: JPEG images that are decoded on the spot, and where they are augmented."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tfaccel.benchmarks.gpu.jpeg_files import write_images
from tfaccel.benchmarks.gpu.racers import MODEL_FIT, RULES, TORCH, TaskRacers
from tfaccel.benchmarks.gpu.step import StepRun
from tfaccel.benchmarks.gpu.step_figures import MIN_OF_TORCH
from tfaccel.benchmarks.gpu.tasks import task_named, workload
from tfaccel.benchmarks.gpu.trial import in_new_process
from tfaccel.planning.plan import Plan

SYNTHETIC, UNCACHED = "synthetic images", "decoded in each epoch"
_NUM_IMAGES, _FILE_SIZE = 5120, 256
_REHEARSED_IMAGES, _REHEARSED_FILE_SIZE = 64, 40
_PLACES = ("host", "device")
_NUM_ROUNDS = 3


def decoded_input(run: StepRun) -> None:
    """The plan of the rules on JPEG images, kept in memory once decoded; and its peers.

    All programs run an epoch first, in which images are decoded that are kept.
    """
    with _images(run) as folder, TaskRacers(run, "resnet", folder=str(folder)) as racers:
        racers.add_plan(RULES, racers.rules_plan())
        racers.add_keras()
        racers.add_torch()
        racers.warm_up(_steps_per_epoch(run))
        racers.race(num_rounds=_NUM_ROUNDS)
        racers.ratio("resnet, JPEG", RULES, MODEL_FIT, at_least=2.0)
        racers.ratio("resnet, JPEG", RULES, TORCH, at_least=MIN_OF_TORCH)


def cached_input(run: StepRun) -> None:
    """The plan of the rules on images that are in memory; on JPEG images kept in memory, and decoded in each epoch."""
    with _images(run) as folder, TaskRacers(run, "resnet", folder=str(folder)) as racers:
        plan = racers.rules_plan()
        racers.add_plan(RULES, plan)
        racers.add_plan(UNCACHED, plan, cache="none")
        racers.add_plan(SYNTHETIC, plan, folder="")
        racers.warm_up(_steps_per_epoch(run))
        racers.race(num_rounds=_NUM_ROUNDS)
        racers.ratio("resnet, JPEG", RULES, SYNTHETIC, at_least=0.95)
        racers.ratio("resnet, JPEG", UNCACHED, SYNTHETIC, at_least=0.95)


def augmentation(run: StepRun) -> None:
    """Where training decides to augment, and the speed of both places."""
    with _images(run) as folder, TaskRacers(run, "resnet", folder=str(folder), augmentation="moves") as racers:
        plan = racers.rules_plan()
        arguments = {"plan": plan.to_json(), "folder": str(folder), "is_tiny": run.is_rehearsal}
        placed = in_new_process(f"{__name__}:place_of_augmentation", arguments, limit_seconds=run.seconds_left)
        run.record("placed", placed)
        for place in _PLACES:
            racers.add_plan(place, replace(plan, augment_on=place))
        racers.race(num_rounds=_NUM_ROUNDS)
        chosen = placed["augment_on"]
        racers.ratio("augmentation", chosen, next(place for place in _PLACES if place != chosen))


def place_of_augmentation(plan: dict[str, object], folder: str, is_tiny: bool) -> dict[str, str]:
    """Where training would augment, and why; runs in a process of its own."""
    from tfaccel.training.run.augmentation_place import place_augmentation
    from tfaccel.training.runtime import Runtime

    work = workload(task="resnet", is_tiny=is_tiny, folder=folder, augmentation="moves")
    given = Plan.from_json(plan)
    with Runtime(given, seed=0) as runtime:
        placed = place_augmentation(work, given, strategy=runtime.strategy)
    return {"augment_on": placed.augment_on, "reason": dict(placed.reasons)["augment_on"]}


@contextlib.contextmanager
def _images(run: StepRun) -> Iterator[Path]:
    """A temporary folder of JPEG images."""
    size = _REHEARSED_FILE_SIZE if run.is_rehearsal else _FILE_SIZE
    with tempfile.TemporaryDirectory(prefix="tfaccel-") as name:
        run.progress(f"writing {num_images(run)} images")
        write_images(Path(name), num_images(run), size)
        yield Path(name)


def num_images(run: StepRun) -> int:
    """How many images there are to train on."""
    return _REHEARSED_IMAGES if run.is_rehearsal else _NUM_IMAGES


def _steps_per_epoch(run: StepRun) -> int:
    return num_images(run) // task_named("resnet", is_tiny=run.is_rehearsal).size.global_batch_size
