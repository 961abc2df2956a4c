import pytest
from made_up_machine import add_package, make_machine

from tfaccel.hardware.tpu import find_tpus, tpu_environment, tpu_wheel_version


def pci(device: str, *, slot: int, vendor: str = "0x1ae0") -> dict[str, str]:
    folder = f"/sys/bus/pci/devices/0000:00:0{slot}.0"
    return {f"{folder}/vendor": f"{vendor}\n", f"{folder}/device": f"{device}\n"}


def test_v5e_needs_both_the_device_file_and_the_chip_on_the_bus(tmp_path):
    chips = {**pci("0x0063", slot=4), **pci("0x0063", slot=5)}
    files = {**chips, "/dev/vfio/vfio": "", "/dev/vfio/0": "", "/dev/vfio/1": "", "/dev/vfio/2": ""}
    tpus = find_tpus(make_machine(tmp_path, files=files))
    assert [(tpu.name, tpu.model) for tpu in tpus] == [("TPU:0", "TPU v5e"), ("TPU:1", "TPU v5e")]
    assert find_tpus(make_machine(tmp_path / "no_files", files=chips)) == ()


@pytest.mark.parametrize("bus", [{}, pci("0x0063", slot=4, vendor="0x10de"), pci("0x001f", slot=4)])
def test_vfio_of_something_else_is_no_tpu(tmp_path, bus):
    machine = make_machine(tmp_path, files={"/dev/vfio/0": "", **bus})
    assert find_tpus(machine) == ()
    assert tpu_environment(machine) is None


def test_v3_shows_both_cores_of_a_chip(tmp_path):
    files = {"/dev/accel0": "", "/dev/accel1": "", **pci("0x0027", slot=4), **pci("0x0027", slot=5)}
    assert [tpu.index for tpu in find_tpus(make_machine(tmp_path, files=files))] == [0, 1, 2, 3]


def test_accel_files_of_other_makers_lie_in_a_folder(tmp_path):
    assert find_tpus(make_machine(tmp_path, files={"/dev/accel/accel0": ""})) == ()


@pytest.mark.parametrize(
    ("environ", "has_chip", "place"),
    [
        ({}, False, None),
        ({}, True, "local"),
        ({"TPU_NAME": "local"}, False, "local"),
        ({"TPU_NAME": "grpc://10.0.0.2:8470"}, False, "cloud"),
        ({"TPU_ACCELERATOR_TYPE": "v5litepod-4"}, True, "cloud"),
        ({"ISTPUVM": "1", "TPU_ACCELERATOR_TYPE": "v5e-8"}, True, "kaggle"),
        ({"KAGGLE_KERNEL_RUN_TYPE": "Interactive"}, False, None),
        ({"KAGGLE_KERNEL_RUN_TYPE": "Interactive"}, True, "kaggle"),
        ({"COLAB_RELEASE_TAG": "release-colab"}, False, None),
        ({"COLAB_RELEASE_TAG": "release-colab"}, True, "colab"),
        ({"COLAB_TPU_ADDR": "10.0.0.2:8470"}, False, "colab"),
        ({"PJRT_DEVICE": "TPU", "TPU_SKIP_MDS_QUERY": "1"}, False, None),
    ],
)
def test_places_are_told_by_their_marks(tmp_path, environ, has_chip, place):
    machine = make_machine(tmp_path, files={"/dev/accel0": ""} if has_chip else {}, environ=environ)
    assert tpu_environment(machine) == place


def test_the_wheel_is_read_from_its_metadata(tmp_path):
    site = add_package(tmp_path, "tensorflow-tpu", "2.20.0")
    assert tpu_wheel_version(make_machine(tmp_path, site_folders=(site,))) == "2.20.0"
    assert tpu_wheel_version(make_machine(tmp_path)) is None
