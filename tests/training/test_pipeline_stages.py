"""Pipeline stages: to the last bit what one device gives with as many micro-batches, each stage on its own device."""

import math
import re
from collections import Counter
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from stage_models import BATCH, MODELS, NUM_ROWS, X, Y, compiled, difference, trained

import tfaccel
from tfaccel.costs.private_graphs import function_graph
from tfaccel.errors import NonFiniteLossError, PlanError
from tfaccel.hardware.hardware import Device, Hardware
from tfaccel.planning.placements import stages_rule
from tfaccel.training.fit import plan_of_model
from tfaccel.training.private.private_slots import get_every_slot
from tfaccel.training.steps.engine import EngineOptions, get_engine

pytestmark = pytest.mark.usefixtures("logical_devices")
OPTIMIZERS = keras.optimizers
LAYERS = keras.layers


def same(family, stages, k, **options):
    """Asserts that stages give the weights, optimizer's variables and history of one device; returns the history."""
    _, one, history = trained(family, 1, k, **options)
    _, several, of_stages = trained(family, stages, k, **options)
    assert difference(one, several) == 0.0
    assert of_stages == history
    return history


def test_two_stages_give_what_one_device_gives():
    same("cnn", 2, 1)


def test_a_model_without_an_optimizer_is_evaluated_in_stages():
    model = keras.Sequential([keras.Input((12,)), LAYERS.Dense(16, activation="tanh"), LAYERS.Dense(4)])
    model.compile(optimizer=None, loss="mse", metrics=["mae"])
    x = np.linspace(-1, 1, 12 * NUM_ROWS, dtype="float32").reshape(NUM_ROWS, 12)
    data = {"x": x, "y": x[:, :4], "batch_size": BATCH, "verbose": 0, "return_dict": True}
    expected = model.evaluate(**data)
    engine = get_engine(model, EngineOptions(pipeline_stages=2, stage_devices=("CPU:0", "CPU:1")))
    found = tfaccel.evaluate(model, **data)
    assert found == pytest.approx(expected, rel=1e-6)
    assert get_engine(model) is engine
    assert [variable.value.device[-5:] for variable in model.weights] == ["CPU:0"] * 2 + ["CPU:1"] * 2


@pytest.mark.slow
@pytest.mark.parametrize(("stages", "k"), [(2, 1), (2, 4), (3, 1), (3, 4), (4, 3)])
@pytest.mark.parametrize("family", MODELS)
def test_every_family_in_other_numbers_of_stages(family, stages, k):
    same(family, stages, k)


def regularized():
    layers = [LAYERS.Dense(16, activation="tanh", kernel_regularizer="l2", activity_regularizer="l2") for _ in range(3)]
    constraint = keras.constraints.MaxNorm(0.5)
    return keras.Sequential([keras.Input((12,)), *layers, LAYERS.Dense(4, kernel_constraint=constraint)])


CASES = {
    "weights and a regularizer": {"make": regularized, "arguments": {"sample_weight": np.linspace(0, 2, NUM_ROWS)}},
    "global clipping and weight decay": {
        "optimizer": lambda: OPTIMIZERS.AdamW(0.01, global_clipnorm=0.05, weight_decay=0.1)
    },
    "average of the weights": {"optimizer": lambda: OPTIMIZERS.SGD(0.1, momentum=0.9, use_ema=True)},
    "fused kernels": {"fields": {"fused_kernels": True}},
    "rematerialization": {"fields": {"rematerialization": True}},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_parts_of_training(case):
    same("mlp" if "make" in CASES[case] else "transformer", 2, 4, **CASES[case])


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1024.0, 2.0**31])
def test_loss_scale_over_all_stages(scale):
    """The higher scale overflows at first, and grows again in the middle of an optimizer step."""

    def optimizer():
        inner = OPTIMIZERS.Adam(0.01)
        return OPTIMIZERS.LossScaleOptimizer(inner, initial_scale=scale, dynamic_growth_steps=6)

    same("mlp", 2, 4, optimizer=optimizer, policy="mixed_float16", fields={"dtype_policy": "mixed_float16"})


@pytest.mark.slow
def test_batch_that_is_left_out_within_an_optimizer_step():
    x = X["mlp"].copy()
    x[13] = np.nan
    arguments = {"x": x, "on_nonfinite": "skip", "shuffle": False}
    history = same("mlp", 2, 4, arguments=arguments)
    assert np.isfinite(history["loss"]).all()


@pytest.mark.slow
def test_loss_that_is_not_finite_is_named_at_its_step():
    x = X["mlp"].copy()
    x[13] = np.nan
    for stages in (1, 2):
        with pytest.raises(NonFiniteLossError, match="at step 4 of epoch 1"):
            trained("mlp", stages, 4, arguments={"x": x, "on_nonfinite": "stop", "shuffle": False})


