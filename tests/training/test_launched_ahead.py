"""On a GPU, the host launches the next steps before it knows whether the loss of this one is finite."""

import numpy as np
import pytest

from tfaccel.errors import NonFiniteLossError

pytestmark = pytest.mark.usefixtures("logical_devices")

NUM_ROWS, BATCH_SIZE = 80, 4


def trained(monkeypatch, *, on_gpu, broken_row=None, steps_per_execution=1, num_rows=NUM_ROWS, **options):
    """The error, the history and the number of updates of a model trained as on a GPU or as on a CPU."""
    import keras

    from tfaccel.training.fit import fit
    from tfaccel.training.steps.replicas import Replicas

    monkeypatch.setattr(Replicas, "are_gpus", on_gpu)
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse", steps_per_execution=steps_per_execution)
    x = np.random.default_rng(0).normal(size=(num_rows, 3)).astype("float32")
    y = x[:, :1] - x[:, 1:2]
    if broken_row is not None:
        x[broken_row] = np.nan
    error, history = "", {}
    try:
        history = fit(
            model, x, y, batch_size=BATCH_SIZE, shuffle=False, verbose=0, on_nonfinite="stop", **options
        ).history
    except NonFiniteLossError as caught:
        error = str(caught)
    return error, history, int(model.optimizer.iterations.numpy()), model.get_weights()


@pytest.mark.parametrize("broken_row", [0, 14, 15, 16, NUM_ROWS - 1])
def test_the_step_is_named_and_a_few_more_have_run(monkeypatch, broken_row):
    from tfaccel.training.steps.step_graphs import STEPS_PER_FLAG

    step = broken_row // BATCH_SIZE + 1
    told = -(-step // STEPS_PER_FLAG) * STEPS_PER_FLAG + STEPS_PER_FLAG
    for on_gpu in (False, True):
        error, _, num_updates, _ = trained(monkeypatch, on_gpu=on_gpu, broken_row=broken_row, steps_per_execution=20)
        assert f"at step {step} of epoch 1" in error
        assert num_updates == min(told if on_gpu else step, NUM_ROWS // BATCH_SIZE)


def test_what_decides_whether_the_loop_goes_on_is_on_the_host(monkeypatch):
    """A copy from the GPU would wait for all steps that were launched."""
    from tfaccel.training.steps.step_graphs import StepGraphs

    graphs, own = [], StepGraphs.__init__
    monkeypatch.setattr(
        StepGraphs, "__init__", lambda made, *given, **more: graphs.append(made) or own(made, *given, **more)
    )
    trained(monkeypatch, on_gpu=True)
    [graph] = [graph for made in graphs for graph in made._graphs.values()]
    [loop] = [operation for operation in graph.get_operations() if operation.type == "While"]
    condition = graph.as_graph_def().library.function
    nodes = next(f for f in condition if f.signature.name == loop.get_attr("cond").name).node_def
    decisive = [node for node in nodes if node.op in ("LogicalAnd", "Less")]
    assert len(decisive) >= 2
    assert all(node.device.endswith("CPU:0") for node in decisive)
    flags = [tensor.op for tensor in loop.inputs if tensor.dtype == "bool"]
    assert len(flags) == 2
    assert all(operation.device.endswith("CPU:0") for operation in flags)


@pytest.mark.parametrize("rows", [NUM_ROWS, NUM_ROWS - 1])
def test_batches_of_small_arrays_are_gathered_on_the_device(monkeypatch, rows):
    """A copy from the host would wait for all steps that were launched. CPU:1 stands for the GPU."""
    import tensorflow as tf

    from tfaccel.training.steps.replicas import Replicas
    from tfaccel.training.steps.step_graphs import StepGraphs

    expected = trained(monkeypatch, on_gpu=True, epochs=2, num_rows=rows)
    graphs, own = [], StepGraphs.__init__
    monkeypatch.setattr(
        StepGraphs, "__init__", lambda made, *given, **more: graphs.append(made) or own(made, *given, **more)
    )
    monkeypatch.setattr(Replicas, "device_of_arrays", lambda *given: "/CPU:1")
    found = trained(monkeypatch, on_gpu=True, epochs=2, num_rows=rows)
    assert found[:3] == expected[:3]
    assert all(np.array_equal(one, other) for one, other in zip(found[3], expected[3], strict=True))
    [graph, *_] = [graph for made in graphs for graph in made._graphs.values()]
    [loop] = [operation for operation in graph.get_operations() if operation.type == "While"]
    library = graph.as_graph_def().library.function
    nodes = next(f for f in library if f.signature.name == loop.get_attr("body").name).node_def
    types = {"StridedSlice": ("T", tf.int64), "GatherV2": ("Tparams", tf.float32)}
    on_gpu = [node for node in nodes if node.op in types and node.attr[types[node.op][0]].type == types[node.op][1]]
    assert [node.op for node in on_gpu] == ["StridedSlice", "GatherV2", "GatherV2"]
    assert all(node.device.endswith("CPU:1") for node in on_gpu)
    places = [node for node in nodes if any(one.startswith(f"{node.name}:") for one in on_gpu[0].input[1:4])]
    assert sorted(node.op for node in places) == ["Const", "Pack", "Pack"]
    assert all(place.device.endswith("CPU:0") for place in places)  # where the kernel reads them


def test_which_arrays_are_kept_on_a_gpu(monkeypatch):
    import tensorflow as tf

    from tfaccel.training.steps import replicas

    def place(*arrays, on_gpu=True, memory_bytes=32 * 4096, strategy=None):
        monkeypatch.setattr(replicas.Replicas, "are_gpus", on_gpu)
        monkeypatch.setattr(replicas, "_memory_bytes_of_gpu", lambda: memory_bytes)
        return replicas.Replicas(strategy or tf.distribute.get_strategy()).device_of_arrays(arrays)

    floats, ids = tf.zeros([512, 1]), tf.zeros([512], tf.int32)
    assert place(floats, ids, None) == "/GPU:0"
    assert place(floats, ids, None, on_gpu=False) == "/CPU:0"
    assert place(floats, ids, ids) == place(floats, memory_bytes=0) == "/CPU:0"  # too large, or not known
    assert place(tf.zeros([4], tf.uint8)) == place(tf.constant(["a"])) == "/CPU:0"  # no kernel gathers them there
    assert place(floats, strategy=tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])) == "/CPU:0"
    one = tf.distribute.MirroredStrategy(["CPU:1"])
    assert place(floats, strategy=one).endswith("CPU:1")


def test_a_total_that_begins_anew_in_each_step_names_the_step(monkeypatch):
    import keras

    class Anew(keras.Sequential):
        def train_step(self, data):
            self.reset_metrics()
            return super().train_step(data)

    monkeypatch.setattr(keras, "Sequential", Anew)
    for on_gpu in (False, True):
        error, _, num_updates, _ = trained(monkeypatch, on_gpu=on_gpu, broken_row=9, steps_per_execution=20)
        assert "at step 3 of epoch 1" in error
        assert num_updates == (8 if on_gpu else 3)


def test_finite_losses_are_the_same(monkeypatch):
    found = [trained(monkeypatch, on_gpu=on_gpu, epochs=3) for on_gpu in (False, True)]
    assert found[0][:3] == found[1][:3]
    assert found[0][2] == 3 * NUM_ROWS // BATCH_SIZE
    assert all(np.array_equal(one, other) for one, other in zip(found[0][3], found[1][3], strict=True))
