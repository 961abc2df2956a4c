"""The benchmark of settings: each recipe's current ones and their neighbors, on held-out training data."""

from __future__ import annotations

import contextlib
import io
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from tfaccel.benchmarks.recipe_settings import RECIPE_SETTINGS, Setting
from tfaccel.benchmarks.settings_data import write_validation
from tfaccel.errors import NonFiniteLossError, TfaccelError
from tfaccel.planning.load_workload import RECIPES_PACKAGE
from tfaccel.training.run.result import TrainResult


@dataclass(frozen=True, kw_only=True)
class SettingTrial:
    """One training run with a setting.

    Attributes:
        recipe: its name.
        setting: arguments of its `workload`.
        seed: the seed of the run, which also determines the held-out data.
        score: the score on the held-out data; None if the loss became NaN or infinite.
        metric: the name of the score.
        higher_is_better: whether a higher score is better.
        seconds: the time of the run.
    """

    recipe: str
    setting: Setting
    seed: int
    score: float | None
    metric: str
    higher_is_better: bool
    seconds: float


@dataclass(frozen=True, kw_only=True)
class SettingScores:
    """The scores of one setting of a recipe, compared with the recipe's current setting with the same seeds.

    Attributes:
        recipe, setting, metric: as in `SettingTrial`.
        scores: one for each seed.
        gains: the improvement of each over the current setting; empty for the current setting itself.

    Example:
        >>> SettingScores(recipe="gan", setting={}, metric="loss", scores=(0.7, 0.8), gains=(0.1, 0.1)).is_better
        True
    """

    recipe: str
    setting: Setting
    metric: str
    scores: tuple[float, ...]
    gains: tuple[float, ...] = ()

    @property
    def mean(self) -> float:
        return statistics.mean(self.scores)

    @property
    def spread(self) -> float | None:
        """The standard deviation over the seeds; None if there is only one."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None

    @property
    def mean_gain(self) -> float | None:
        return statistics.mean(self.gains) if self.gains else None

    @property
    def gain_spread(self) -> float | None:
        """The standard deviation of the gains."""
        return statistics.stdev(self.gains) if len(self.gains) > 1 else None

    @property
    def is_better(self) -> bool:
        """Whether its mean gain over the current setting exceeds the spread of the gains."""
        gain, spread = self.mean_gain, self.gain_spread
        return gain is not None and spread is not None and gain > max(spread, 0.0)

    def to_json(self) -> dict[str, Any]:
        """The fields and the values derived from them."""
        derived = ("mean", "spread", "mean_gain", "gain_spread", "is_better")
        return {**asdict(self), **{name: getattr(self, name) for name in derived}}


def run_settings_suite(
    recipes: Sequence[str],
    *,
    num_seeds: int,
    done: Iterable[SettingTrial] = (),
    save: Callable[[list[SettingTrial]], None],
    progress: Callable[[str], None],
) -> list[SettingTrial]:
    """Trains every setting of the recipes with seeds starting at 0, except those that are done.

    Args:
        recipes: their names.
        num_seeds: number of seeds.
        done: trials of earlier calls.
        save: called with all trials after each one.
        progress: called with a line before each one.

    Raises:
        TfaccelError: for a recipe without settings.
    """
    trials = list(done)
    there = {_key(trial.recipe, trial.setting, trial.seed) for trial in trials}
    wanted = [
        (recipe, setting, seed) for recipe in recipes for seed in range(num_seeds) for setting in get_settings(recipe)
    ]
    left = [one for one in wanted if _key(*one) not in there]
    for number, (recipe, setting, seed) in enumerate(left, 1):
        progress(f"{number} of {len(left)}: {recipe}, seed {seed}, {setting_text(setting)}")
        trials.append(run_trial(recipe, setting, seed=seed))
        save(trials)
    return trials


def get_settings(recipe: str) -> list[Setting]:
    """The settings to try, the current ones first.

    Raises:
        TfaccelError: for a recipe without settings.
    """
    if recipe not in RECIPE_SETTINGS:
        raise TfaccelError(f"There are no settings of {recipe!r} to try. Recipes: {', '.join(RECIPE_SETTINGS)}.")
    return RECIPE_SETTINGS[recipe].candidates


def run_trial(recipe: str, setting: Setting, *, seed: int) -> SettingTrial:
    """Trains a recipe with a setting on its training data except the held-out examples, and scores it on those."""
    import keras

    from tfaccel.training.train import train

    module = import_module(f"{RECIPES_PACKAGE}.{recipe}")
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        data = Path(folder, "data")
        data.mkdir()
        arguments, judged_by = write_validation(recipe, data, seed=seed)
        own = {name: value for name, value in setting.items() if name != "epochs"}
        work = module.workload(**arguments, **own)
        scored: tuple[float | None, str, bool] = (None, "", True)
        with contextlib.suppress(NonFiniteLossError):
            result = train(work, run_dir=Path(folder, "run"), epochs=setting["epochs"], seed=seed, verbose=0)
            judge = work if judged_by is arguments else module.workload(**judged_by, **own)
            scored = _score(recipe, result, lambda: module.show_result(judge, result))
    keras.backend.clear_session()
    return SettingTrial(
        recipe=recipe,
        setting=setting,
        seed=seed,
        score=scored[0],
        metric=scored[1],
        higher_is_better=scored[2],
        seconds=time.perf_counter() - started,
    )


def _score(recipe: str, result: TrainResult, show_result: Callable[[], Any]) -> tuple[float, str, bool]:
    """The score, its name, and whether higher is better."""
    of_recipe = RECIPE_SETTINGS[recipe]
    if of_recipe.metric is not None:
        return result.final[of_recipe.metric], of_recipe.metric, of_recipe.higher_is_better
    scores = show_result()
    if scores is None:
        raise TfaccelError(f"The recipe {recipe} has no score without its extra packages; train it to see which.")
    return scores.score, scores.metric, scores.higher_is_better


def setting_scores(trials: Sequence[SettingTrial]) -> list[SettingScores]:
    """The scores of each setting, in the order of `get_settings`; failed runs and removed settings are left out.

    Example:
        >>> trial = SettingTrial(recipe="gan", setting={"epochs": 30}, seed=0, score=0.9, metric="recognised samples",
        ...                      higher_is_better=True, seconds=1.0)
        >>> [scores.mean for scores in setting_scores([trial])]
        [0.9]
    """
    found = {_key(trial.recipe, trial.setting, trial.seed): trial for trial in trials if trial.score is not None}
    seeds = sorted({trial.seed for trial in trials})
    table = []
    for recipe in dict.fromkeys(trial.recipe for trial in trials):
        present, *others = [
            {seed: trial for seed in seeds if (trial := found.get(_key(recipe, setting, seed)))}
            for setting in get_settings(recipe)
        ]
        for own in (present, *others):
            if own:
                first = next(iter(own.values()))
                sign = 1 if first.higher_is_better else -1
                both = [] if own is present else [seed for seed in own if seed in present]
                gains = [sign * (float(own[seed].score or 0) - float(present[seed].score or 0)) for seed in both]
                table.append(
                    SettingScores(
                        recipe=recipe,
                        setting=first.setting,
                        metric=first.metric,
                        gains=tuple(gains),
                        scores=tuple(float(trial.score or 0) for trial in own.values()),
                    )
                )
    return table


def setting_text(setting: Setting) -> str:
    """A setting in one line.

    Example:
        >>> setting_text({"epochs": 5, "weight_decay": None})
        'epochs=5, weight_decay=None'
    """
    return ", ".join(f"{name}={value}" for name, value in setting.items())


def _key(recipe: str, setting: Setting, seed: int) -> tuple[str, str, int]:
    return recipe, setting_text(setting), seed
