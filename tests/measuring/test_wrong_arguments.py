"""Public functions refuse arguments of the wrong type by name."""

import importlib
import operator

import pytest

import tfaccel
from tfaccel.errors import (
    DataError,
    HardwareError,
    PlanError,
    ReportError,
    RunDirError,
    SearchError,
    TfaccelError,
    WorkloadError,
)
from tfaccel.local_path import local_path
from tfaccel.tuning.search_processes import processes_on


@pytest.mark.parametrize("given", [None, 3, [], {}, object()])
def test_what_is_no_path_is_refused(given):
    for read, error in ((tfaccel.load_run, TfaccelError), (tfaccel.report, TfaccelError)):
        with pytest.raises(error, match=r"A path must be a text or a pathlib.Path. Received: "):
            read(given)
    for error in (RunDirError, ReportError):
        with pytest.raises(error, match="Received: "):
            local_path(given, error)


@pytest.mark.parametrize("given", [3, object(), "1"])
def test_what_is_no_list_is_refused(given):
    with pytest.raises(PlanError, match=r"batch_sizes must be a list, such as \[1, 2, 4\]. Received: batch_sizes="):
        tfaccel.estimates.estimate_memory("image_classification", batch_sizes=given)
    with pytest.raises(PlanError, match=r"replicas must be a list, such as \[1, 2, 4\]. Received: replicas="):
        tfaccel.estimates.estimate_scaling("image_classification", replicas=given)


def test_what_is_no_model_and_no_hardware_is_refused():
    with pytest.raises(TypeError, match=r"tfaccel.check expects a Keras 3 model"):
        tfaccel.check(3)
    with pytest.raises(HardwareError, match=r"`hardware` must be a tfaccel.Hardware, or None. Received: 3"):
        tfaccel.estimates.compare_devices("image_classification", hardware=3)


WORKLOAD = "image_classification"
WRONG = [
    ("find_fastest", (WORKLOAD,), {}, "measure", "a tfaccel.options.MeasureOptions, or None"),
    ("find_fastest", (WORKLOAD,), {}, "hardware", "a tfaccel.Hardware, or None"),
    ("find_fastest", (WORKLOAD,), {}, "progress", "a tfaccel.measuring.report.SearchProgress, or None"),
    ("find_batch_size", (WORKLOAD,), {}, "search", "a tfaccel.options.BatchOptions, or None"),
    ("find_batch_size", (WORKLOAD,), {}, "on_trial", "a function"),
    ("find_learning_rate", (WORKLOAD,), {}, "test", "a tfaccel.options.LearningRateTest, or None"),
    ("find_learning_rate", (WORKLOAD,), {}, "on_step", "a function"),
    ("find_learning_rate", (WORKLOAD,), {}, "plan", "a tfaccel.Plan, such as .*, or None"),
    ("estimates.roofline", (WORKLOAD,), {}, "on_progress", "a function"),
    ("estimates.roofline", (WORKLOAD,), {}, "measure_again", "True or False"),
    ("estimates.estimate_memory", (WORKLOAD,), {}, "hardware", "a tfaccel.Hardware, or None"),
    ("estimates.estimate_scaling", (WORKLOAD,), {}, "interconnect", "a tfaccel.estimates.Interconnect, or None"),
    ("estimates.estimate_scaling", (WORKLOAD,), {}, "assume", "a tfaccel.estimates.ScalingOptions, or None"),
    ("train", (WORKLOAD,), {"run_dir": "nowhere"}, "plan", "a tfaccel.Plan, such as .*, or None"),
    ("train", (WORKLOAD,), {"run_dir": "nowhere"}, "engine_options", "a dict, or None"),
    ("train", (WORKLOAD,), {"run_dir": "nowhere"}, "callbacks", "a list of Keras callbacks"),
    ("train", (WORKLOAD,), {"run_dir": "nowhere"}, "verbose", "one of 0, 1, 2, auto, progress"),
    ("search", (WORKLOAD,), {"run_dir": "nowhere"}, "callbacks", "a list of Keras callbacks"),
    ("search", (WORKLOAD,), {"run_dir": "nowhere"}, "on_row", "a function, or None"),
    ("search", (WORKLOAD,), {"run_dir": "nowhere"}, "plan_fields", "a dict, or None"),
    ("search", (WORKLOAD,), {"run_dir": "nowhere"}, "retrain", "True or False"),
    ("notebook_launch", (), {}, "function", "a function"),
    ("detect_hardware", (), {}, "machine", "a tfaccel.hardware.machine.Machine, or None"),
    ("serve", ([],), {}, "options", "a tfaccel.serving.ServeOptions"),
]


@pytest.mark.parametrize("given", [3, "three", [1]])
@pytest.mark.parametrize(("verb", "arguments", "others", "name", "wanted"), WRONG)
def test_what_is_of_another_type_is_refused_by_name(verb, arguments, others, name, wanted, given):
    with pytest.raises(TfaccelError, match=rf"`{name}` must be {wanted}\. Received: "):
        operator.attrgetter(verb)(tfaccel)(*arguments, **others, **{name: given})


