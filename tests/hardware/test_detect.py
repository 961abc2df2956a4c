import json
import subprocess
import sys

from made_up_machine import add_command, add_package, make_machine

from tfaccel.hardware.hardware import Hardware
from tfaccel.hardware.machine import Machine

CHILD = """
import json, sys
from tfaccel import detect_hardware
print(json.dumps([detect_hardware().to_json(), "tensorflow" in sys.modules]))
"""


def test_this_machine_is_detected_without_tensorflow():
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    data, has_imported_tensorflow = json.loads(done.stdout)
    hardware = Hardware.from_json(data)
    assert not has_imported_tensorflow
    assert hardware.num_usable_cores <= len(Machine.here().cpu_affinity)
    assert hardware.memory_bytes > 2**28


def test_commands_that_hang_or_fail_give_nothing(tmp_path):
    folder = add_command(tmp_path, "slow", "exec sleep 60")
    add_command(tmp_path, "broken", "echo text; exit 3")
    add_command(tmp_path, "good", 'echo "$SETTING"')
    machine = make_machine(tmp_path, environ={"PATH": f"{folder}:/usr/bin:/bin", "SETTING": "on"})
    assert machine.get_output("slow", timeout_seconds=0.1) is None
    assert machine.get_output("broken") is None
    assert machine.get_output("missing-command") is None
    assert machine.get_output("good") == "on\n"


def test_packages_are_found_in_the_first_folder_that_has_them(tmp_path):
    first = add_package(tmp_path / "a", "nvidia-cudnn-cu12", "9.10.2.21")
    second = add_package(tmp_path / "b", "nvidia-cudnn-cu12", "8.9.0")
    add_package(tmp_path / "b", "nvidia-nccl-cu12", "2.27.3")
    machine = make_machine(tmp_path, site_folders=(first, second))
    assert machine.package_version("nvidia-cudnn-cu12") == "9.10.2.21"
    assert machine.package_version("jax") is None
    assert machine.package_versions("nvidia-") == {"nvidia-cudnn-cu12": "9.10.2.21", "nvidia-nccl-cu12": "2.27.3"}


def test_files_are_named_as_the_machine_names_them_in_natural_order(tmp_path):
    machine = make_machine(tmp_path, files={"/dev/accel10": "", "/dev/accel2": ""})
    assert machine.glob("/dev/accel[0-9]*") == ["/dev/accel2", "/dev/accel10"]
    assert machine.read("/dev/none") is None
