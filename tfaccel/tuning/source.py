"""References to the workload and the space of a search, for worker processes to load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from tfaccel.errors import SearchError
from tfaccel.planning.load_workload import as_workload, check_function
from tfaccel.planning.reference import Origin, Reference
from tfaccel.planning.workload import Workload
from tfaccel.records import Record

# Arguments of Keras Tuner's `Tuner` that are objects, not JSON values.
TRAINING = ("callbacks", "optimizer", "loss", "metrics")


@dataclass(frozen=True, kw_only=True)
class SearchSource(Record):
    """The workload and the space of a search.

    Args:
        workload: a recipe, a function that returns a `Workload`, or a `Workload`.
        space: `build(hp)` (a compiled model), a `HyperModel`, or `space(hp)` (arguments of the workload's function);
            "none" for the default space of the workload's function.
        origin: where the workers load these from.
        tuner: a subclass of `keras_tuner.Tuner` whose `run_trial` runs the trials; "none" otherwise.
        training: a dictionary of `TRAINING` arguments; "none" without any.
    """

    workload: Reference
    space: Reference
    origin: Origin
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
            raise _nothing_to_search(workload)
        origin, by_value = Origin.of((workload, space, tuner, *_parts(training)))
        how: dict[str, Any] = {"by_value": by_value, "error_type": SearchError}
        return cls(
            workload=Reference.of(workload, "workload", plain_name="recipe", **how),
            space=Reference.of(space, "space", **how),
            origin=origin,
            tuner=Reference.of(tuner, "tuner", **how),
            training=Reference.by_pickle(dict(training), "training", **how) if training else Reference(kind="none"),
        )

    def prepare(self) -> None:
        """Prepares a worker process to load the source."""
        self.origin.prepare()

    def make_workload(self, options: Mapping[str, Any]) -> Workload:
        """Creates the workload with these arguments; `global_batch_size` overrides its recommendation.

        Raises:
            WorkloadError: if it does not exist, does not accept these arguments, or is not a workload.
        """
        if self.workload.kind == "none":
            return Workload("no_data", object, dict, _no_data, global_batch_size=1)
        arguments = dict(options)
        batch_size = arguments.pop("global_batch_size", None)
        given = self.workload.load(SearchError)
        if not isinstance(given, Workload):
            check_function(self.workload.name, given)
        is_named = self.workload.kind in ("recipe", "import")
        made = as_workload(self.workload.import_path() if is_named else given, **arguments)
        return made if batch_size is None else replace(made, global_batch_size=batch_size)

    def workload_function(self) -> Callable[..., Any]:
        """The function that creates the workload.

        Raises:
            SearchError: for a `Workload`, which no arguments change.
        """
        function: Callable[..., Any] = self.workload.load(SearchError)
        if isinstance(function, Workload):
            raise _nothing_to_search(function)
        return function


def _nothing_to_search(workload: Workload) -> SearchError:
    return SearchError(
        f"The Workload {workload.name!r} has no arguments to search. Pass a space, build(hp), that returns a compiled "
        "model; or, instead of the Workload, the function that creates it from arguments."
    )


def _no_data(*args: Any, **kwargs: Any) -> Any:
    raise SearchError("This search has no workload, so it has no data.")


def _parts(training: Mapping[str, Any] | None) -> list[Any]:
    """The objects in the training arguments, as a flat list."""
    values = [list(v) if isinstance(v, list | tuple) else [v] for v in (training or {}).values()]
    return [thing for value in values for thing in value]
