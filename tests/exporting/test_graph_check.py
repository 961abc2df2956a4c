"""SavedModels whose graphs use files or processes are refused before anything of them runs."""

import re
import shutil

import numpy as np
import pytest

from tfaccel.errors import ExportError
from tfaccel.exporting.graph_check import SAFE_OPERATIONS
from tfaccel.exporting.load_model import ModelPlace
from tfaccel.exporting.predictor import Predictor
from tfaccel.exporting.saved_model_session import SavedModelSession

MARK = "from tests"


@pytest.fixture(scope="module")
def tf(logical_devices):
    import tensorflow

    return tensorflow


@pytest.fixture
def save(tf, tmp_path):
    """A function that writes a SavedModel of a function of one float vector; gives its folder."""

    def write(function, *, module=None, **others):
        module = module or tf.Module()
        spec = tf.TensorSpec((None,), tf.float32, name="x")
        made = {"serving_default": tf.function(function, autograph=False).get_concrete_function(x=spec)}
        for name, other in others.items():
            module.__setattr__(name, tf.function(other, autograph=False, input_signature=[spec]))
        tf.saved_model.save(module, str(tmp_path / "model"), signatures=made)
        return tmp_path / "model"

    return write


def edited(folder, edit):
    """Changes the graph in the file of a SavedModel."""
    from tensorflow.core.protobuf import saved_model_pb2

    file = folder / "saved_model.pb"
    content = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    edit(content.meta_graphs[0])
    file.write_bytes(content.SerializeToString())
    return folder


def run(folder, **arrays):
    return SavedModelSession(folder).run("serving_default", arrays or {"x": np.ones(2, np.float32)})


def file_operations(tf, path):
    """What hostile graphs do: name -> a function of a float vector."""
    raw, text = tf.raw_ops, tf.constant(str(path))

    def after(operation):
        def function(x):
            with tf.control_dependencies([operation()] if operation() is not None else []):
                return {"y": tf.identity(x)}

        return function

    def inner(value):
        with tf.control_dependencies([tf.io.write_file(text, MARK)]):
            return value + 1.0

    def nested(x):
        x = tf.cond(tf.reduce_sum(x) > 0.0, lambda: inner(x), lambda: x)
        return {"y": tf.map_fn(lambda row: tf.while_loop(lambda v: v < 3.0, lambda v: [inner(v)], [row])[0], x)}

    return {
        "WriteFile": after(lambda: tf.io.write_file(text, MARK)),
        "ReadFile": lambda x: {"y": x, "content": tf.io.read_file(text)},
        "MatchingFiles": lambda x: {"y": x, "names": tf.io.matching_files(str(path.parent / "*"))},
        "SaveV2": after(lambda: raw.SaveV2(prefix=text, tensor_names=["a"], shape_and_slices=[""], tensors=[[1.0]])),
        "MergeV2Checkpoints": after(
            lambda: raw.MergeV2Checkpoints(checkpoint_prefixes=[text], destination_prefix=text)
        ),
        "RestoreV2": lambda x: {
            "y": x + raw.RestoreV2(prefix=text, tensor_names=["a"], shape_and_slices=[""], dtypes=[tf.float32])[0]
        },
        "PrintV2": after(lambda: raw.PrintV2(input="a", output_stream=f"file://{path}")),
        "EagerPyFunc": lambda x: {"y": tf.ensure_shape(tf.py_function(lambda value: value, [x], tf.float32), x.shape)},
        "PyFunc": lambda x: {"y": tf.ensure_shape(tf.numpy_function(lambda value: value, [x], tf.float32), x.shape)},
        "DebugIdentityV2": lambda x: {"y": raw.DebugIdentityV2(input=x, debug_urls=[f"file://{path}"])},
        "TextLineDataset": lambda x: {"y": x, "n": tf.data.TextLineDataset(text).reduce(0, lambda n, line: n + 1)},
        "TFRecordDataset": lambda x: {"y": x, "n": tf.data.TFRecordDataset(text).reduce(0, lambda n, _: n + 1)},
        "ImmutableConst": lambda x: {
            "y": x + raw.ImmutableConst(dtype=tf.float32, shape=[1], memory_region_name=str(path))
        },
        "FixedUnigramCandidateSampler": lambda x: {
            "y": x,
            "n": raw.FixedUnigramCandidateSampler(
                true_classes=[[1]], num_true=1, num_sampled=1, unique=True, range_max=9, vocab_file=str(path)
            )[0],
        },
        "Abort": after(lambda: raw.Abort()),
        "If": nested,
    }


