import json

from made_up_machine import add_command, add_package, make_machine

from tfaccel.hardware.environment import describe_environment, keras_backend, relevant_variables, uses_legacy_keras
from tfaccel.hardware.hardware import Hardware

SECRETS = {
    "TF_CONFIG": json.dumps(
        {"cluster": {"chief": ["secret-a:1"], "worker": ["secret-b:2"]}, "task": {"type": "worker", "index": 0}}
    ),
    "TF_TOKEN_app_secret_io": "secret",
    "TF_HUB_ACCESS": "secret",
    "TPU_NAME": "grpc://secret:8470",
    "LD_LIBRARY_PATH": "/home/ada/secret",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "WANDB_API_KEY": "secret",
}


def test_a_machine_is_described_by_metadata_alone(tmp_path):
    for name, version in {"tensorflow": "2.21.0", "keras": "3.15.1", "nvidia-cudnn-cu12": "9.10.2.21"}.items():
        site = add_package(tmp_path, name, version)
    path = add_command(tmp_path, "nvidia-smi", 'echo "GPU-aaaa, NVIDIA L4, 23034, 580.65.06, 8.9"')
    machine = make_machine(tmp_path, environ={"PATH": path}, site_folders=(site,))
    data = describe_environment(machine)
    assert data["packages"]["tensorflow"] == "2.21.0"
    assert data["packages"]["keras-tuner"] is None
    assert "jax" not in data["packages"]
    assert data["cuda_packages"] == {"nvidia-cudnn-cu12": "9.10.2.21"}
    assert data["keras_backend"] == {"name": "tensorflow", "source": "default"}
    assert Hardware.from_json(data["hardware"]).gpus[0].model == "NVIDIA L4"
    assert data["problems"] == []
    assert json.loads(json.dumps(data)) == data


def test_no_secret_and_no_host_name_is_told(tmp_path):
    data = describe_environment(make_machine(tmp_path, environ=SECRETS))
    assert "secret" not in json.dumps(data)
    assert data["environment"] == {
        "LD_LIBRARY_PATH": None,
        "TF_CONFIG": "task worker 0; 1 chief, 1 worker",
        "TF_HUB_ACCESS": None,
        "TPU_NAME": None,
    }
    assert data["hardware"]["cluster"]["num_workers"] == 2
    assert data["hardware"]["cluster"]["addresses"] == []


def test_broken_settings_do_not_hide_the_rest(tmp_path):
    data = describe_environment(make_machine(tmp_path, environ={"TF_CONFIG": "secret"}))
    assert data["hardware"]["memory_bytes"] == 16 * 2**30
    assert len(data["problems"]) == 1
    assert "tfaccel doctor" in data["problems"][0]
    assert "secret" not in json.dumps(data)
    lost = describe_environment(make_machine(tmp_path / "lost", files={"/proc/meminfo": ""}))
    assert lost["hardware"] is None
    assert "MemTotal" in lost["problems"][0]


def test_the_home_folder_is_not_told(tmp_path):
    home = tmp_path / "home" / "ada"
    (home / ".keras").mkdir(parents=True)
    (home / ".keras" / "keras.json").write_text('{"backend": "jax"}')
    machine = make_machine(tmp_path, environ={"XLA_FLAGS": f"--xla_dump_to={home}/dump"}, home=home)
    data = describe_environment(machine)
    assert data["keras_backend"] == {"name": "jax", "source": "~/.keras/keras.json"}
    assert data["environment"] == {"XLA_FLAGS": "--xla_dump_to=~/dump"}


def test_settings_that_are_switches_are_shown():
    shown = {"OMP_NUM_THREADS": "4", "TF_USE_LEGACY_KERAS": "1", "CUDA_VISIBLE_DEVICES": "", "SLURM_PROCID": "3"}
    assert relevant_variables({**shown, "HOME": "/home/ada", "SLURM_JOB_NODELIST": "node1"}) == shown


def test_the_environment_counts_before_keras_json(tmp_path):
    (tmp_path / "keras.json").write_text('{"backend": "torch"}')
    home = {"KERAS_HOME": str(tmp_path)}
    assert keras_backend(make_machine(tmp_path, environ=home)) == ("torch", str(tmp_path / "keras.json"))
    assert keras_backend(make_machine(tmp_path, environ={**home, "KERAS_BACKEND": "jax"})) == ("jax", "KERAS_BACKEND")
    for broken in ("{", "[]", "{}", '{"backend": 3}'):
        (tmp_path / "keras.json").write_text(broken)
        assert keras_backend(make_machine(tmp_path, environ=home)) == ("tensorflow", "default")


def test_legacy_keras_as_tensorflow_reads_it(tmp_path):
    for value, expected in {"1": True, "True": True, "0": False, "": False}.items():
        assert uses_legacy_keras(make_machine(tmp_path, environ={"TF_USE_LEGACY_KERAS": value})) is expected
