"""Methods with training through the whole of `compress`: what the written files hold is what is said of them."""

import json
import re
from pathlib import Path

import pytest

FORMS = """
import json, sys
import numpy as np
from ai_edge_litert.interpreter import Interpreter
from tfaccel import compress, train
from tfaccel.recipes import image_classification

def kernels_of(path):
    interpreter = Interpreter(model_path=path)
    interpreter.allocate_tensors()
    for detail in interpreter.get_tensor_details():
        if len(detail["shape"]) in (2, 4) and np.prod(detail["shape"]) >= 288 and detail["shape"][0] > 1:
            kernel = interpreter.get_tensor(detail["index"])
            fours = kernel.reshape(-1, 4) if kernel.shape[-1] % 4 == 0 else np.zeros((1, 4))
            blocks = kernel.T.reshape(kernel.shape[1] // 4, 4, -1) if kernel.ndim == 2 else np.zeros((1, 4, 1))
            yield {"shape": kernel.shape, "zeros": float(np.mean(kernel == 0)),
                   "values": len(np.unique(kernel)), "dtype": kernel.dtype.name,
                   "values_of_channel": max(len(np.unique(channel)) for channel in kernel),
                   "most_of_four": int((fours != 0).sum(axis=1).max()),
                   "whole_blocks": bool(((blocks == 0).all(axis=1) == (blocks == 0).any(axis=1)).all())}

def accuracy_of(path, work):
    run = Interpreter(model_path=path).get_signature_runner("serving_default")
    right = [run(pixels=x)["logits"].argmax() == y.argmax() for x, y in work.validation_data(1).as_numpy_iterator()]
    return float(np.mean(right))

folder, methods = sys.argv[1:]
work = image_classification.workload()
train(work, run_dir=f"{folder}/run", epochs=2, verbose=0)
found = compress(f"{folder}/run", methods=methods, latency_seconds=0.02, training={"epochs": 1, "num_clusters": 8})
print(json.dumps({one.variant.name: {
    "failure": one.failure, "metrics": dict(one.metrics), "notes": one.variant.notes, "zipped": one.zipped_bytes,
    "float": one.float_operations, "kernels": list(kernels_of(one.variant.path)),
    "accuracy": accuracy_of(one.variant.path, work),
} for one in found.results}))
"""
METHODS = (
    "prune",
    "prune+int8",
    "prune_2_4",
    "prune_2_4+int8",
    "prune_block",
    "cluster",
    "cluster+int8",
    "pqat",
    "cqat",
)


@pytest.fixture(scope="module")
def forms(run_python, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("forms"))
    child = run_python(FORMS, folder, ",".join(METHODS), cwd=Path(folder), timeout_seconds=900)
    return json.loads(child.stdout.splitlines()[-1])


@pytest.mark.slow
def test_written_files_hold_what_is_said(forms):
    assert {name: form["failure"] for name, form in forms.items()} == dict.fromkeys(("float32", *METHODS), "")
    for name, form in forms.items():
        assert len(form["kernels"]) == 7, name
        assert form["metrics"]["accuracy"] == pytest.approx(form["accuracy"], abs=1e-6), name
        in_int8 = "int8" in name or "qat" in name
        assert {kernel["dtype"] for kernel in form["kernels"]} == {"int8" if in_int8 else "float32"}, name
    check_pruned(forms)
    check_clustered(forms)
    for name in ("pqat", "cqat"):
        assert set(forms[name]["float"]) == {"MUL", "ADD"}  # Rescaling, which is said
        assert any(re.fullmatch(r"annotated as not quantized: \w+ \(Rescaling\)", n) for n in forms[name]["notes"])
        assert abs(forms[name]["metrics"]["imitated_accuracy"] - forms[name]["accuracy"]) <= 0.02


def check_pruned(forms):
    for name in ("prune", "prune+int8", "prune_block", "pqat"):
        assert "80.0% of the weights are zero in 7 layers" in forms[name]["notes"]
        assert all(kernel["zeros"] >= 0.79 for kernel in forms[name]["kernels"]), name
        assert forms[name]["zipped"] < 0.4 * forms["float32"]["zipped"], name
    matrices = [kernel for kernel in forms["prune_block"]["kernels"] if len(kernel["shape"]) == 2]
    assert [kernel["whole_blocks"] for kernel in matrices] == [True]
    for name in ("prune_2_4", "prune_2_4+int8"):
        pruned = [kernel for kernel in forms[name]["kernels"] if kernel["shape"][-1] % 4 == 0]
        assert [kernel["most_of_four"] for kernel in pruned] == [2] * 6, name
        assert "50.0% of the weights are zero in 6 layers" in forms[name]["notes"]
        assert any(re.fullmatch(r"not pruned: conv2d\w*", note) for note in forms[name]["notes"])  # it has one input


def check_clustered(forms):
    said = "at most 8 values in each kernel of 7 layers, in a file per channel, where channels"
    for name in ("cluster", "cluster+int8", "cqat"):
        assert any(note.startswith(said) for note in forms[name]["notes"]), name
        assert all(kernel["values_of_channel"] <= 8 for kernel in forms[name]["kernels"]), name
        assert forms[name]["zipped"] < 0.4 * forms["float32"]["zipped"], name
    [logits] = [kernel for kernel in forms["cluster"]["kernels"] if len(kernel["shape"]) == 2]
    assert logits["values"] == 8  # no normalization became part of it
