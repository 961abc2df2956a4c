"""Training needs no extra; what does says which, with the line that installs it."""

CODE = """
import sys, tempfile
from pathlib import Path
sys.modules["keras_tuner"] = sys.modules["ai_edge_litert"] = sys.modules["plotly"] = None
import tfaccel
from tfaccel.errors import VersionError
from tfaccel.recipes import tabular_classification
from tfaccel.scripts.main import main
import numpy as np

folder = tempfile.mkdtemp()
tabular_classification.run(run_dir=f"{folder}/run", epochs=1, verbose=0)
Path(folder, "model.tflite").write_bytes(b"0000TFL3")
np.save(f"{folder}/x.npy", np.zeros((1, 30)))
calls = [
    lambda: tfaccel.search("tabular_classification", run_dir=f"{folder}/search", max_trials=1),
    lambda: tfaccel.compress(f"{folder}/run", methods="float16"),
    lambda: tfaccel.export(f"{folder}/run", ["litert"], out=f"{folder}/out"),
    lambda: tfaccel.report(f"{folder}/run", output=f"{folder}/report.html"),
]
for call in calls:
    try:
        call()
    except VersionError as error:
        print("refused:", error)
arguments = [f"--model={folder}/model.tflite", f"--input={folder}/x.npy", f"--output={folder}/o.csv"]
status = main(["tfaccel", "predict", *arguments])
print("left:", status, sorted(path.name for path in Path(folder).iterdir()))
"""


def test_missing_extras_are_named_with_their_line_and_training_does_without(run_python):
    done = run_python(CODE, check=False, fresh=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("refused: ", "left: "))]
    assert lines == [
        "refused: Searching needs `keras-tuner`, which is not installed. Install it: pip install 'tfaccel[tune]'",
        "refused: LiteRT files need `ai-edge-litert`, which is not installed. Install it: pip install "
        "'tfaccel[litert]'",
        "refused: LiteRT files need `ai-edge-litert`, which is not installed. Install it: pip install "
        "'tfaccel[litert]'",
        "refused: A report needs `plotly`, which is not installed. Install it: pip install 'tfaccel[report]'",
        "left: 2 ['model.tflite', 'run', 'x.npy']",
    ], done.stderr
    assert "LiteRT files need `ai-edge-litert`, which is not installed" in done.stderr
    assert "pip install 'tfaccel[litert]'" in done.stderr