NAMES = (
    "WriteFile",
    "ReadFile",
    "MatchingFiles",
    "SaveV2",
    "MergeV2Checkpoints",
    "RestoreV2",
    "PrintV2",
    "EagerPyFunc",
    "PyFunc",
    "DebugIdentityV2",
    "TextLineDataset",
    "TFRecordDataset",
    "ImmutableConst",
    "FixedUnigramCandidateSampler",
    "Abort",
    "If",
)


@pytest.mark.parametrize("name", NAMES)
def test_operation_is_found_before_the_model_runs(tf, save, tmp_path, name):
    folder = save(file_operations(tf, tmp_path / "secret")[name])
    before = sorted(tmp_path.rglob("*"))
    wanted = "WriteFile" if name == "If" else name
    message = rf"is refused: it holds operations that .*: .*{wanted} \(node '.*--allow_file_operations"
    with pytest.raises(ExportError, match=message):
        SavedModelSession(folder)
    with pytest.raises(ExportError, match=message):
        Predictor(ModelPlace(folder, "model"))
    assert sorted(tmp_path.rglob("*")) == before


def test_operation_is_found_in_functions_that_no_signature_calls(tf, save, tmp_path):
    def backup(x):
        with tf.control_dependencies([tf.io.write_file(str(tmp_path / "made"), MARK)]):
            return x + 0.0

    with pytest.raises(ExportError, match=r"WriteFile \(node 'WriteFile' of function '__inference_backup"):
        run(save(lambda x: {"y": x}, backup=backup))


def test_operations_are_allowed_on_demand(tf, save, tmp_path):
    folder = save(file_operations(tf, tmp_path / "made")["WriteFile"])
    loaded = SavedModelSession(folder, allow_file_operations=True)
    assert loaded.run("serving_default", {"x": np.ones(2, np.float32)})["y"].tolist() == [1.0, 1.0]
    assert (tmp_path / "made").read_text() == MARK
    predictor = Predictor(ModelPlace(folder, "model"), allow_file_operations=True)
    assert predictor.tensors({"x": np.ones(1)})["y"].tolist() == [1.0]


def table_of(tf, file):
    initializer = tf.lookup.TextFileInitializer(
        str(file), tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER
    )
    return tf.lookup.StaticHashTable(initializer, -1)


@pytest.fixture
def with_asset(tf, save, tmp_path):
    """A model with a variable, and a table that is filled from a file of its own."""
    (tmp_path / "vocabulary.txt").write_text("one\ntwo\n")
    module = tf.Module()
    module.table, module.scale = table_of(tf, tmp_path / "vocabulary.txt"), tf.Variable(2.0)

    def call(x):
        number = module.table.lookup(tf.strings.as_string(x, precision=0) + "")
        return {
            "y": x * module.scale,
            "two": tf.fill(tf.shape(x), module.table.lookup(tf.constant("two"))),
            "n": number,
        }

    folder = save(call, module=module)
    shutil.rmtree(tmp_path / "vocabulary.txt", ignore_errors=True)
    (tmp_path / "vocabulary.txt").unlink()
    return folder


def test_own_variables_and_assets_are_read(with_asset):
    outputs = run(with_asset)
    assert (outputs["y"].tolist(), outputs["two"].tolist()) == ([2.0, 2.0], [1, 1])


