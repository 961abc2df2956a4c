"""`Runtime`: sets up a plan in this process. The only module that changes global state."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import logging
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tfaccel.argument_types import checks_types
from tfaccel.errors import PlanError
from tfaccel.hardware.cluster import tf_config
from tfaccel.hardware.hardware import Cluster
from tfaccel.known_names import suggests_names
from tfaccel.planning.compilation_cache import CompilationCache
from tfaccel.planning.placements import SET_BY_YOU
from tfaccel.planning.plan import Plan, default_value
from tfaccel.planning.plan_environment import READ_AT_START, XLA_FLAGS, get_environment, with_flags_of
from tfaccel.processes import heartbeat
from tfaccel.processes.launched import serve_launcher
from tfaccel.processes.quiet_start import NOTES_OF_CACHE, without_lines, without_notes
from tfaccel.training.private.private_start import has_started, swap_name_counters, uses_onednn

if TYPE_CHECKING:
    import tensorflow as tf

_GRAPPLER_BFLOAT16 = "auto_mixed_precision_onednn_bfloat16"  # in `tf.config.optimizer`'s options

logger = logging.getLogger("tfaccel")

# Plan field -> the variables that it sets.
_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "onednn": ("TF_ENABLE_ONEDNN_OPTS",),
    "xla_auto_clustering": (XLA_FLAGS,),
    "gpu_thread_mode": ("TF_GPU_THREAD_MODE",),
    "memory_allocator": READ_AT_START,
}
_loaded_with: dict[str, str] = {}
_programs: list[CompilationCache] = []  # that of this process, if it has one


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
        spare: another device that this process uses, such as "GPU:1", which follows the plan's devices.

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
        spare: str | None = None,
    ) -> None:
        self.plan = plan
        self._devices = tuple(dict.fromkeys((*plan.devices, *([] if spare is None else [spare]))))
        self._same_on_all = dict(same_on_all or {})
        self.seed = seed
        self._cluster = cluster
        self._environment: dict[str, str] = {}
        self._dtype_policy: Any = None
        self._random_states: tuple[Any, Any] | None = None
        self._keeps_names = False
        self._undo: list[Callable[[], Any]] = []

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

        counters = swap_name_counters(None)
        if not self._keeps_names:
            self._keeps_names = True
            self._undo.append(lambda: swap_name_counters(counters))
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
        self._keeps_names = False
        if self._random_states is not None:
            random.setstate(self._random_states[0])
            np.random.set_state(self._random_states[1])

    @property
    def _wants_gpus(self) -> bool:
        return any(device.startswith("GPU") for device in self._devices)

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
            os.environ.update(with_flags_of(os.environ, variables))
            note_loaded(variables)
            heartbeat.note_loading()
        if self.plan.strategy != "tpu":
            keep_compiled_programs("GPU" if self._wants_gpus else "CPU")
        if self.plan.num_workers > 1 and self._cluster is not None and "TF_CONFIG" not in os.environ:
            os.environ["TF_CONFIG"] = json.dumps(tf_config(self._cluster))

    def _set_devices(self) -> None:
        import tensorflow as tf

        plan = self.plan
        wanted = [device.split(":") for device in self._devices]
        gpus = [int(index) for kind, index in wanted if kind == "GPU"]
        physical = tf.config.list_physical_devices("GPU")
        if gpus and max(gpus) >= len(physical):
            there = ", ".join(f"GPU:{i}" for i in range(len(physical))) or "no GPU"
            raise PlanError(
                f"The plan uses {', '.join(self._devices)}, but TensorFlow sees {there}. Choose available --devices, "
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


class JaxRuntime:
    """A context manager that sets dtype policy and seed for Keras on JAX; leaving restores the policy."""

    def __init__(self, *, dtype_policy: str, seed: int) -> None:
        self._wanted = dtype_policy
        self._seed = seed
        self._dtype_policy: Any = None

    def __enter__(self) -> Self:
        import keras

        if keras.backend.backend() != "jax":
            raise PlanError(
                f"Keras runs on the backend {keras.backend.backend()!r}, not on 'jax'. Start a new process, or restart "
                "the notebook, and set KERAS_BACKEND=jax before Keras is imported."
            )
        self._dtype_policy = keras.config.dtype_policy()
        keras.config.set_dtype_policy(self._wanted)
        keras.utils.set_random_seed(self._seed)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        import keras

        keras.config.set_dtype_policy(self._dtype_policy)


def keep_compiled_programs(kind: str) -> None:
    """Lets XLA keep what it compiles for devices of a kind, unless TensorFlow has started; see `compilation_cache`."""
    if _programs or ("tensorflow" in sys.modules and has_started()):
        return
    cache = CompilationCache.open(os.environ, kind=kind)
    if cache is not None:
        os.environ[XLA_FLAGS] = cache.flags(os.environ)
        _programs.append(cache)
        atexit.register(cache.close)


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """A block in which XLA may compile programs, or load them: what it compiles is kept."""
    if not _programs and (given := CompilationCache.given(os.environ)):
        _programs.append(given)
    if not _programs:
        yield
        return
    _programs[0].fill()
    with without_lines(NOTES_OF_CACHE):
        yield
    _programs[0].keep()


def note_loaded(variables: Mapping[str, str]) -> None:
    """Remembers the variables with which this process loads TensorFlow."""
    _loaded_with.update(variables)


def variables_at_start(plan: Plan) -> dict[str, str]:
    """The variables with which a process must start to train with a plan, if this one has started without them."""
    wanted = {name: value for name, value in get_environment(plan).items() if name in READ_AT_START}
    return {name: value for name, value in wanted.items() if not _started_with(name, value)}


def unavailable_settings(plan: Plan) -> dict[str, str]:
    """Plan field -> why this process cannot train with its value; empty if it can."""
    missing = variables_at_start(plan)
    wanted = get_environment(plan)
    if "tensorflow" in sys.modules:
        missing |= {name: value for name, value in wanted.items() if not _tensorflow_has(name, value, plan)}
    found = {}
    for field, names in _VARIABLES.items():
        needed = " ".join(f"{name}={missing[name]}" for name in names if name in missing)
        if needed:
            found[field] = (
                f"The plan has {field}={getattr(plan, field)!r}, but this process "
                + ("started without it." if field == "memory_allocator" else "has loaded TensorFlow without it.")
                + f" Set the environment variable {needed} before Python starts, or use {field}={default_value(field)}."
            )
    return found


def without_unavailable(plan: Plan, fixed: Mapping[str, Any]) -> Plan:
    """A measured plan without the settings that would need a new process; those that the user fixed stay."""
    for field, problem in unavailable_settings(plan).items():
        if field not in fixed:
            logger.warning("The measured plan is used without its %s. %s", field, problem)
            default: Any = default_value(field)
            plan = replace(plan, **{field: default})
    return plan


def _tensorflow_has(name: str, value: str, plan: Plan) -> bool:
    """Whether the loaded TensorFlow has read a variable, or acts as if it had."""
    if name in READ_AT_START:
        return _started_with(name, value)
    if name == "TF_ENABLE_ONEDNN_OPTS":
        return uses_onednn() == plan.onednn
    return value in os.environ.get(name, "").split() or _loaded_with.get(name) == value


def _started_with(name: str, value: str) -> bool:
    """Whether this process has started with a value of a variable."""
    try:
        if name == "LD_PRELOAD":
            return value in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
        variables = Path("/proc/self/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False
    return any(one.startswith(f"{name}=") and value in one for one in variables)


def before_start(change: Callable[[], Any], fits: Callable[[], bool], what: str) -> None:
    """Makes a change that TensorFlow accepts only before it starts; later, the setting must already match."""
    try:
        change()
    except RuntimeError as error:
        if not fits():
            raise PlanError(
                f"The plan needs {what}, but TensorFlow has already started in this process and cannot change that. "
                "Start a new process; there, give `train` the function that builds the model, not a model, or enter "
                "`Runtime(plan)` before the first TensorFlow operation."
            ) from error


def set_threads(plan: Plan) -> None:
    """Sets the plan's numbers of threads; numbers that a rule chose are left as they are once TensorFlow has started.

    Raises:
        PlanError: if TensorFlow has started with another number than the one that the user set.
    """
    import tensorflow as tf

    for kind, what in (("intra_op", "threads inside one operation"), ("inter_op", "operations in parallel")):
        wanted: int | None = getattr(plan, f"{kind}_threads")
        configured, configure = (
            getattr(tf.config.threading, f"{verb}_{kind}_parallelism_threads") for verb in ("get", "set")
        )
        if wanted is None or configured() == wanted:
            continue

        def fits(wanted: int = wanted, kind: str = kind, what: str = what, configured: Any = configured) -> bool:
            by_rule = dict(plan.reasons).get(f"{kind}_threads", SET_BY_YOU) != SET_BY_YOU
            if _counted(configured()) != wanted and by_rule:
                text = "TensorFlow has already started in this process and keeps its own number of %s; the plan has %d."
                logger.warning(text, what, wanted)
            return _counted(configured()) == wanted or by_rule

        before_start(functools.partial(configure, wanted), fits, f"{wanted} {what}")


def _counted(configured: int) -> int:
    """The number of threads that TensorFlow takes for a number in its configuration, where 0 stands for all cores."""
    return configured or len(os.sched_getaffinity(0))
