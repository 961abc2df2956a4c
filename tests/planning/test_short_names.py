"""`devices=2`, `precision="bf16"` and "auto": the words that people know, in every verb."""

import json

import pytest

from tfaccel.errors import PlanError
from tfaccel.hardware.hardware import Device, Hardware
from tfaccel.planning.candidates import default_plan, given_plan, taken_fields
from tfaccel.planning.short_names import full_names
from tfaccel.planning.workload import Workload
from tfaccel.scripts.main import main

GPUS = Hardware(devices=tuple(Device(kind="GPU", index=index, compute_capability=(9, 0)) for index in range(4)))
TPU = Hardware(devices=tuple(Device(kind="TPU", index=index) for index in range(8)))
DIGITS = Workload("digits", object, dict, lambda *args, **kwargs: None, global_batch_size=64)


@pytest.mark.parametrize(
    ("word", "policy"),
    [
        *((word, "float32") for word in ("fp32", "32", 32, "32-true", "float32", "FP32")),
        *((word, "mixed_float16") for word in ("fp16", "16-mixed", "mixed_float16")),
        *((word, "mixed_bfloat16") for word in ("bf16", "bf16-mixed", "mixed_bfloat16", "BF16")),
    ],
)
def test_precisions_as_other_libraries_call_them(word, policy):
    assert full_names({"precision": word}) == {"dtype_policy": policy}
    assert default_plan(Hardware(), DIGITS, precision=word).dtype_policy == policy


@pytest.mark.parametrize(
    ("hardware", "devices", "names", "strategy"),
    [
        (Hardware(), 1, ("CPU:0",), "none"),
        (Hardware(), 2, ("CPU:0", "CPU:1"), "mirrored"),
        (GPUS, 1, ("GPU:0",), "none"),
        (GPUS, 2, ("GPU:0", "GPU:1"), "mirrored"),
        (GPUS, "GPU:1,GPU:3", ("GPU:1", "GPU:3"), "mirrored"),
        (GPUS, ["CPU:0", "CPU:1"], ("CPU:0", "CPU:1"), "mirrored"),
        (TPU, 8, tuple(f"TPU:{index}" for index in range(8)), "tpu"),
    ],
)
def test_devices_by_number_or_by_name(hardware, devices, names, strategy):
    plan = default_plan(hardware, DIGITS, devices=devices)
    assert (plan.devices, plan.strategy) == (names, strategy)


def test_auto_leaves_the_choice_to_the_rules():
    auto = dict.fromkeys(("strategy", "devices", "dtype_policy", "precision"), "auto")
    assert full_names(auto) == full_names(dict.fromkeys(auto)) == {}
    assert default_plan(GPUS, DIGITS, **auto) == default_plan(GPUS, DIGITS)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"precision": "bf61"}, r"must be one of fp32, fp16, bf16, or \"auto\"\. .*'bf61'\. Did you mean 'bf16'\?"),
        ({"precision": "bf16-true"}, r"Received: precision='bf16-true'\. Did you mean 'bf16"),
        ({"precision": 16}, "Received: precision=16"),
        ({"precision": True}, "Received: precision=True"),
        ({"precision": "bf16", "dtype_policy": "float32"}, "short name for `dtype_policy`. Received both"),
        ({"devices": 0}, "must be at least 1 if it is a number. Received: devices=0"),
        ({"devices": 5}, r"There are 4 GPUs .*GPU:3\)\. Received: devices=5\. For parts of the CPU, name them"),
        ({"devices": True}, "must list at least one device"),
        ({"devices": "GPU:9"}, "GPU:9 is not there. Devices here: CPU:0, GPU:0"),
        ({"strategy": "mirored"}, "Did you mean 'mirrored'"),
    ],
)
def test_wrong_ones_are_refused_with_what_is_right(fields, message):
    with pytest.raises(PlanError, match=message):
        default_plan(GPUS, DIGITS, **fields)


