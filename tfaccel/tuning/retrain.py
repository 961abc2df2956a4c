"""Retrains the best trial of a search to keep its model."""

from __future__ import annotations

import json
import shutil
from typing import Any

import keras_tuner

from tfaccel.errors import TfaccelError
from tfaccel.files import finite, write_json
from tfaccel.training.train import train
from tfaccel.tuning.trial_run import TrialRunner

FOLDER = "best"


def retrain(runner: TrialRunner, config: dict[str, Any]) -> dict[str, Any]:
    """Trains with the hyperparameters of a trial; writes `best/` in the search's run directory.

    If the space returns arguments of the workload's function, `best` is a run directory as written by `tfaccel.train`;
    if it builds models, `best` holds `model.keras` and `result.json`.

    Args:
        runner: the trial runner of the search.
        config: Keras Tuner's config of the hyperparameters.

    Returns:
        "run_dir" and "final", the metrics.
    """
    folder, written = runner.run_dir / FOLDER, runner.run_dir / f"{FOLDER}.json"
    if not written.exists() or json.loads(written.read_text()) != config:  # another trial was the best before
        shutil.rmtree(folder, ignore_errors=True)
        write_json(written, config)
    hp = keras_tuner.HyperParameters.from_config(config)
    for name in [name for name in hp.values if name.startswith("tuner/")]:
        del hp.values[name]  # Hyperband's: now all epochs are trained, from the start
    space = runner.maker.space
    if not runner.builds_models and space is not None:
        workload = runner.maker.workload(space(hp))
        seed = runner.maker.options.seed
        result = train(
            workload,
            runner.maker.plan(workload),
            run_dir=folder,
            epochs=runner.maker.epochs,
            seed=seed,
            resume="auto",
            verbose=0,
        )
        return {"run_dir": str(folder), "final": {k: v for k, v in finite(result.final).items() if v is not None}}
    folder.mkdir(exist_ok=True)
    row = runner.run(FOLDER, hp, save_to=folder / "model.keras")
    if not row.has_score:
        raise TfaccelError(f"The best trial could not be retrained: {row.cause}")
    write_json(folder / "result.json", row.to_json())
    return {"run_dir": str(folder), "final": row.finite_metrics}
