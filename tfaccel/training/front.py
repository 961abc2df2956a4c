"""What `fit`, `evaluate` and `predict` share: who runs them, and their data as a source of global batches.

A class overrides these methods to prepare its data, as KerasHub tasks do, and then calls `super().fit(...)`; a library
patches `keras.Model.fit` to add a callback, and then calls what it has replaced. Either way, the call of Keras's method
becomes one of the engine's. A part of Keras's loop that a model replaces (`make_train_function`) runs in that loop.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import logging
import secrets
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf

from tfaccel.argument_types import checks_types
from tfaccel.data import private_pipelines
from tfaccel.data.epochs import order_of_keras, random_order
from tfaccel.data.given_data import hint_for
from tfaccel.data.grain_batches import grain_dataset, is_grain
from tfaccel.data.sources import ArraySource, DatasetSource, IteratorSource, arrays_on
from tfaccel.errors import DataError, PlanError, WorkloadError, warn_user
from tfaccel.known_names import did_you_mean
from tfaccel.planning.plan import plan_field_names
from tfaccel.training.private import private_api, private_tensorflow
from tfaccel.training.private.private_trainer import ON_BATCH, methods_in_place_of_keras
from tfaccel.training.steps.model_parts import has_own_train_step
from tfaccel.training.steps.overrides import has_own, replaces
from tfaccel.training.steps.replica_state import get_replicas
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.workers.lost_worker import lost_workers_named, refuse_lone_worker

logger = logging.getLogger("tfaccel")

_Body = TypeVar("_Body", bound=Callable[..., Any])

_METHODS = ("fit", "evaluate", "predict")
_FUNCTIONS = {
    "fit": ("make_train_function", "make_test_function"),
    "evaluate": ("make_test_function",),
    "predict": ("make_predict_function",),
}
_OWN = "own"  # the parameter that holds what only a model's own method knows
_on_engine: dict[str, Callable[..., Any]] = {}  # what runs in place of Keras's method, by name
_reached: set[tuple[int, str]] = set()  # the models, by id, and the own methods of theirs that have reached the engine

Source = ArraySource | IteratorSource
_MAX_SEED = 2**31 - 1
_UNKNOWN_TYPE = "Unrecognized data type"  # how Keras's message begins
_AS_FLOATS = '.astype("float32")'
_AS_NUMBERS = {  # by the kind of a dtype
    "M": '.astype("datetime64[s]").astype("int64"), less the first one',
    "m": '.astype("timedelta64[s]").astype("float32")',
    "O": f"{_AS_FLOATS} for numbers, class indices for categories, tf.constant({{}}) for texts",
    "S": "class indices for categories, tf.constant({}) for texts",
    "U": "class indices for categories, tf.constant({}) for texts",
}


def on_engine(
    settle: Callable[[keras.Model, dict[str, Any], bool], None] = lambda *_: None,
) -> Callable[[_Body], _Body]:
    """A decorator: a function stands for the method of `keras.Model` of the same name, and its body is the engine's.

    A model's own method runs if there is one, and its calls of Keras's method reach the body. If the model replaces a
    part of Keras's loop (`make_train_function` or a similar method), that loop runs in place of the body.

    Args:
        settle: called with the model, the user's arguments by name and whether it is Keras's loop that runs, before
            anything else than the body does; may change the arguments.
    """

    def decorate(body: Any) -> Any:
        name, signature = body.__name__, inspect.signature(body)
        checked = checks_types(WorkloadError, checks_numbers=True)(body)
        of_keras, of_tfaccel = (
            [one.name for one in signature.parameters.values() if one.kind is kind and one.name != "model"]
            for kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        )

        def given_by_user(model: Any, args: Any, kwargs: Any) -> dict[str, Any]:
            bound = signature.bind(model, *args, **kwargs).arguments
            given = {**bound, **bound.get(_OWN, {})}
            return {key: value for key, value in given.items() if key not in ("model", _OWN)}

        def run(model: Any, *args: Any, **kwargs: Any) -> Any:
            _refuse_unknown(name, signature, kwargs)
            prepared_model(model, name)
            if not needs_keras_loop(model, name):
                return checked(model, *args, **kwargs)
            given = given_by_user(model, args, kwargs)
            settle(model, given, True)
            return getattr(keras.Model, name)(model, **{key: given[key] for key in of_keras if key in given})

        @functools.wraps(body)
        def method(model: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(model, keras.Model):
                return run(model, *args, **kwargs)
            with lost_workers_named(model.distribute_strategy):
                if not overrides(model, name):
                    return run(model, *args, **kwargs)
                given = given_by_user(model, args, kwargs)
                settle(model, given, False)
                ours = {key: given.pop(key) for key in of_tfaccel if key in given}
                own = {key: one for key, one in given.items() if key not in of_keras or not is_default(key, one)}
                places = dict(zip(of_keras[: len(args)], _names_of_places(getattr(model, name)), strict=False))
                own = {places.get(key, key): one for key, one in own.items()}
                return call_own_method(model, name, own, methods_on_engine(name, ours))

        def is_default(key: str, value: Any) -> bool:
            return value is signature.parameters[key].default

        _on_engine[name] = run
        return checks_types(WorkloadError)(method)

    return decorate


def _names_of_places(method: Callable[..., Any]) -> list[str]:
    """The names of a method's positional arguments: a model's own may have others than Keras's."""
    every = inspect.signature(method).parameters.values()
    return [one.name for one in every if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]


