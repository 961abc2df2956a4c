"""Measures how well a run uses the machine, per epoch and in total, without any work for single steps."""

from __future__ import annotations

import logging
import resource
import time
from dataclasses import dataclass, fields
from typing import Any

import keras
import tensorflow as tf

from tfaccel.errors import TfaccelError
from tfaccel.hardware.gpu import GpuMeter, visible_gpu_ids
from tfaccel.hardware.hardware import Hardware
from tfaccel.planning.machine_ceilings import cached_ceilings, compute_dtype, num_limited_devices
from tfaccel.planning.plan import Plan
from tfaccel.training.run.performance import Performance, WorkerTimes, straggler
from tfaccel.training.steps.engine import Engine
from tfaccel.training.steps.marked_layers import train_step_cost
from tfaccel.training.steps.replicas import Replicas

logger = logging.getLogger("tfaccel")

BATCH_HOOKS = ("on_train_batch_begin", "on_train_batch_end")

_KIB = 1024
_MAX_MICROS = 2**30


class Utilization(keras.callbacks.Callback):
    """Sums times of windows; the callbacks after it read `of_epoch`.

    Graph calls that trace are left out, unless an epoch has no others. So is validation.

    Attributes:
        of_epoch: the performance of the last epoch; None before the first one, or if it had no steps.
        workers: the times of each worker in the last epoch; empty with one worker.
    """

    tfaccel_windows = True
    tfaccel_live = (*BATCH_HOOKS, "on_epoch_end")

    def __init__(
        self, engine: Engine, plan: Plan, hardware: Hardware, *, batch_spec: Any, examples_per_batch: int
    ) -> None:
        super().__init__()
        self.of_epoch: Performance | None = None
        self.workers: tuple[WorkerTimes, ...] = ()
        self._engine, self._plan, self._hardware = engine, plan, hardware
        self._batch_spec, self._examples = batch_spec, examples_per_batch
        self._meter = GpuMeter(visible_gpu_ids(plan.devices))
        self._epoch, self._traced, self._all = _Sums(), _Sums(), _Sums()
        self._epoch_began: float | None = None
        self._began = (0, 0.0, 0.0, 0.0, 0.0)
        self._num_graphs = self._num_epochs = 0
        self._least_seconds: float | None = None  # of a batch's matrix products, at the machine's ceiling
        self._looked_for_ceilings = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begins to wait for the epoch's first batch."""
        self._epoch, self._traced = _Sums(), _Sums()
        self._meter.reset()
        self._epoch_began = time.perf_counter()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Begins a window."""
        now = time.perf_counter()
        if self._epoch_began is not None and self._num_graphs:  # before that, layers and rows are examined
            self._epoch.waited += now - self._epoch_began
            self._epoch.seconds += now - self._epoch_began
        self._epoch_began = None
        waited = self._engine.waited_seconds or 0.0
        self._began = (batch, now, time.process_time(), waited, self._engine.reduced_seconds)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Adds a window."""
        first, started, cpu_started, waited, reduced = self._began
        num_graphs = self._engine.num_graphs("train")
        sums = self._epoch if num_graphs == self._num_graphs else self._traced
        self._num_graphs = num_graphs
        sums.num_batches += batch + 1 - first
        sums.seconds += time.perf_counter() - started
        sums.cpu_seconds += time.process_time() - cpu_started
        sums.waited += (self._engine.waited_seconds or 0.0) - waited
        sums.reduced += self._engine.reduced_seconds - reduced
        self._meter.sample()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Computes `of_epoch`."""
        sums = self._epoch if self._epoch.num_batches else self._traced
        sums.gpu_utilization = self._meter.mean()
        if self._num_epochs == 1:  # it may have compiled, which no trace shows
            self._all = _Sums()
        self._all = self._all + self._epoch
        self._num_epochs += 1
        if not self._looked_for_ceilings:
            self._looked_for_ceilings = True
            self._least_seconds = self._seconds_at_ceiling()
        self.of_epoch = self._performance(sums)
        self.workers = times_of_workers(self._engine.replicas, sums.times())

    def workers_of_run(self) -> tuple[WorkerTimes, ...]:
        """The times of each worker in all epochs so far but the first one, if there are others. All workers call it.

        The chief logs a worker that the others waited for.
        """
        replicas = self._engine.replicas
        workers = times_of_workers(replicas, self._all.times()) if self._all.num_batches else self.workers
        slow = straggler(workers)
        if slow is not None and replicas.is_chief:
            logger.warning(f"Straggler: {slow.text}.")
        return workers

    def of_run(self) -> Performance | None:
        """The performance of all epochs so far but the first one, if there are others."""
        return self._performance(self._all) if self._all.num_batches else self.of_epoch

    def _performance(self, sums: _Sums) -> Performance | None:
        if not sums.num_batches or sums.seconds <= 0:
            return None
        seconds_per_batch = sums.seconds / sums.num_batches
        share = None if self._engine.waited_seconds is None else min(1.0, max(0.0, sums.waited / sums.seconds))
        gpus = [device for device in self._plan.devices if device.startswith("GPU")]
        if gpus and share is not None:  # an upper bound, see InputClock
            share = None if sums.gpu_utilization is None else min(share, 1 - sums.gpu_utilization)
        cores = max(1, self._hardware.num_usable_cores)
        peaks = [int(tf.config.experimental.get_memory_info(name)["peak"]) for name in gpus]
        return Performance(
            examples_per_second=self._examples / seconds_per_batch,
            step_seconds=seconds_per_batch * self._plan.accumulation_steps,
            input_wait_share=share,
            mfu=None if self._least_seconds is None else self._least_seconds / seconds_per_batch,
            cpu_utilization=sums.cpu_seconds / sums.seconds / cores,
            gpu_utilization=sums.gpu_utilization,
            peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB,
            gpu_peak_memory_bytes=max(peaks, default=None),
        )

    def _seconds_at_ceiling(self) -> float | None:
        """Seconds that the matrix products of a batch would take at the ceiling; None if unknown."""
        if self._engine.replicas.num_workers > 1:
            logger.info("MFU is not reported with several workers.")
            return None
        ceilings = cached_ceilings(self._hardware, self._plan)
        if ceilings is None:
            logger.info(
                "MFU is not reported: run `tfaccel roofline` for this workload and its flags (or "
                "`tfaccel.estimates.roofline`), which measures this machine's limits for this plan."
            )
            return None
        if ceilings.disturbed:
            logger.info(f"MFU is not reported. {ceilings.doubt} Run nothing else, and then `tfaccel roofline` again.")
            return None
        try:
            cost = train_step_cost(self._engine, self._batch_spec, rows=self._examples)
        except TfaccelError as error:
            logger.info(f"MFU is not reported: {error}")
            return None
        speed = ceilings.matrix_flops(compute_dtype(self._plan)) * num_limited_devices(self._plan)
        return cost.matrix_flops / speed


def times_of_workers(replicas: Replicas, own: WorkerTimes) -> tuple[WorkerTimes, ...]:
    """The times of all workers, in their order; empty if there is only one. All workers call it."""
    if replicas.num_workers == 1:
        return ()
    size = len(fields(own))
    micros = [0] * (size * replicas.num_workers)
    micros[size * replicas.worker_index : size * (replicas.worker_index + 1)] = [
        min(_MAX_MICROS, round(1e6 * getattr(own, one.name))) for one in fields(own)
    ]
    every = [micro * 1e-6 for micro in replicas.sum_over_workers(micros)]
    return tuple(WorkerTimes(*every[start : start + size]) for start in range(0, len(every), size))


@dataclass
class _Sums:
    """Sums over windows."""

    num_batches: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    waited: float = 0.0
    reduced: float = 0.0
    gpu_utilization: float | None = None

    def times(self) -> WorkerTimes:
        """The times of a batch."""
        batches = max(1, self.num_batches)
        compute = max(0.0, self.seconds - self.waited - self.reduced)
        return WorkerTimes(input=self.waited / batches, compute=compute / batches, reduce=self.reduced / batches)

    def __add__(self, other: _Sums) -> _Sums:
        total = _Sums()
        for name in ("num_batches", "seconds", "cpu_seconds", "waited", "reduced"):
            setattr(total, name, getattr(self, name) + getattr(other, name))
        pairs = [(one.gpu_utilization, one.seconds) for one in (self, other) if one.gpu_utilization is not None]
        weight = sum(seconds for _, seconds in pairs)
        total.gpu_utilization = sum(value * seconds for value, seconds in pairs) / weight if weight else None
        return total
