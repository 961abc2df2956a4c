"""`Runtime`: sets up a plan in this process. The only module that changes global state."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tfaccel.argument_types import checks_types
from tfaccel.errors import PlanError
from tfaccel.hardware.cluster import tf_config
from tfaccel.hardware.hardware import Cluster
from tfaccel.known_names import suggests_names
from tfaccel.planning.placements import SET_BY_YOU
from tfaccel.planning.plan import Plan
from tfaccel.planning.plan_environment import get_environment
from tfaccel.processes.launched import serve_launcher
from tfaccel.processes.quiet_start import without_notes
from tfaccel.training.process_settings import before_start, note_loaded, set_threads, unavailable_settings

if TYPE_CHECKING:
    import tensorflow as tf

_GRAPPLER_BFLOAT16 = "auto_mixed_precision_onednn_bfloat16"  # in `tf.config.optimizer`'s options


@suggests_names
class Runtime:
    """A context manager that sets up TensorFlow as a plan specifies.

    Entering sets devices, memory, threads, the dtype policy and the strategy. Leaving restores the environment, the
    dtype policy and the random states of Python and NumPy. Devices, memory and threads remain, since TensorFlow cannot
    change them once it has started.

    Args:
        plan: the plan to set up.
        seed: if given, seeds Python, NumPy, TensorFlow and Keras. Kept as an attribute.
        cluster: this process's place in a cluster, for plans with several workers if `TF_CONFIG` is not set.
        same_on_all: name -> JSON value on which several workers must agree, besides the plan.

    With several workers, entering waits for all of them, for 300 seconds or the value of the environment variable
    `TFACCEL_WORKER_WAIT_SECONDS`, and after a second logs which ones are missing. TensorFlow's C++ log shows errors
    only, unless `TF_CPP_MIN_LOG_LEVEL` is set.

    Attributes:
        strategy: the plan's `tf.distribute.Strategy`, once entered.

    Raises:
        PlanError: on entering, if a device is missing, or TensorFlow has already started with other settings.
        ClusterError: on entering, if a worker does not connect, or has another plan, cluster or version.

    Example:
        >>> import keras
        >>> from tfaccel import Plan, Runtime
        >>> with Runtime(Plan(strategy="none", devices=("CPU:0",), global_batch_size=32)) as runtime:
        ...     with runtime.strategy.scope():
        ...         model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    """

    strategy: tf.distribute.Strategy

    @checks_types(PlanError, checks_numbers=True)
    def __init__(
        self,
        plan: Plan,
        *,
        seed: int | None = None,
        cluster: Cluster | None = None,
        same_on_all: Mapping[str, Any] | None = None,
    ) -> None:
        self.plan = plan
        self._same_on_all = dict(same_on_all or {})
        self.seed = seed
        self._cluster = cluster
        self._environment: dict[str, str] = {}
        self._dtype_policy: Any = None
        self._random_states: tuple[Any, Any] | None = None
        self._name_counters: list[Any] = []
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> Self:
        self._environment = dict(os.environ)
        self._random_states = (random.getstate(), np.random.get_state())
        is_quiet = "TF_CPP_MIN_LOG_LEVEL" not in os.environ
        serve_launcher()
        try:
            self._set_environment()
            with without_notes(wants_gpus=self._wants_gpus) if is_quiet else contextlib.nullcontext():
                import keras

                self._dtype_policy = keras.config.dtype_policy()
                self._set_devices()
                set_threads(self.plan)
                self.strategy = self._make_strategy()
            keras.config.set_dtype_policy(self.plan.dtype_policy)
            self._set_graph_rewrites()
            self.seed_generators()
        except BaseException:
            self._restore()
            raise
        return self

    def _set_graph_rewrites(self) -> None:
        """Sets what TensorFlow does to all graphs from now on."""
        import tensorflow as tf

        optimizer = tf.config.optimizer
        if self.plan.grappler_bfloat16:
            before = optimizer.get_experimental_options().get(_GRAPPLER_BFLOAT16, False)
            self._undo.append(lambda: optimizer.set_experimental_options({_GRAPPLER_BFLOAT16: before}))
            optimizer.set_experimental_options({_GRAPPLER_BFLOAT16: True})
        if self.plan.xla_auto_clustering:
            before_jit = optimizer.get_jit()
            self._undo.append(lambda: optimizer.set_jit(before_jit or False))
            optimizer.set_jit("autoclustering")

    def seed_generators(self) -> None:
        """Seeds Python, NumPy, TensorFlow and Keras, if a seed is given, and resets Keras's layer name counters.

        A run then gives the same results whatever was drawn or built before it in this process.
        """
        import keras

        from tfaccel.training.private.private_models import swap_name_counters

        counters = swap_name_counters(None)
        self._name_counters = self._name_counters or [counters]
        if self.seed is not None:
            keras.utils.set_random_seed(self.seed)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._restore()

    def _restore(self) -> None:
        if self.plan.num_workers > 1 and "tensorflow" in sys.modules:
            sys.modules["tensorflow"].get_logger().removeFilter(_no_advice_on_collectives)
        for name in set(os.environ) - set(self._environment):
            del os.environ[name]
        os.environ.update(self._environment)
        if self._dtype_policy is not None:
            import keras

            keras.config.set_dtype_policy(self._dtype_policy)
        while self._undo:
            self._undo.pop()()
        if self._name_counters:
            from tfaccel.training.private.private_models import swap_name_counters

            swap_name_counters(self._name_counters.pop())
        if self._random_states is not None:
            random.setstate(self._random_states[0])
            np.random.set_state(self._random_states[1])

    @property
    def _wants_gpus(self) -> bool:
        return any(device.startswith("GPU") for device in self.plan.devices)

    def _set_environment(self) -> None:
        """Sets environment variables that TensorFlow and Keras read when imported."""
        for problem in unavailable_settings(self.plan).values():
            raise PlanError(problem)
        variables = get_environment(self.plan)
        keras = sys.modules.get("keras")
        if keras is None:
            os.environ["KERAS_BACKEND"] = "tensorflow"
        elif keras.backend.backend() != "tensorflow":
            raise PlanError(
                f"Keras runs on the backend {keras.backend.backend()!r}; tfaccel trains on TensorFlow. Start a new "
                "process with KERAS_BACKEND=tensorflow."
            )
        if "tensorflow" not in sys.modules:
            os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
            if not self._wants_gpus:
                os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
            os.environ.update(variables)
            note_loaded(variables)
        if self.plan.num_workers > 1 and self._cluster is not None and "TF_CONFIG" not in os.environ:
            os.environ["TF_CONFIG"] = json.dumps(tf_config(self._cluster))

    def _set_devices(self) -> None:
        import tensorflow as tf

        plan = self.plan
        wanted = [device.split(":") for device in plan.devices]
        gpus = [int(index) for kind, index in wanted if kind == "GPU"]
        physical = tf.config.list_physical_devices("GPU")
        if gpus and max(gpus) >= len(physical):
            there = ", ".join(f"GPU:{i}" for i in range(len(physical))) or "no GPU"
            raise PlanError(
                f"The plan uses {', '.join(plan.devices)}, but TensorFlow sees {there}. Choose available --devices, "
                "or run `tfaccel doctor` to find out why one is missing."
            )
        if plan.strategy == "tpu":
            return
        before_start(
            lambda: tf.config.set_visible_devices([physical[i] for i in gpus], "GPU"),
            lambda: len(tf.config.list_logical_devices("GPU")) == len(gpus),
            f"{len(gpus)} visible GPUs",
        )
        if plan.num_logical_cpus > 1:
            cpu = tf.config.list_physical_devices("CPU")[0]
            parts = [tf.config.LogicalDeviceConfiguration() for _ in range(plan.num_logical_cpus)]
            before_start(
                lambda: tf.config.set_logical_device_configuration(cpu, parts),
                lambda: len(tf.config.list_logical_devices("CPU")) >= plan.num_logical_cpus,
                f"{plan.num_logical_cpus} logical CPUs",
            )
        for index in gpus:
            self._set_gpu_memory(physical[index])

    def _set_gpu_memory(self, gpu: Any) -> None:
        import tensorflow as tf

        limit = self.plan.gpu_memory_limit_bytes
        if limit is not None:
            parts = [tf.config.LogicalDeviceConfiguration(memory_limit=limit // 2**20)]
            before_start(
                lambda: tf.config.set_logical_device_configuration(gpu, parts),
                lambda: tf.config.get_logical_device_configuration(gpu) == parts,
                f"a memory limit of {limit} bytes on {gpu.name}",
            )
        else:
            growth = self.plan.gpu_memory_growth
            by_rule = dict(self.plan.reasons).get("gpu_memory_growth", SET_BY_YOU) != SET_BY_YOU
            before_start(
                lambda: tf.config.experimental.set_memory_growth(gpu, growth),
                lambda: by_rule or tf.config.experimental.get_memory_growth(gpu) == growth,
                f"memory growth {'on' if growth else 'off'} for {gpu.name}",
            )

    def _make_strategy(self) -> tf.distribute.Strategy:
        import tensorflow as tf

        from tfaccel.training.workers.strategies import make_strategy

        if self.plan.num_workers > 1:
            tf.get_logger().addFilter(_no_advice_on_collectives)
        strategy = make_strategy(self.plan, self._same_on_all)
        tf.config.list_logical_devices()  # starts TensorFlow now, while its messages are filtered
        return strategy


def _no_advice_on_collectives(record: logging.LogRecord) -> bool:
    """False for TensorFlow's warnings about retracing its own collective functions between workers."""
    return not all(word in record.getMessage() for word in ("retracing", "Collective"))


def set_seeds(seed: int) -> None:
    """Sets the seeds of Python, NumPy and TensorFlow, and Keras's."""
    keras = sys.modules["keras"]
    keras.utils.set_random_seed(seed)


def use_tensor_float_32(enabled: bool) -> None:
    """Sets whether GPUs multiply float32 matrices with 10 bits of mantissa, which is TensorFlow's default."""
    sys.modules["tensorflow"].config.experimental.enable_tensor_float_32_execution(enabled)


def background_thread() -> ThreadPoolExecutor:
    """A single-thread executor with the dtype policy of the calling thread, since Keras keeps one per thread."""
    import keras

    policy = keras.config.dtype_policy()
    return ThreadPoolExecutor(1, "tfaccel-background", initializer=lambda: keras.config.set_dtype_policy(policy))


def split_cpu(num_devices: int) -> None:
    """Configures this number of logical CPU devices for a program of its own, before TensorFlow starts."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * num_devices)