def test_a_tpu_is_used_whole():
    with pytest.raises(PlanError, match=r"uses all 8 devices of this TPU\. Received: devices=2"):
        default_plan(TPU, DIGITS, devices=2)


def test_a_mapping_in_place_of_a_plan():
    options = {"width": 8}
    assert given_plan({"precision": "bf16", "jit_compile": True}, options) is None
    assert taken_fields(options) == {"dtype_policy": "mixed_bfloat16", "jit_compile": True}
    assert options == {"width": 8}
    with pytest.raises(PlanError, match=r"no field 'stratgy'\. Did you mean 'strategy'"):
        given_plan({"stratgy": "none"}, {})
    with pytest.raises(PlanError, match="`devices` is in the plan's fields and an argument of its own"):
        given_plan({"devices": 2}, {"devices": 2})


VERBS = """
import json, keras, numpy as np, tfaccel
def build():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
x, of_plan = np.ones((64, 4), "f"), lambda plan: [plan.strategy, list(plan.devices), plan.dtype_policy]
options = dict(optimizer="sgd", loss="mse", epochs=1, verbose=0)
found, two = {}, dict(devices=2, precision="bf16")
found["train"] = of_plan(tfaccel.train(build, x, x[:, :1], run_dir="train", **two, **options).plan)
again = tfaccel.train(build, x, x[:, :1], run_dir="train", resume="auto", **two, **{**options, "epochs": 1})
found["again"] = of_plan(again.plan)
found["mapping"] = of_plan(tfaccel.train(build, x, x[:, :1], run_dir="mapping", plan=two, **options).plan)
measure = tfaccel.options.MeasureOptions(max_candidates=2, use_cache=False)
found["find_fastest"] = of_plan(tfaccel.find_fastest(build, x, x[:, :1], loss="mse", measure=measure, **two).plan)
tfaccel.search("tabular_classification", run_dir="search", max_trials=1, epochs=1, devices=1, precision="fp32")
found["search"] = json.load(open("search/config.json"))["options"]["dtype_policy"]
for name, call in {"precison": {"precison": "bf16"}, "num_gpus": {"num_gpus": 2}}.items():
    try:
        tfaccel.train(build, x, x[:, :1], run_dir="never", **call, **options)
    except tfaccel.TfaccelError as error:
        found[name] = str(error)
print(json.dumps(found))
"""


def test_all_verbs_take_them(run_python, tmp_path):
    found = json.loads(run_python(VERBS, cwd=tmp_path).stdout.splitlines()[-1])
    two = ["mirrored", ["CPU:0", "CPU:1"], "mixed_bfloat16"]
    assert [found[name] for name in ("train", "again", "mapping", "find_fastest")] == [two] * 4
    assert found["search"] == "float32"
    assert "Did you mean 'precision'?" in found["precison"]
    assert "tfaccel.train(..., devices=2)" in found["num_gpus"]


def test_flags_take_them(capsys):
    for flags in (["--devices=2", "--precision=bf16"], ["--devices=CPU:0,CPU:1", "--dtype_policy=mixed_bfloat16"]):
        assert main(["tfaccel", "plan", "--recipe=image_classification", "--json", *flags]) == 0
        plan = json.loads(capsys.readouterr().out)["candidates"][0]
        assert (plan["devices"], plan["dtype_policy"]) == (["CPU:0", "CPU:1"], "mixed_bfloat16")
    for flag, message in {
        "--precision=bf61": "Did you mean 'bf16'?",
        "--devices=0": "must be at least 1 if it is a number",
        "--devices=+-2": "such as 'GPU:0'. Received: '+-2'.",
    }.items():
        assert main(["tfaccel", "plan", "--recipe=image_classification", flag]) == 2
        assert message in capsys.readouterr().err
    assert main(["tfaccel", "plan", "--recipe=image_classification", "--precision=bf16", "--dtype_policy=float32"]) == 2
    assert "--precision is short for --dtype_policy. Received both." in capsys.readouterr().err
