"""A user's model as the function of a workload that builds it, here or in another process; the name of its runs."""

from __future__ import annotations

import contextlib
import functools
import inspect
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

from tfaccel.data.hub_presets import prepares_data
from tfaccel.errors import PlanError, WorkloadError, in_one_line
from tfaccel.keras_file import check_members
from tfaccel.planning.private_models import given_compile_arguments, recurrent_states

T = TypeVar("T")
_signed_by: ContextVar[Callable[[Any], str]] = ContextVar("signed_by")
COMPILE_ARGUMENTS = (
    "optimizer",
    "loss",
    "loss_weights",
    "metrics",
    "weighted_metrics",
    "run_eagerly",
    "auto_scale_loss",
)
OF_THE_PLAN = ("jit_compile", "steps_per_execution")


@contextlib.contextmanager
def signed_by(get_signature: Callable[[Any], str]) -> Iterator[None]:
    """Allows `Deferred` objects to be pickled in the block: their values are signed with `get_signature`."""
    token = _signed_by.set(get_signature)
    try:
        yield
    finally:
        _signed_by.reset(token)


class Deferred(Generic[T]):
    """A value; unpickling this object leaves the value pickled until `get` is called.

    Example:
        >>> with signed_by(repr):
        ...     sent = pickle.dumps(Deferred([1, 2]))
        >>> there = pickle.loads(sent)
        >>> there.signature, there.get()
        ('[1, 2]', [1, 2])
    """

    def __init__(self, value: T) -> None:
        self._value: T | None = value
        self._pickled: bytes | None = None
        self._classes: bytes | None = None
        self._signature = ""

    @property
    def signature(self) -> str:
        """The signature of a value that came from another process; empty for others."""
        return self._signature

    def get(self) -> Any:
        """The value, which is unpickled at the first call."""
        if self._value is None and self._pickled is not None:
            if self._classes is not None:
                _register(self._classes)
            self._value = pickle.loads(self._pickled)
        return self._value

    def sent(self) -> Any:
        """The value that is pickled for another process."""
        return self._value

    def __getstate__(self) -> tuple[bytes, bytes | None, str, dict[str, Any]]:
        public = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        if self._pickled is not None:
            return self._pickled, self._classes, self._signature, public
        import cloudpickle

        pickled = cloudpickle.dumps(self.sent())  # the classes and functions of a script by value
        return pickled, _registered_classes(pickled), _signed_by.get()(self._value), public

    def __setstate__(self, state: tuple[bytes, bytes | None, str, dict[str, Any]]) -> None:
        self._pickled, self._classes, self._signature, public = state
        self._value = None
        vars(self).update(public)


def _registered_classes(pickled: bytes) -> bytes | None:
    """The pickle of the user's classes and functions that a pickle has by the names that Keras knows them by."""
    keras = sys.modules.get("keras")
    if keras is None:
        return None
    import cloudpickle

    registered = keras.saving.get_custom_objects
    found = {name: thing for name, thing in registered().items() if name.encode() in pickled}
    return cloudpickle.dumps((keras.saving.register_keras_serializable, registered, found)) if found else None


def _register(classes: bytes) -> None:
    """Makes classes that another process has pickled known to Keras, by the same names."""
    register, registered, found = pickle.loads(classes)
    for full_name, thing in found.items():
        if full_name not in registered():  # a module that was imported has registered its own
            package, _, name = full_name.rpartition(">")
            register(package, name)(thing)


class DeferredItems(Sequence[T]):
    """A sequence that is loaded when its items are first needed.

    Args:
        load: loads the items.

    Example:
        >>> list(DeferredItems(lambda: [1, 2]))
        [1, 2]
    """

    def __init__(self, load: Callable[[], Sequence[T]]) -> None:
        self._load = load

    @functools.cached_property
    def _items(self) -> Sequence[T]:
        return self._load()

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...

    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)


def is_model(value: Any) -> bool:
    """Whether a value is a Keras model, without importing Keras."""
    return hasattr(value, "fit") and hasattr(value, "compile") and not isinstance(value, type)