def methods_on_engine(name: str, options: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    """What stands for Keras's methods while a model's own method of a name runs: `fit` evaluates, and so on.

    Args:
        name: "fit", "evaluate" or "predict".
        options: arguments of tfaccel's own, for this one; `check_rows` is passed to the others too.
    """
    every = {key: value for key, value in options.items() if key == "check_rows"}
    names = _METHODS[_METHODS.index(name) :]
    return {one: functools.partial(_on_engine[one], **(options if one == name else every)) for one in names}


def _refuse_unknown(name: str, signature: inspect.Signature, given: dict[str, Any]) -> None:
    """Raises TypeError for an argument that neither Keras nor tfaccel knows.

    Takes out of `given` what an `evaluate` of the model's own has received from `fit`, and passes on.
    """
    given.pop(private_api.CACHED_EVALUATION, None)
    known = [one for one in signature.parameters if one != _OWN]
    odd = next((one for one in given if one not in known), None)
    if odd is None:
        return
    hint = did_you_mean(odd, [one for one in known if one != "model"])
    if odd in plan_field_names():
        hint = f" Pass a plan (plan=...), or train with tfaccel.train(build_model, x, y, {odd}=..., run_dir=...)."
    raise TypeError(f"tfaccel.{name} has no argument {odd!r}.{hint}")


def overrides(model: keras.Model, name: str) -> bool:
    """Whether a model has another method than `keras.Model` defines."""
    return replaces(model, keras.Model, name)


def call_own_method(
    model: keras.Model, name: str, arguments: dict[str, Any], engine_methods: dict[str, Callable[..., Any]]
) -> Any:
    """Calls a model's own method, with its calls of Keras's methods redirected to the engine.

    If the own method is what calls tfaccel, as in `def fit(self, ...): return tfaccel.fit(self, ...)`, the engine runs.

    Args:
        model: a model that `overrides` the method.
        engine_methods: replacements for the methods of `keras.Model`, by name; each takes the model first.
    """
    plain = type(model)

    def noted(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: keras.Model, *args: Any, **kwargs: Any) -> Any:
            _reached.add((id(self), name))
            with methods_in_place_of_keras(self, {}):
                return method(self, *args, **kwargs)

        return call

    methods = {one: noted(method) for one, method in engine_methods.items()}
    if _is_running(model, name):
        return methods[name](model, **arguments)
    several = Replicas(model.distribute_strategy).num_replicas > 1
    refused = {one: _refusing(f"{plain.__name__}.{name}", one, f"super().{name}") for one in ON_BATCH if several}
    with methods_in_place_of_keras(model, methods | refused):
        result = getattr(model, name)(**arguments)
    reached = (id(model), name) in _reached
    _reached.discard((id(model), name))
    if several and not reached:
        raise PlanError(
            f"{plain.__name__}.{name} never called super().{name}(...), so its steps ran without the strategy. "
            f"Call super().{name}(...) to run the steps, or build the model outside of any strategy."
        )
    return result


def _is_running(model: keras.Model, name: str) -> bool:
    """Whether a model's own method is among the callers of this thread."""
    methods = [vars(kind)[name] for kind in type(model).__mro__ if name in vars(kind)]
    methods += [vars(model)[name]] if has_own(model, name) else []
    codes = {getattr(one, "__code__", None) for method in methods for one in (method, inspect.unwrap(method))}
    frame = inspect.currentframe()
    while frame is not None:
        module = frame.f_globals.get("__name__", "").partition(".")[0]
        if frame.f_code in codes and module != "keras" and any(one is model for one in frame.f_locals.values()):
            return True
        frame = frame.f_back
    return False


def _refusing(caller: str, method: str, instead: str) -> Callable[..., Any]:
    def refuse(self: keras.Model, *_: Any, **__: Any) -> Any:
        raise PlanError(
            f"{caller} calls {method}, which Keras cannot split over replicas. Received: a model with "
            f"{Replicas(self.distribute_strategy).num_replicas} replicas. Call {instead}(...) to run the steps, or "
            "build the model outside of any strategy."
        )

    return refuse


@contextlib.contextmanager
def callbacks_on_engine(model: keras.Model, replicas: Replicas, *, check_rows: bool) -> Iterator[None]:
    """Within the block, the engine answers what callbacks call of a model, or of others on its replicas.

    Keras would repeat the rows of `predict_on_batch` on each replica, fail where a batch leaves one without rows, and
    weigh the rows of a short batch otherwise.
    """
    if replicas.num_replicas == 1:
        yield
        return

    def predict_on_batch(self: keras.Model, x: Any) -> Any:
        return self.predict(x, batch_size=_num_rows(x), verbose=0)

    def test_on_batch(
        self: keras.Model, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False
    ) -> Any:
        given: dict[str, Any] = {"sample_weight": sample_weight, "return_dict": return_dict}
        return self.evaluate(x, y, batch_size=_num_rows(x), verbose=0, **given)

    importlib.import_module("tfaccel.training.fit")  # `train` alone does not load it
    methods = methods_on_engine("fit", {"check_rows": check_rows}) | {
        "predict_on_batch": predict_on_batch,
        "test_on_batch": test_on_batch,
        "train_on_batch": _refusing("A callback", "train_on_batch", "model.fit"),
    }
    private_tensorflow.convert_to_numbers()
    with methods_in_place_of_keras(model, methods), methods_in_place_of_keras(replicas.strategy, methods):
        yield


def _num_rows(x: Any) -> int:
    return int(keras.tree.flatten(x)[0].shape[0])


def needs_keras_loop(model: keras.Model, name: str) -> bool:
    """Whether Keras's own loop must run, because the class overrides `make_train_function` or a similar method."""
    own = [function for function in _FUNCTIONS[name] if overrides(model, function)]
    if not own:
        return False
    replicas = Replicas(model.distribute_strategy)
    if replicas.num_replicas > 1:
        raise PlanError(
            f"{type(model).__name__} overrides {own[0]}, so its steps cannot be split over replicas. Received: a model "
            f"with {replicas.num_replicas} replicas. Override train_step, test_step or predict_step instead, or build "
            "the model outside of any strategy."
        )
    logger.info("%s overrides %s: Keras's own loop runs its steps.", type(model).__name__, own[0])
    return True


def refuse_own_methods(model: keras.Model, made_by: str) -> None:
    """Raises WorkloadError for a model with methods of its own that `train` never calls.

    A KerasHub task without a preprocessor has nothing to prepare, and is accepted.
    """
    names = (*_METHODS, *_FUNCTIONS["fit"])
    own = [name for name in names if replaces(model, keras.Model, name, counts_patches=False)]
    if own and getattr(model, "preprocessor", model) is not None:
        raise WorkloadError(
            f"{made_by} returns a {type(model).__name__}, which overrides {', '.join(own)}: tfaccel.train and searches "
            "read the workload's own data and never call them. Use tfaccel.fit, which does, or prepare the data in the "
            "workload and return a model without overrides (a KerasHub task with preprocessor=None). Or pass the "
            "KerasHub task itself instead of the function that builds it: train(task, x, y, ...) prepares its data."
        )


def make_source(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    replicas: Replicas,
    batch_size: int | None = None,
    steps: int | None = None,
    **others: Any,
) -> Source:
    """Creates a source of global batches from any data that `Model.fit` accepts.

    Args:
        x, y, sample_weight, batch_size: as in `Model.fit`; the batch size is global.
        steps: `steps_per_epoch` (or `validation_steps`, `steps`).
        others: `shuffle`, `class_weight`, `num_epochs`, the model's `steps_per_execution`, and `order_seed`, for arrays
            that are shuffled without a global seed.
    """
    if x is None or (isinstance(x, list | tuple | dict) and not keras.tree.flatten(x)):
        raise DataError(f"Received no data: x={x}. Pass arrays, a tf.data.Dataset or a keras.utils.PyDataset as x.")
    if batch_size is not None and batch_size < 1:
        raise WorkloadError(f"`batch_size` must be a whole number of at least 1. Received: batch_size={batch_size}.")
    if isinstance(x, tf.distribute.DistributedDataset):
        raise DataError(
            "Received a DistributedDataset. Pass the tf.data.Dataset of global batches that it was made from: tfaccel "
            "splits each batch over the replicas."
        )
    steps = _capped(steps) or None  # Keras treats 0 as None
    shuffle, steps_per_execution = others.get("shuffle", False), others.get("steps_per_execution", 1)
    options: dict[str, Any] = {
        "batch_size": batch_size,
        "steps_per_epoch": steps,
        "shuffle": shuffle,
        "class_weight": others.get("class_weight"),
    }
    try:
        adapter = private_pipelines.data_adapter(x, y, sample_weight, **options)
        arrays = private_pipelines.dense_arrays(adapter)
    except ValueError as error:
        given = {"x": x, "y": y, "sample_weight": sample_weight}
        is_unknown = str(error).startswith(_UNKNOWN_TYPE)
        wrong = _unknown_type(given) if is_unknown else _unknown_dtype(given)
        if not wrong:
            raise
        raise DataError(wrong) from error
    num_epochs = others.get("num_epochs", 1)
    if isinstance(x, tf.data.Dataset) and num_epochs > 1 and steps is None and adapter.num_batches:
        dataset = adapter.get_tf_dataset()
        if private_pipelines.passes_are_alike(dataset):  # one iterator for all epochs: the next starts at once
            return IteratorSource(
                dataset, num_batches=adapter.num_batches, num_epochs=num_epochs, steps_per_execution=steps_per_execution
            )
    if arrays is None:
        dataset = grain_dataset(x, adapter.get_tf_dataset().element_spec) if is_grain(x) else None
        length = {"steps_per_epoch": steps, "steps_per_execution": steps_per_execution}
        return DatasetSource(adapter, **length, dataset=dataset)
    seed = others.get("order_seed")
    order = _order_of_rows(arrays, adapter.batch_size, shuffle, replicas, seed) if shuffle else None
    device = replicas.device_of_arrays(arrays)
    return ArraySource(
        arrays_on(device, arrays),
        global_batch_size=adapter.batch_size,
        order=order,
        steps=steps,
        steps_per_execution=steps_per_execution,
        device=device,
    )


def _unknown_type(given: dict[str, Any]) -> str:
    """The message for data that holds something else than arrays; Keras's names x whichever it is."""
    for name, value in given.items():
        for leaf in keras.tree.flatten(value):
            if leaf is not None and not hasattr(leaf, "shape"):
                is_list = isinstance(value, list | tuple)
                hint = f" For a list of numbers, pass numpy.array({name})." if is_list else hint_for(leaf)
                kinds = "arrays, tensors or DataFrames" + (", a tf.data.Dataset or a PyDataset" if name == "x" else "")
                return f"{_UNKNOWN_TYPE}: `{name}` must be {kinds}. Received: {leaf!r:.100} of {type(leaf)}.{hint}"
    x = given["x"]
    return f"{_UNKNOWN_TYPE}: x={' '.join(repr(x).split()):.200} of {type(x)}.{hint_for(x)}"


def _unknown_dtype(given: dict[str, Any]) -> str:
    """The message for an array or a column of a dtype that Keras does not take; "" if there is none."""
    for name, value in given.items():
        for leaf in keras.tree.flatten(value):
            columns = dict(leaf.dtypes) if hasattr(leaf, "columns") else {None: getattr(leaf, "dtype", None)}
            kinds = {str(dtype) for dtype in columns.values()}
            for column, dtype in columns.items():
                what = f"`{name}`" if column is None else f"Column {column!r} of `{name}`"
                if dtype is not None and not isinstance(dtype, tf.DType) and not _is_known(dtype):
                    advice = _AS_NUMBERS.get(getattr(dtype, "kind", ""), _AS_FLOATS).format(name)
                    return f"{what} has the dtype {dtype}, which Keras does not take. Use {advice}."
            if "bool" in kinds and len(kinds) > 1:
                return (
                    f"`{name}` has columns of booleans beside {', '.join(sorted(kinds - {'bool'}))}. Use {_AS_FLOATS}."
                )
    return ""


def _is_known(dtype: Any) -> bool:
    """Whether Keras takes arrays of this dtype; it takes none of pandas's own."""
    try:
        return isinstance(dtype, np.dtype) and dtype.kind not in "OSU" and bool(tf.as_dtype(dtype))
    except TypeError:
        return False


def checked_callbacks(callbacks: Any) -> Any:
    """The callbacks of `fit`, `evaluate` or `predict`, as they are."""
    for one in keras.tree.flatten(callbacks):
        if one is not None and (isinstance(one, type) or not hasattr(one, "set_model")):
            made = f", such as {one.__name__}()" if isinstance(one, type) else ""
            raise WorkloadError(
                f"`callbacks` must be a list of keras.callbacks.Callback{made}. Received: {one!r:.200}."
            )
    return callbacks


def _order_of_rows(
    arrays: Any, batch_size: int, shuffle: bool | str, replicas: Replicas, order_seed: int | None
) -> Callable[[int], Any]:
    """The row order of `Model.fit` if a global seed is set, else a random one; the same on all workers."""
    num_rows = int(next(array for array in keras.tree.flatten(arrays) if array is not None).shape[0])
    global_seed = private_tensorflow.global_seed()
    seed = replicas.same_on_all_workers(lambda: -1 if global_seed is None else global_seed % _MAX_SEED)
    if seed >= 0:
        return order_of_keras(num_rows, batch_size, shuffle=shuffle, seed=seed)
    seed = new_order_seed(replicas) if order_seed is None else order_seed
    return random_order(num_rows, batch_size, shuffle=shuffle, seed=seed)


def new_order_seed(replicas: Replicas) -> int:
    """A random seed for the order of arrays, the same on all workers."""
    return replicas.same_on_all_workers(lambda: secrets.randbelow(_MAX_SEED))


def prepared_model(model: Any, method: str) -> Replicas:
    """The replicas of a model, once it is checked to be a Keras 3 model that is compiled as `method` requires."""
    if not private_api.has_trainer(model):
        raise TypeError(
            f"tfaccel.{method} expects a Keras 3 model (keras.Model) first. Received: {model!r} of {type(model)}."
        )
    if method != "predict" and not model.compiled:
        raise ValueError(f"The model is not compiled. Call `model.compile(...)` before `tfaccel.{method}(model, ...)`.")
    if method == "fit" and model.optimizer is None and not has_own_train_step(model):
        raise ValueError(
            "The model was compiled with optimizer=None and cannot be trained. Set an optimizer: "
            "`model.compile(optimizer='adam', ...)`."
        )
    replicas = get_replicas(model)
    if method == "fit":
        refuse_lone_worker(replicas)
    return replicas


def _capped(steps: int | None) -> int | None:
    """`steps`, limited to `keras.config.max_steps_per_epoch()` (for smoke tests of a script)."""
    cap = keras.config.max_steps_per_epoch()
    if cap and (not steps or cap < steps):
        warn_user(f"Limiting steps_per_epoch to {cap}")
        return int(cap)
    return steps
