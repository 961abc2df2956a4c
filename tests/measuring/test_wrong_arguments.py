"""Public functions refuse arguments of the wrong type by name."""

import pytest

import tfaccel
from tfaccel.errors import HardwareError, PlanError, ReportError, RunDirError, TfaccelError
from tfaccel.local_path import local_path


@pytest.mark.parametrize("given", [None, 3, [], {}, object()])
def test_what_is_no_path_is_refused(given):
    for read, error in ((tfaccel.load_run, TfaccelError), (tfaccel.write_report, TfaccelError)):
        with pytest.raises(error, match=r"A path must be a text or a pathlib.Path. Received: "):
            read(given)
    for error in (RunDirError, ReportError):
        with pytest.raises(error, match="Received: "):
            local_path(given, error)


@pytest.mark.parametrize("given", [3, object(), "1"])
def test_what_is_no_list_is_refused(given):
    with pytest.raises(PlanError, match=r"batch_sizes must be a list, such as \[1, 2, 4\]. Received: batch_sizes="):
        tfaccel.estimate_memory("image_classification", batch_sizes=given)
    with pytest.raises(PlanError, match=r"replicas must be a list, such as \[1, 2, 4\]. Received: replicas="):
        tfaccel.estimate_scaling("image_classification", replicas=given)


def test_what_is_no_model_and_no_hardware_is_refused():
    with pytest.raises(TypeError, match=r"tfaccel.check expects a Keras 3 model"):
        tfaccel.check(3)
    with pytest.raises(HardwareError, match=r"`hardware` must be a tfaccel.Hardware, or None. Received: 3"):
        tfaccel.compare_devices("image_classification", hardware=3)
