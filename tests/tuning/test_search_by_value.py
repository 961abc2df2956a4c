"""A search of what has no import path: a `Workload` of arrays, and functions that a prompt or a notebook defines."""

import json

import pytest

PROGRAM = """
import json, sys
import keras, numpy as np, tfaccel

x = np.linspace(0.0, 1.0, 64)[:, None]
units = [2, 4]


def build(hp):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(hp.Choice("units", units)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    return model


def build_model():
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])


work = tfaccel.Workload.of(build_model, x, 2 * x, optimizer="sgd", loss="mse", validation_split=0.25, epochs=1)
result = tfaccel.search(work, build, run_dir=sys.argv[1], algorithm="grid", plan_fields={"dtype_policy": "float32"})
print(json.dumps([[row.status, row.hyperparameters["units"]] for row in result.rows]))
"""


@pytest.mark.slow
def test_a_prompt_searches_its_own_arrays(run_python, tmp_path):
    child = run_python(PROGRAM, tmp_path / "run", fresh=True)
    assert json.loads(child.stdout.splitlines()[-1]) == [["completed", 2], ["completed", 4]]
