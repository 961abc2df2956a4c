"""The benchmark of peers: the plan of `find_fastest` compared with native PyTorch and with Keras on JAX."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tfaccel.benchmarks.choice_suite import noisy_programs
from tfaccel.benchmarks.choice_tasks import FAMILIES
from tfaccel.benchmarks.family_stages import CHOSEN, Racers, chosen_plan, measure_stages, named_failure, search
from tfaccel.benchmarks.figure import Figure
from tfaccel.benchmarks.peer_programs import KERAS_ON_JAX, Peer, how_to_install, torch_peers
from tfaccel.benchmarks.report import Report
from tfaccel.benchmarks.suite_options import SuiteOptions
from tfaccel.benchmarks.timed_race import Timing, ratios
from tfaccel.errors import TfaccelError
from tfaccel.measuring.candidate_child import CandidateFailed, TimedChild
from tfaccel.planning.plan import Plan

PEER_PACKAGES = ("torch", "jax")
PEERS_FIGURES = tuple(f"{family}_{package}" for family in FAMILIES for package in PEER_PACKAGES)
ALL = "all families"
NAMES: Mapping[str, str] = {"torch": "the best of PyTorch", "jax": "the best of Keras on JAX"}
MIN_MEAN: Mapping[str, float] = {"torch": 1.3, "jax": 2.0}  # geometric mean over the families
MIN_EACH: Mapping[str, float | None] = {"torch": 1.0, "jax": None}
_NUM_BEST = 2  # of PyTorch's variants: those that take part in the race
_TRIAL_ROUNDS, _TRIAL_SECONDS = 3, 0.3
_MIN_TRIAL_SPEED = 0.3  # of the faster one's; PyTorch took 52 s a step in bfloat16 on a CPU without such operations


def run_peers_suite(
    names: Iterable[str],
    options: SuiteOptions,
    *,
    required: bool,
    done: Mapping[str, Any],
    save: Callable[[Report], None],
) -> Report:
    """Measures families against peers, except for what is done.

    Args:
        names: of `PEERS_FIGURES`.
        options: `repetitions` is the number of rounds in which the programs take turns.
        required: whether a peer that is not installed is an error; otherwise it is left out, with a note.
        done: the `raw` results of an earlier call, which are kept in the report.
        save: called with the report after each stage.

    Raises:
        TfaccelError: if a required peer is not installed, or a program cannot be measured.
    """
    wanted = list(names)
    missing = {package: hint for package in PEER_PACKAGES if (hint := how_to_install(package))}
    left_out = [name for name in wanted if get_package(name) in missing]
    if left_out and required:
        raise TfaccelError(f"--figures={left_out[0]}: {missing[get_package(left_out[0])]}")
    notes = tuple(f"{one}: not measured; {missing[get_package(one)]}" for one in left_out)
    raw = {name: dict(results) for name, results in done.items()}

    def report() -> Report:
        return Report(
            suite="peers",
            machine=options.machine(),
            measurements={},
            figures=peers_figures(raw),
            raw=raw,
            notes=(*notes, *noisy_programs(raw)),
        )

    for name in wanted:
        if name not in left_out:
            results = raw.setdefault(name, {})
            known = next((one["search"] for other, one in raw.items() if _same_family(name, other, one)), None)
            measure_stages(results, _stages(name, results, known, options), save=lambda: save(report()))
    return report()


def get_package(figure: str) -> str:
    """The package of a figure.

    Example:
        >>> get_package("mlp_torch")
        'torch'
    """
    return figure.rpartition("_")[2]


def _same_family(name: str, other: str, results: Mapping[str, Any]) -> bool:
    return other.rpartition("_")[0] == name.rpartition("_")[0] and "search" in results


def _stages(name: str, results: dict[str, Any], known: Any, options: SuiteOptions) -> dict[str, Callable[[], Any]]:
    family, _, package = name.rpartition("_")

    def raced() -> dict[str, Any]:
        chosen = chosen_plan(results["search"])
        if package == "jax":
            return _race(family, chosen, list(KERAS_ON_JAX), options)
        variants = {peer.name: peer for peer in torch_peers(FAMILIES[family])}
        speeds = {one: trial["speed"] for one, trial in results["trials"].items() if not trial["failure"]}
        if not speeds:
            causes = "; ".join(f"{one}: {trial['failure']}" for one, trial in results["trials"].items())
            raise TfaccelError(f"{name}: no variant of PyTorch could be measured. {causes}")
        best = sorted(speeds, key=lambda one: speeds[one], reverse=True)[:_NUM_BEST]
        return _race(family, chosen, [variants[one] for one in best], options)

    stages: dict[str, Callable[[], Any]] = {"search": lambda: known or search(family, options, fresh=False)}
    if package == "torch":
        stages["trials"] = lambda: _trials(family, chosen_plan(results["search"]), options)
    return {**stages, "race": raced}


def _trials(family: str, chosen: Plan, options: SuiteOptions) -> dict[str, Any]:
    """Variant of PyTorch -> its speed relative to the chosen plan in a few short windows, or why it failed."""
    variants = torch_peers(FAMILIES[family])
    variants = variants if options.scale >= 1 else variants[: max(1, round(len(variants) * options.scale))]
    found: dict[str, Any] = {}
    with Racers(family, options) as racers:
        with named_failure(family, CHOSEN):
            own = racers.built_plan(CHOSEN, chosen)
        for peer in variants:
            try:
                other = _checked(racers.built_peer(peer), own, peer)
            except CandidateFailed as error:
                found[peer.name] = {"speed": 0.0, "failure": str(error)}
                continue
            timings = racers.race(
                {CHOSEN: own, peer.name: other},
                num_rounds=_TRIAL_ROUNDS,
                window_seconds=_TRIAL_SECONDS,
                min_speed=_MIN_TRIAL_SPEED,
            )
            other.end()
            if timings[CHOSEN].failure:
                raise TfaccelError(f"{family}: {CHOSEN} could not be measured: {timings[CHOSEN].failure}")
            failure = timings[peer.name].failure
            speed = 0.0 if failure else statistics.median(ratios(timings[peer.name], timings[CHOSEN]))
            found[peer.name] = {"speed": speed, "failure": failure}
    return found


def _race(family: str, chosen: Plan, peers: list[Peer], options: SuiteOptions) -> dict[str, Any]:
    """The chosen plan and peers in turn."""
    with Racers(family, options) as racers:
        with named_failure(family, CHOSEN):
            programs = {CHOSEN: racers.built_plan(CHOSEN, chosen)}
        for peer in peers:
            with named_failure(family, peer.name):
                programs[peer.name] = _checked(racers.built_peer(peer), programs[CHOSEN], peer)
        timings = racers.race(programs, num_rounds=options.repetitions)
    failed = [f"{name}: {timing.failure}" for name, timing in timings.items() if timing.failure]
    if failed:
        raise TfaccelError(f"{family}: a program could not be measured: {failed[0]}")
    return {"timings": {name: timing.to_json() for name, timing in timings.items()}, "plan": chosen.to_json()}


def _checked(other: TimedChild, own: TimedChild, peer: Peer) -> TimedChild:
    """The other process, if its model has as many parameters as tfaccel's.

    Raises:
        TfaccelError: if not: the programs would not be comparable.
    """
    counts = [child.built["num_parameters"] for child in (own, other)]
    if counts[0] != counts[1]:
        raise TfaccelError(
            f"The models differ: {counts[0]:,} trainable parameters in Keras, {counts[1]:,} in {peer.name}."
        )
    return other


def peers_figures(raw: Mapping[str, Any]) -> tuple[Figure, ...]:
    """The figures of all families that have been measured, and the geometric means over them."""
    figures: list[Figure] = []
    for package in PEER_PACKAGES:
        medians = []
        for name, results in raw.items():
            if get_package(name) != package or "race" not in results:
                continue
            timings = {one: Timing.from_json(timing) for one, timing in results["race"]["timings"].items()}
            own = timings.pop(CHOSEN)
            fastest = max(timings, key=lambda one, timings=timings: timings[one].rate)  # type: ignore[misc]
            figure = Figure(
                name=name,
                quantity=f"throughput chosen plan / {fastest}",
                values=ratios(own, timings[fastest]),
                at_least=MIN_EACH[package],
            )
            figures.append(figure)
            medians.append(figure.median)
        if medians:
            count = f"{len(medians)} of {len(FAMILIES)} families"
            figures.append(
                Figure(
                    name=ALL,
                    quantity=f"chosen plan / {NAMES[package]}, {count}, geometric mean",
                    values=(statistics.geometric_mean(medians),),
                    at_least=MIN_MEAN[package],
                )
            )
    return tuple(figures)