@pytest.mark.slow
def test_batches_of_a_dataset_and_validation():
    dataset = tf.data.Dataset.from_tensor_slices((X["mlp"][:42], Y[:42])).batch(BATCH)  # the last batch is smaller
    arguments = {"x": dataset, "y": None, "batch_size": None, "shuffle": False, "validation_data": (X["mlp"], Y)}
    same("mlp", 2, 4, arguments=arguments)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "k"), [("mlp", 2), ("transformer", 4)])
def test_replicas_of_stages_give_what_plain_replicas_give(family, k):
    _, plain, history = trained(family, 1, k, num_replicas=2)
    model, several, of_stages = trained(family, 2, k, num_replicas=2)
    assert difference(plain, several) <= 1e-7
    assert of_stages["loss"] == pytest.approx(history["loss"], abs=1e-6)
    kernels = [one for one in model.trainable_variables if one.path.endswith("kernel")]
    places = [[part.device[-5:] for part in kernel.value.values] for kernel in kernels]
    assert [places[0], places[-1]] == [["CPU:0", "CPU:2"], ["CPU:1", "CPU:3"]]


@pytest.mark.slow
def test_evaluation_and_predictions():
    one, *_ = trained("cnn", 1, 1)
    several, *_ = trained("cnn", 2, 1)
    assert np.array_equal(*(tfaccel.evaluate(model, X["cnn"], Y, verbose=0) for model in (one, several)))
    assert np.array_equal(*(tfaccel.predict(model, X["cnn"], verbose=0) for model in (one, several)))


@pytest.mark.slow
def test_what_acts_between_micro_batches_is_said(caplog):
    for options in ({"make": regularized}, CASES["average of the weights"]):
        caplog.clear()
        trained("mlp", 2, 4, **options, arguments={"epochs": 1, "steps_per_epoch": 1})
        assert "The stages do not overlap: Keras's optimizers act after each micro-batch because of" in caplog.text
    assert "because of use_ema" in caplog.text


@pytest.mark.slow
def test_run_resumed_on_another_number_of_stages(run_python, tmp_path):
    resumed = "import sys; from stages_resume_program import main; main(sys.argv[1])"
    child = run_python(resumed, str(tmp_path), env={"PYTHONPATH": str(Path(__file__).parent)})
    assert child.stdout.strip().endswith("equal")


# --- Devices -----------------------------------------------------------------------------------------------------


def graphs_in(graph):
    """A graph and those of the functions that it calls."""
    yield graph
    for operation in graph.get_operations():
        for attribute in operation.op_def.attr:
            if attribute.type == "func":
                yield from graphs_in(function_graph(graph, operation.get_attr(attribute.name).name))


def devices_by_type(model, kind="train"):
    """Device -> number of operations, by type of operation, in the graphs of a kind of step."""
    found = {}
    for outer in get_engine(model).graphs(kind):
        for graph in graphs_in(outer):
            for operation in graph.get_operations():
                found.setdefault(operation.type, Counter())[operation.device[-5:]] += 1
    return found


def test_operations_weights_and_slots_are_on_the_stage_s_device():
    model, *_ = trained("mlp", 2, 4)
    by_type = devices_by_type(model)
    # 5 products forward, and 9 backward, since nothing needs the input's gradient: for each of 4 micro-batches side by
    # side, and once more for one by one.
    assert sum(by_type["MatMul"].values()) == 5 * (5 + 5 + 4)
    for kind in ("MatMul", "BiasAdd", "BiasAddGrad", "Erfc", "Sqrt", "AssignSubVariableOp"):
        assert set(by_type[kind]) == {"CPU:0", "CPU:1"}, kind
    assert by_type["SparseSoftmaxCrossEntropyWithLogits"].keys() == {"CPU:1"}
    places = [one.value.device[-5:] for one in model.trainable_variables]
    assert places == sorted(places)
    assert set(places) == {"CPU:0", "CPU:1"}
    for variable, place in zip(model.trainable_variables, places, strict=True):
        slots = get_every_slot(model.optimizer, variable)
        assert len(slots) == 3  # two moments, and the accumulated gradient
        assert {slot.value.device[-5:] for slot in slots} == {place}


