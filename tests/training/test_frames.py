"""The way from `tfaccel.train` to a model's own `train_step` stays short enough to be followed."""

import json

CODE = """
import json, os, sys, traceback
import keras, numpy as np, tfaccel

FOLDER, found = os.path.dirname(tfaccel.__file__), []

class Traced(keras.Sequential):
    def train_step(self, data):
        frames = [frame for frame in traceback.extract_stack() if frame.filename.startswith(FOLDER)]
        frames = [frame for frame in frames if "fork_server" not in frame.filename]  # in which this runs
        found.append([f"{os.path.relpath(frame.filename, FOLDER)} {frame.name}" for frame in frames])
        return super().train_step(data)

def build_model():
    return Traced([keras.Input((4,)), keras.layers.Dense(1)])

x = np.ones((16, 4), "float32")
options = {"optimizer": "sgd", "loss": "mse", "epochs": 1, "verbose": 0, "strategy": "none"}
tfaccel.train(build_model, x, x[:, :1], run_dir=sys.argv[1], **options)
print(json.dumps(found))
"""
MOST = 15


def test_frames_from_train_to_the_train_step(run_python, tmp_path):
    found = json.loads(run_python(CODE, str(tmp_path / "run")).stdout.splitlines()[-1])
    trained = [frames for frames in found if any("windows.py" in frame for frame in frames)]
    assert trained, found
    assert all(len(frames) <= MOST for frames in trained), trained