@pytest.mark.parametrize("given", ["60", [1], 0, float("nan"), True])
def test_what_is_no_time_is_refused(given):
    with pytest.raises(PlanError, match=r"`limit_seconds` must be a number above 0. Received: limit_seconds="):
        tfaccel.estimates.roofline(WORKLOAD, limit_seconds=given)
    with pytest.raises(PlanError, match=r"`step_seconds` must be a number above 0. Received: step_seconds="):
        tfaccel.estimates.estimate_scaling(WORKLOAD, step_seconds=given)


MISSPELLED = {
    "spacing": (lambda: tfaccel.options.LearningRateTest(spacing="exponental"), "'exponential'"),
    "algorithm": (lambda: tfaccel.estimates.ScalingOptions(algorithm="hierarchicl"), "'hierarchical'"),
    "compress": (lambda: tfaccel.compress("run", method=["float16"]), "'methods'"),
    "ops": (lambda: importlib.import_module("tfaccel.ops").sum_over_replica, "'sum_over_replicas'"),
}


@pytest.mark.parametrize("name", MISSPELLED)
def test_a_misspelled_name_has_the_nearest_one(name):
    call, nearest = MISSPELLED[name]
    with pytest.raises((TfaccelError, AttributeError), match=f"Did you mean {nearest}"):
        call()


def test_an_engine_that_is_no_text_is_refused():
    with pytest.raises(TfaccelError, match=r"`engine` must be one of local, ray. Received: engine=3\."):
        next(iter(processes_on(3, 1, None).gen))


def test_a_misspelled_argument_of_find_fastest_is_named():
    with pytest.raises(WorkloadError, match=r"find_fastest\(\) has no argument 'mesure'\. Did you mean 'measure'\?"):
        tfaccel.find_fastest(WORKLOAD, mesure=None)
    with pytest.raises(WorkloadError, match=r"There is no option 'epoch'\. Did you mean 'epochs'"):
        tfaccel.find_fastest(WORKLOAD, epoch=1)


def test_a_text_is_no_plan_and_a_dict_no_hardware():
    with pytest.raises(PlanError, match=r"`plan` must be a tfaccel.Plan, such as .*, or a dict, .* 'mirrored'"):
        tfaccel.train("image_classification", run_dir="nowhere", plan="mirrored")
    with pytest.raises(PlanError, match=r"no field 'stratgy'\. Did you mean 'strategy'"):
        tfaccel.train("image_classification", run_dir="nowhere", plan={"stratgy": "none"})
    with pytest.raises(HardwareError, match=r"`hardware` must be a tfaccel.Hardware, or None. Received: \{\}"):
        tfaccel.find_fastest("image_classification", hardware={})


def test_an_argument_that_a_search_does_not_take_has_the_right_one():
    """Its own message, which knows the names of Keras Tuner, comes before Python's."""
    with pytest.raises(SearchError, match=r"A search has no option 'max_epochs'\. Use epochs\."):
        tfaccel.search(WORKLOAD, run_dir="nowhere", max_epochs=3)
    with pytest.raises(SearchError, match=r"A search has no option 'max_trails'\. Did you mean 'max_trials'\?"):
        tfaccel.search(WORKLOAD, run_dir="nowhere", max_trails=3)
    with pytest.raises(SearchError, match=r"A search has no option 'on_rows'\. Did you mean 'on_row'\?"):
        tfaccel.search(WORKLOAD, run_dir="nowhere", on_rows=print)
    with pytest.raises(SearchError, match=r"A search has no option 'trials'\. Did you mean 'max_trials'\?"):
        tfaccel.search(WORKLOAD, trials=3)


@pytest.mark.usefixtures("logical_devices")
def test_a_model_without_data_or_targets_is_told_what_it_needs(tmp_path):
    import keras
    import numpy as np

    x = np.ones((8, 4), "float32")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    for verb in (tfaccel.find_batch_size, tfaccel.find_fastest, tfaccel.estimates.estimate_memory):
        with pytest.raises(WorkloadError, match=r"give x and y after it; or a tfaccel.Workload.*a Sequential alone"):
            verb(model)
    with pytest.raises(SearchError, match=r"A search takes a workload and a space.*Received: 3 arguments by position"):
        tfaccel.search(model, x, x[:, :1], run_dir=tmp_path / "search")
    for verb in (tfaccel.fit, tfaccel.evaluate):
        with pytest.raises(DataError, match=r"needs targets, and the data have none. Pass y, or batches of \(x, y\)"):
            verb(model, x, verbose=0)
    with pytest.raises(DataError, match=r"`validation_split` must be a number between 0 and 1. Received: 1.5"):
        tfaccel.fit(model, x, x[:, :1], validation_split=1.5)
    with pytest.raises(WorkloadError, match=r"`replicas` must be a whole number of at least 1. Received: replicas=0"):
        tfaccel.check(model, x, x[:, :1], replicas=0)