class RebuiltModel(Deferred[Any]):
    """The `build_model` of a workload made from a Keras model: recreates the model with its current weights.

    Args:
        model: a compiled model. It is not trained itself.

    Attributes:
        dtype_policy: that of the model.

    Raises:
        WorkloadError: if it is not compiled.
    """

    def __init__(self, model: Any) -> None:
        if not model.compiled:
            raise WorkloadError("The model is not compiled. Call `model.compile(...)` first.")
        super().__init__(model)
        # The layers' config preserves it, whatever the plan says. The model's does not: in another process, the
        # model has the policy that is set there.
        self.dtype_policy = str(model.dtype_policy.name)

    @property
    def compile_args(self) -> dict[str, Any]:
        """The arguments that the model was compiled with; in another process, none."""
        given = given_compile_arguments(self.get())
        return {name: value for name, value in given.items() if name in COMPILE_ARGUMENTS}

    def sent(self) -> Any:
        """The model without what it was compiled with, which the workload sends apart."""
        return self()

    def check_dtype_policy(self, dtype_policy: str) -> None:
        """Raises PlanError for a plan's dtype policy that is not the model's."""
        if dtype_policy != self.dtype_policy:
            raise PlanError(
                f"The model was built with the dtype policy {self.dtype_policy}, which the plan cannot change. "
                f"Received: dtype_policy={dtype_policy!r}. Pass the function that builds the model."
            )

    def check_built(self) -> None:
        """Raises WorkloadError if the model has no weights yet, which it could not receive from a run."""
        model = self.get()
        if not model.built:
            raise WorkloadError(
                f"The model ({type(model).__name__}) is not built: its weights are created when it is first called, so "
                "that it cannot receive the trained ones. Give the function that builds it in place of the model, or "
                "begin a Sequential model with keras.Input."
            )

    def __call__(self) -> Any:
        """The recreated model."""
        return recreated(self.get())

    def take_weights(self, file: Any) -> None:
        """Loads the weights that a run saved in a `.keras` file into the model."""
        trained = self()
        trained.optimizer = None  # of a model whose constructor compiles it; that of the run may be another
        check_members(Path(file))
        trained.load_weights(file)
        self.get().set_weights(trained.get_weights())


def recreated(model: Any) -> Any:
    """A new model with the config, weights, seeds and recurrent states of a Keras model, not compiled.

    Raises:
        WorkloadError: if the model cannot be recreated from its config.
    """
    kind = type(model)
    try:
        made = kind.from_config(model.get_config())
        if prepares_data(model):
            made.preprocessor = model.preprocessor  # whose config has no vocabulary
        if len(made.weights) != len(model.weights):
            raise ValueError("its layers are built when it is called")
    except Exception as error:  # whatever the user's class raises
        raise WorkloadError(
            f"The model ({kind.__name__}) cannot be recreated from its config ({type(error).__name__}: "
            f"{in_one_line(error):.120}). "
            "Give the function that builds it in place of the model."
        ) from error
    for new, old in zip(_state(made), _state(model), strict=True):
        new.assign(old)
    return made


def _state(model: Any) -> list[Any]:
    """The weights, and what is not among them: the seeds of dropout, and the states of recurrent layers."""
    seeds = [one for one in model.variables if one.name == "seed_generator_state"]
    return [*model.weights, *seeds, *recurrent_states(model)]


def checked_build_model(build_model: Any) -> Callable[[], Any]:
    """The function that builds the model: for a compiled model, one that recreates it.

    Raises:
        WorkloadError: for anything that is neither a Keras model nor a function.
    """
    if is_model(build_model):
        return RebuiltModel(build_model)
    if not callable(build_model):
        raise WorkloadError(
            "build_model must be a Keras model, or a function that returns one, compiled or not. "
            f"Received: {build_model!r:.200}."
        )
    return build_model


def get_name(build_model: Any) -> str:
    """A name for runs of a model: that of the file that defines the function, or that calls tfaccel with the model.

    It is the same whether that file runs as a script or is imported, so that a run can be resumed either way.

    Example:
        >>> get_name(get_name)
        'own_model'
    """
    if is_model(build_model):
        return Path(_calling_file() or "own_model").stem
    module = str(getattr(build_model, "__module__", ""))
    if module == "__main__":
        module = Path(getattr(sys.modules["__main__"], "__file__", None) or "own_model").stem
    return module.rpartition(".")[2] or "own_model"


def _calling_file() -> str | None:
    """The file of the code that calls tfaccel; None for a notebook or a prompt."""
    frame = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "tfaccel":
        frame = frame.f_back
    return None if frame is None else frame.f_globals.get("__file__")
