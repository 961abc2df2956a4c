"""Datasets with the threads and the prefetching of a plan."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfaccel.errors import PlanError, WorkloadError
from tfaccel.planning.plan import Plan


def with_plan(dataset: Any, plan: Plan, name: str) -> tf.data.Dataset:
    """A dataset with the plan's threads and prefetching.

    Raises:
        WorkloadError: if it is not a `tf.data.Dataset`.
    """
    dataset = checked(dataset, name)
    if plan.data_threads is not None:
        options = tf.data.Options()
        options.threading.private_threadpool_size = plan.data_threads
        dataset = dataset.with_options(options)
    return dataset.prefetch(plan.prefetch_batches) if plan.prefetch_batches else dataset


def fetched_to(device: str, dataset: tf.data.Dataset) -> tf.data.Dataset:
    """A dataset whose next batch is prefetched to a device's memory; it can only be iterated.

    Raises:
        PlanError: if the batches hold anything but dense numbers, since GPU memory takes nothing else.
    """
    specs = tf.nest.flatten(dataset.element_spec)
    odd = [spec for spec in specs if not isinstance(spec, tf.TensorSpec) or spec.dtype == tf.string]
    if odd:
        raise PlanError(
            f"The plan prefetches to the device, but batches hold {odd[0]}, which cannot be stored in GPU memory. "
            "Set prefetch_to_device=False."
        )
    options = tf.data.Options()  # added to the dataset's own options
    options.autotune.enabled = False
    return dataset.apply(tf.data.experimental.prefetch_to_device(device, 1)).with_options(options)


def checked(dataset: Any, name: str) -> tf.data.Dataset:
    """The dataset that a workload's function `name` returned.

    Raises:
        WorkloadError: if it is not a `tf.data.Dataset`.
    """
    if not isinstance(dataset, tf.data.Dataset):
        raise WorkloadError(f"A workload's {name} must return a tf.data.Dataset of batches. Received: {dataset!r:.200}")
    return dataset