def test_assets_elsewhere_are_refused(with_asset, tmp_path):
    (tmp_path / "secret").write_text("a\nb\n")
    for name in ("../../secret", str(tmp_path / "secret")):
        folder = edited(with_asset, lambda graph, name=name: setattr(graph.asset_file_def[0], "filename", name))
        with pytest.raises(ExportError, match=r"is refused: its asset '.*secret' lies outside of it"):
            SavedModelSession(folder)
    edited(with_asset, lambda graph: setattr(graph.asset_file_def[0], "filename", "vocabulary.txt"))
    (with_asset / "assets" / "vocabulary.txt").unlink()
    (with_asset / "assets" / "vocabulary.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(ExportError, match="lies outside of it"):
        SavedModelSession(with_asset)


def test_table_of_another_file_is_refused(tf, with_asset, tmp_path):
    def name_another(graph):
        del graph.asset_file_def[:]

    with pytest.raises(ExportError, match=re.escape("InitializeTableFromTextFileV2 (node ")):
        run(edited(with_asset, name_another))


def test_restoring_from_another_file_is_refused(with_asset):
    def restore_another(graph):
        saver = graph.saver_def.filename_tensor_name
        graph.saver_def.filename_tensor_name = ""
        assert saver

    with pytest.raises(ExportError, match=r"RestoreV2 \(node 'RestoreV2' of function '__inference__traced_restore"):
        run(edited(with_asset, restore_another))


def test_saver_that_is_run_is_refused(with_asset):
    def save_instead_of_restoring(graph):
        graph.saver_def.restore_op_name = graph.saver_def.save_tensor_name.partition(":")[0]

    with pytest.raises(ExportError, match=r"SaveV2 \(node 'SaveV2' of function '__inference__traced_save"):
        run(edited(with_asset, save_instead_of_restoring))


def test_function_with_the_name_of_an_operation_hides_nothing(tf, save, tmp_path):
    folder = save(file_operations(tf, tmp_path / "made")["WriteFile"])

    def add_function(graph):
        graph.graph_def.library.function.add().signature.name = "WriteFile"

    with pytest.raises(ExportError, match=r"WriteFile \(node"):
        SavedModelSession(edited(folder, add_function))


def test_broken_files_are_named(tmp_path):
    with pytest.raises(ExportError, match=r"cannot be loaded: saved_model.pb: "):
        SavedModelSession(tmp_path)
    (tmp_path / "saved_model.pb").write_bytes(b"broken")
    with pytest.raises(ExportError, match=r"cannot be loaded: saved_model.pb: "):
        SavedModelSession(tmp_path)
    (tmp_path / "saved_model.pb").write_bytes(b"")
    with pytest.raises(ExportError, match=r"it has no graph with the tag 'serve'"):
        SavedModelSession(tmp_path)


def test_safe_operations_are_operations_that_use_no_files(tf):
    assert {name for name in SAFE_OPERATIONS if not hasattr(tf.raw_ops, name)} == set()
    hints = (
        "Dataset",
        "File",
        "PyFunc",
        "Reader",
        "Restore",
        "Writer",
        "Collective",
        "Remote",
        "Debug",
        "Session",
        "TPU",
    )
    found = {name for name in SAFE_OPERATIONS if any(hint in name for hint in hints)}
    assert found == {"ShardedFilename", "ShardedFilespec"}  # which only put names together


RELOADED = """
import gc, sys
from pathlib import Path
import numpy as np
import tensorflow as tf
from tfaccel.exporting.saved_model_session import SavedModelSession

module, folder = tf.Module(), Path(sys.argv[1])
module.kernel = tf.Variable(np.ones((4000, 4000), np.float32))  # 64 MB
module.half = tf.Variable(tf.ones((4000,), tf.bfloat16))
module.unused = tf.Variable(["a"])
spec = tf.TensorSpec((None, 4000), name="x")
function = tf.function(lambda x: {"y": x @ module.kernel + tf.cast(module.half, tf.float32)}, input_signature=[spec])
tf.saved_model.save(module, folder, signatures=function)
del module.kernel

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

ones, session = np.ones((1, 4000), np.float32), None
for reload in range(4):
    new = SavedModelSession(folder)
    assert new.run("serving_default", {"x": ones})["y"].tolist() == [[4001.0] * 4000]
    session = new
    gc.collect()
    new.run("serving_default", {"x": ones})  # TensorFlow releases what it was given in its next call
    first = first if reload else resident()
print((resident() - first) / 64e6)
"""


def test_the_memory_of_replaced_weights_is_given_back(run_python, tmp_path):
    assert float(run_python(RELOADED, str(tmp_path / "model"), fresh=True).stdout.split()[-1]) < 0.5
