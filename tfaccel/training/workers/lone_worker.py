"""Refuses to train on one of several workers alone."""

from __future__ import annotations

import os

import tensorflow as tf

from tfaccel.errors import PlanError
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.workers.lost_worker import get_place


def refuse_lone_worker(replicas: Replicas) -> None:
    """Raises PlanError if this is one of several workers, according to `TF_CONFIG`, and the others do not take part.

    Each worker would train a model of its own on all the data, and all of them would write to the same files.
    """
    if replicas.num_workers > 1 or not os.environ.get("TF_CONFIG"):
        return
    try:
        place = get_place(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    except ValueError:  # no JSON: nothing that starts workers has set it
        return
    if place is None:
        return
    found = "no strategy" if replicas.is_default else f"{type(replicas.strategy).__name__}, which knows one worker only"
    raise PlanError(
        f"This process is worker {place.index} of {len(place.addresses)} according to TF_CONFIG, as `tfaccel launch` "
        f"sets it, but the model was built under {found}: each worker would train alone. Create "
        "`strategy = tf.distribute.MultiWorkerMirroredStrategy()` at the start of the script and build the model in "
        "`with strategy.scope():`, or use tfaccel.train, which does both. If each worker shall train a model of its "
        "own, remove TF_CONFIG from the environment first: `del os.environ['TF_CONFIG']`."
    )
