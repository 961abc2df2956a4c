"""Misspelled arguments, names and flags: the message has what was probably meant."""

import pytest

import tfaccel
from tfaccel.errors import PlanError, TfaccelError, WorkloadError
from tfaccel.planning.candidates import taken_fields

CPU = {"devices": ("CPU:0",), "global_batch_size": 8}


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: tfaccel.Plan(stratgy="none", **CPU), r"Plan\(\) has no argument 'stratgy'. Did you mean 'strategy'\?"),
        (lambda: tfaccel.options.MeasureOptions(max_candidate=3), "Did you mean 'max_candidates'"),
        (lambda: tfaccel.Workload("a", build_modl=object), "Did you mean 'build_model'"),
        (lambda: tfaccel.export("run", "out", format="onnx"), "Did you mean 'formats'"),
        (lambda: tfaccel.report("run", outptu="a.html"), "Did you mean 'output'"),
        (lambda: tfaccel.serving.ServeOptions(prot=8501), "Did you mean 'port'"),
        (lambda: tfaccel.load_run(rundir="run"), "Did you mean 'run_dir'"),
    ],
)
def test_a_misspelled_argument_of_a_function_or_class(call, message):
    with pytest.raises(TypeError, match=message):
        call()


@pytest.mark.parametrize(
    "given, message",
    [
        ({"precision": "bf16"}, r"field of the plan. Pass it to the verb: tfaccel.train\(..., precision=...\)"),
        ({"mixed_precision": "bf16"}, r"field of the plan: tfaccel.train\(..., precision='bf16'\)"),
        ({"stratgy": "none"}, "There is no argument 'stratgy'. Did you mean 'strategy'"),
        ({"strategy": "none"}, r"Pass it to the verb: tfaccel.train\(..., strategy=...\)"),
        ({"epoch": 3}, "Did you mean 'epochs'"),
    ],
)
def test_a_misspelled_argument_beside_a_model(given, message):
    with pytest.raises(WorkloadError, match=message):
        tfaccel.Workload.of(object, [[1.0]], [[1.0]], loss="mse", **given)


@pytest.mark.parametrize(
    "given, message",
    [
        ({"widht": 8}, "There is no option 'widht'. Did you mean 'width'"),
        ({"epoch": 3}, "Did you mean 'epochs'"),
        ({"mixed_precision": True}, "field of the plan"),
    ],
)
def test_a_misspelled_option_of_a_recipe(given, message, tmp_path):
    with pytest.raises(WorkloadError, match=message):
        tfaccel.train("image_classification", run_dir=tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("module, name, meant", [(tfaccel, "trian", "train"), (tfaccel.errors, "PlanErorr", None)])
def test_a_misspelled_name_of_a_module(module, name, meant):
    with pytest.raises(AttributeError, match=f"{name}'" + (f". Did you mean '{meant}'" if meant else "")):
        getattr(module, name)


def test_fields_of_a_plan_are_taken_from_the_options_of_a_call():
    options = {"dtype_policy": "mixed_bfloat16", "devices": ["CPU:0"], "loss": "mse"}
    assert taken_fields(options) == {"dtype_policy": "mixed_bfloat16", "devices": ("CPU:0",)}
    assert options == {"loss": "mse"}
    with pytest.raises(PlanError, match=r"Give a plan, or fields of one\. Received both: plan, strategy"):
        taken_fields({"strategy": "none"}, tfaccel.Plan(strategy="none", **CPU))
    with pytest.raises(TfaccelError, match="Did you mean 'mirrored'"):
        taken_fields({"strategy": "mirored"})