def bytes_taken(model):
    """Device -> bytes of the weights, gradients and slots that it holds while it trains."""
    taken = Counter()
    for variable in model.trainable_variables:
        slots = get_every_slot(model.optimizer, variable)
        for one in (variable, variable, *slots):  # a gradient is as large as its weight
            taken[one.value.device] += one.numpy().nbytes
    return taken


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mlp", "transformer"])
def test_model_that_does_not_fit_on_one_device_trains_on_two(family):
    whole, expected, _ = trained(family, 1, 4)
    needed = sum(bytes_taken(whole).values())
    room = math.ceil(0.6 * needed)
    gpus = tuple(Device(kind="GPU", index=index, memory_bytes=math.ceil(room / 0.9)) for index in range(2))
    stages = stages_rule(Hardware(devices=gpus), {}, needed, 1)
    assert stages.value == 2, stages.reason
    model, weights, _ = trained(family, stages.value, 4)
    assert difference(weights, expected) == 0.0
    taken = bytes_taken(model)
    assert len(taken) == 2
    assert sum(taken.values()) == needed
    assert max(taken.values()) <= room


# --- What is refused ---------------------------------------------------------------------------------------------


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = LAYERS.Dense(4)

    def call(self, inputs):
        return self.dense(inputs)


class OwnStep(keras.Model):
    def train_step(self, data):
        return super().train_step(data)


def two_streams():
    x = keras.Input((12,))
    one, other = LAYERS.Dense(8, name="one")(x), LAYERS.Dense(8, name="other")(x)
    for number in range(2):
        one, other = LAYERS.Dense(8, name=f"one_{number}")(one), LAYERS.Dense(8, name=f"other_{number}")(other)
    return keras.Model(x, LAYERS.Add()([LAYERS.Dense(4)(one), LAYERS.Dense(4)(other)]), name="streams")


def shared():
    x, layer = keras.Input((12,)), LAYERS.Dense(12, name="tied")
    return keras.Model(x, LAYERS.Dense(4)(layer(LAYERS.Activation("tanh")(layer(x)))), name="tied_model")


def own_step():
    x = keras.Input((12,))
    return OwnStep(x, LAYERS.Dense(4)(LAYERS.Dense(8)(x)), name="own_step")


def float8():
    model = keras.Sequential([keras.Input((12,)), LAYERS.Dense(8, dtype="mixed_bfloat16"), LAYERS.Dense(4)])
    for layer in model.layers:
        layer.quantize("float8")
    return model


def refused(make, message, stages=2, **compile_arguments):
    model = make()
    arguments = {"optimizer": "sgd", "loss": "mse", **compile_arguments}
    model.compile(**arguments)
    devices = tuple(f"CPU:{index}" for index in range(stages))
    plan = plan_of_model(model, batch_size=BATCH, pipeline_stages=stages, devices=devices)
    with pytest.raises(PlanError, match=message):
        tfaccel.fit(model, X["mlp"], np.zeros((NUM_ROWS, 4)), batch_size=BATCH, verbose=0, plan=plan)


def test_models_that_cannot_be_cut_are_refused():
    refused(Subclassed, "which is a subclassed model, or is called on nested inputs. Build it with the functional API")
    message = "at most 2 stages, .*After layer 'one', 2 tensors cross: those of 'other', 'one'. Change the model there"
    refused(two_streams, message, stages=3)
    refused(shared, "After layer 'tied', layer 'tied' has weights that layers before it use as well", stages=3)
    refused(own_step, "which has a train_step or test_step of its own, which may call parts of the model")
    refused(
        lambda: keras.Sequential([keras.Input((12,)), LAYERS.Dense(4)]),
        "has fewer layers than stages. Received: pipeline_stages=2, 1 layers. Use at most 1 stages",
    )
    refused(float8, "which has variables that take the value of their gradient, as the scales of float8 do")
    refused(
        lambda: MODELS["mlp"](), "which has run_eagerly=True, and operations are placed in graphs", run_eagerly=True
    )


def test_plans_that_contradict_themselves_are_refused():
    model = compiled("mlp", 2, 1)

    def plan(**fields):
        given = {"pipeline_stages": 2, "devices": ("CPU:0", "CPU:1"), **fields}
        return plan_of_model(model, batch_size=BATCH, **given)

    for fields, message in (
        (
            {"jit_compile": True},
            "`jit_compile` is not supported with pipeline stages: XLA compiles the operations of one",
        ),
        ({"embedding_updates": "rows"}, "Use embedding_updates='keras', or pipeline_stages=1."),
        ({"devices": ("CPU:0", "CPU:1", "CPU:2")}, "Each of the 2 stages of each replica needs a device of its own."),
        ({"devices": ("CPU:0",)}, "Name 2 devices for one replica, a multiple of that for several"),
        ({"strategy": "one_device"}, "is for the devices of one process, with strategy='none', or 'mirrored'"),
        ({"pipeline_stages": 0}, "`pipeline_stages` must be a whole number of at least 1"),
    ):
        with pytest.raises(PlanError, match=re.escape(message)):
            plan(**fields)
