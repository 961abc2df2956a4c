"""References to the workload and the space of a search, for worker processes to load."""

from __future__ import annotations

import base64
import contextlib
import os
import pickle
import runpy
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from tfaccel.errors import SearchError
from tfaccel.planning.load_workload import as_workload, check_function, import_named, is_import_path
from tfaccel.planning.recipe_list import RECIPES_PACKAGE
from tfaccel.planning.workload import Workload

# Arguments of Keras Tuner's `Tuner` that are objects, not JSON values.
TRAINING = ("callbacks", "optimizer", "loss", "metrics")
# What `multiprocessing` calls the main module of the parent in a child: its `if __name__ == "__main__"` does not run.
_MAIN_IN_CHILD = "__mp_main__"


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A function, class or object that another process can load, by import path or pickle.

    Args:
        kind: "recipe" (a workload by its recipe's name), "import" (package.module:name), "pickle" or "none".
        text: the name, the import path, or the pickle in base64.
        name: its name in messages.
    """

    kind: str
    text: str = ""
    name: str = ""

    def load(self) -> Any:
        """Loads the object; None for "none".

        Raises:
            SearchError: if it cannot be imported, or does not exist.
        """
        if self.kind == "none":
            return None
        if self.kind == "pickle":
            return pickle.loads(base64.b64decode(self.text))
        return import_named(self.import_path(), error_type=SearchError)

    def import_path(self) -> str:
        """Its import path, as package.module:name."""
        return f"{RECIPES_PACKAGE}.{self.text}:workload" if self.kind == "recipe" else self.text


@dataclass(frozen=True, kw_only=True)
class SearchSource:
    """The workload and the space of a search.

    Args:
        workload: a recipe, a function that returns a `Workload`, or a `Workload`.
        space: `build(hp)` (a compiled model), a `HyperModel`, or `space(hp)` (arguments of the workload's function);
            "none" for the default space of the workload's function.
        folder: directory to import modules from, in addition to installed packages.
        main_file: the running script, if it defines something that is pickled.
        tuner: a subclass of `keras_tuner.Tuner` whose `run_trial` runs the trials; "none" otherwise.
        training: a dictionary of `TRAINING` arguments; "none" without any.
    """

    workload: Reference
    space: Reference
    folder: str
    main_file: str | None = None
    tuner: Reference = field(default_factory=lambda: Reference(kind="none"))
    training: Reference = field(default_factory=lambda: Reference(kind="none"))

    @classmethod
    def of(cls, workload: Any, space: Any, *, tuner: Any = None, training: Mapping[str, Any] | None = None) -> Self:
        """Creates the source from the arguments of `search`.

        Raises:
            SearchError: for objects that cannot be sent to another process.
        """
        if tuner is None and isinstance(space, type) and hasattr(space, "run_trial"):
            tuner, space = space, None
        for thing in (space, tuner):
            if hasattr(thing, "run_trial") and not isinstance(thing, type):
                raise SearchError(
                    f"Pass the class {type(thing).__name__}, not an instance: the search creates one in each worker. "
                    "The constructor arguments of Keras Tuner's tuners are options of the search."
                )
        if workload is None and tuner is None and not isinstance(space, str):
            raise SearchError("A search needs a workload, which provides the data. Received: workload=None.")
        if isinstance(workload, Workload) and space is None and tuner is None:
            raise SearchError(
                f"The Workload {workload.name!r} has no arguments to search. Pass a space, build(hp), that returns a "
                "compiled model; or, instead of the Workload, the function that creates it from arguments."
            )
        main = sys.modules["__main__"]
        given = (workload, space, tuner, *_parts(training))
        in_main = any(
            "__main__" in (getattr(thing, "__module__", None), type(thing).__module__)
            for thing in given
            if not isinstance(thing, str)
        )
        main_file = getattr(main, "__file__", None) if in_main else None
        by_value = in_main and main_file is None  # defined in a notebook or at a prompt
        return cls(
            workload=_reference(workload, "workload", plain_name="recipe", by_value=by_value),
            space=_reference(space, "space", by_value=by_value),
            folder=os.getcwd(),
            main_file=None if main_file is None else os.path.abspath(main_file),
            tuner=_reference(tuner, "tuner", by_value=by_value),
            training=_pickled(dict(training), "training", by_value=by_value) if training else _NONE,
        )

    def prepare(self) -> None:
        """Prepares a worker process to load the source."""
        if self.folder not in sys.path:
            sys.path.insert(0, self.folder)
        if self.main_file is not None:
            content = runpy.run_path(self.main_file, run_name=_MAIN_IN_CHILD)
            module = types.ModuleType(_MAIN_IN_CHILD)
            module.__dict__.update(content)
            sys.modules["__main__"] = sys.modules[_MAIN_IN_CHILD] = module

    def make_workload(self, options: Mapping[str, Any]) -> Workload:
        """Creates the workload with these arguments; `global_batch_size` overrides its recommendation.

        Raises:
            WorkloadError: if it does not exist, does not accept these arguments, or is not a workload.
        """
        if self.workload.kind == "none":
            return Workload("no_data", object, dict, _no_data, global_batch_size=1)
        arguments = dict(options)
        batch_size = arguments.pop("global_batch_size", None)
        given = self.workload.load()
        if not isinstance(given, Workload):
            check_function(self.workload.name, given)
        is_named = self.workload.kind in ("recipe", "import")
        made = as_workload(self.workload.import_path() if is_named else given, **arguments)
        return made if batch_size is None else replace(made, global_batch_size=batch_size)

    def workload_function(self) -> Callable[..., Any]:
        """The function that creates the workload."""
        function: Callable[..., Any] = self.workload.load()
        return function

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Restores a source from the output of `to_json`."""
        references = {name: Reference(**data[name]) for name in ("workload", "space", "tuner", "training")}
        return cls(**{**data, **references})


_NONE = Reference(kind="none")


def _no_data(*args: Any, **kwargs: Any) -> Any:
    raise SearchError("This search has no workload, so it has no data.")


def _parts(training: Mapping[str, Any] | None) -> list[Any]:
    """The objects in the training arguments, as a flat list."""
    values = [list(v) if isinstance(v, list | tuple) else [v] for v in (training or {}).values()]
    return [thing for value in values for thing in value]


def _reference(thing: Any, what: str, *, plain_name: str | None = None, by_value: bool) -> Reference:
    if thing is None:
        return _NONE
    if isinstance(thing, str):
        if ":" in thing or plain_name is None:
            if not is_import_path(thing):
                raise SearchError(f"A {what} is written package.module:name. Received: {thing!r}.")
            return Reference(kind="import", text=thing, name=thing)
        return Reference(kind=plain_name, text=thing, name=thing)
    if not callable(thing) and not hasattr(thing, "build") and not isinstance(thing, Workload):
        raise SearchError(f"A {what} must be a function or its import path. Received: {thing!r:.200}.")
    return _pickled(thing, what, by_value=by_value)


def _pickled(thing: Any, what: str, *, by_value: bool) -> Reference:
    """A reference to an object that another process unpickles.

    Args:
        thing: pickled by import path if possible, otherwise by value, such as a lambda or notebook code.
        what: its kind, for messages.
        by_value: whether to pickle definitions of `__main__` by value.
    """
    label = thing.name if isinstance(thing, Workload) else getattr(thing, "__qualname__", type(thing).__qualname__)
    try:
        pickled = _pickle(thing, by_value=by_value)
    except Exception as error:  # whatever the object's own code raises
        remedy = "Pass a function that creates it, defined" if isinstance(thing, Workload) else "Define it"
        raise SearchError(
            f"The {what} {label} cannot be sent to worker processes: {error}. {remedy} at the top level of a module."
        ) from error
    name = label if isinstance(thing, Workload) else f"{getattr(thing, '__module__', '')}:{label}"
    return Reference(kind="pickle", text=base64.b64encode(pickled).decode(), name=name)


def _pickle(thing: Any, *, by_value: bool) -> bytes:
    if not by_value:
        with contextlib.suppress(Exception):
            return pickle.dumps(thing)
    import cloudpickle

    pickled: bytes = cloudpickle.dumps(thing)
    return pickled
