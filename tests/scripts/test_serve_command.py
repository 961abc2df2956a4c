"""`tfaccel serve`: one clear line for every bad input; tests/serving has the server itself."""

import json
import socket
import sys
import zipfile

import pytest

from tfaccel.scripts import serve as serve_command


@pytest.fixture
def serve(tmp_path, monkeypatch, capsys):
    """A function that runs the command in an empty folder: status, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")

    def run(*arguments):
        status = serve_command.run(["tfaccel serve", *arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return run


def test_port_that_is_taken_is_named_before_a_model_is_loaded(serve, tmp_path):
    (tmp_path / "model.keras").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for flag, more in (("port", ()), ("grpc_port", ("--port=0",))):
            status, out, err = serve("--model=model.keras", f"--{flag}={port}", *more)
            wanted = f"Port {port} of 127.0.0.1 is taken. Choose another with --{flag}, or --{flag}=0 for a free one."
            assert (status, out, err) == (2, "", f"tfaccel serve: {wanted}\n")


def test_grpc_without_its_packages_names_the_extra(serve, tmp_path, monkeypatch):
    (tmp_path / "model.keras").write_text("")
    monkeypatch.setitem(sys.modules, "tensorflow_serving", None)
    status, out, err = serve("--model=model.keras", "--port=0", "--grpc_port=0")
    wanted = "The server needs tensorflow_serving. Install: pip install 'tfaccel[serve]'"
    assert (status, out, err) == (2, "", f"tfaccel serve: {wanted}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Give --run_dir=DIR or --model=PATH. Received: neither."),
        (["--model=nowhere"], "There is no file or folder nowhere (--model)."),
        (["--model=evil.keras"], "evil.keras is refused: it holds a Lambda layer"),
        (["--model=empty"], "empty holds no SavedModel, and no folders of versions (1, 2 ...) with one."),
        (["--model=empty", "--host=no.such.host.invalid"], "There is no address 'no.such.host.invalid' to listen on"),
        (["--model=empty", "--max_batch_size=0"], "`max_batch_size` must be a whole number of at least 1."),
        (["--model=empty", "--port=70000"], "`port` must be at most 65535. Received: port=70000."),
        (["--model=empty", "--grpc_port=70000"], "`grpc_port` must be at most 65535. Received: grpc_port=70000."),
        (
            ["--model=empty", "--grpc_port=-1"],
            "`grpc_port` must be a whole number of at least 0. Received: grpc_port=-1.",
        ),
        (["--model=empty", "--port=18500", "--grpc_port=18500"], "`grpc_port` must be another than `port`."),
        (["--model=empty.tflite"], "LiteRT cannot load empty.tflite"),
        (["--model=empty", "--batch_wait_ms=-1"], "`batch_wait_ms` must be a number from 0"),
        (["--model=empty", "--head_seconds=0"], "`head_seconds` must be above 0. Received: head_seconds=0.0."),
        (["--model=empty", "--allowed_origins=pages"], "must be origins such as https://example.org:8080, or *."),
        (["--model_config_file=nowhere"], "Cannot read nowhere (--model_config_file)"),
        (["--model_config_file=nowhere", "--model=empty"], "Give --model_config_file or --model. Received: both."),
    ],
)
def test_bad_input_gets_one_line(serve, tmp_path, logical_devices, arguments, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.tflite").write_bytes(b"")
    layer = {"module": "keras.layers", "class_name": "Lambda", "config": {"name": "evil"}, "registered_name": None}
    with zipfile.ZipFile(tmp_path / "evil.keras", "w") as archive:
        archive.writestr("config.json", json.dumps({"module": "keras", "class_name": "Sequential", "config": layer}))
    port = [] if any(argument.startswith("--port") for argument in arguments) else ["--port=0"]
    status, out, err = serve(*arguments, *port)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err and err.startswith("tfaccel serve: ")


def test_model_without_a_signature_is_named(serve, tmp_path, logical_devices):
    import tensorflow as tf

    module = tf.Module()
    tf.saved_model.save(module, str(tmp_path / "none" / "1"))
    status, _, err = serve("--model=none", "--port=0")
    assert (status, "has no signature that takes and gives plain tensors" in err.splitlines()[-1]) == (2, True)


def test_model_that_writes_files_is_refused(serve, tmp_path, logical_devices):
    import tensorflow as tf

    def write(x):
        with tf.control_dependencies([tf.io.write_file(str(tmp_path / "made"), "hostile")]):
            return {"y": x + 1.0}

    function = tf.function(write, input_signature=[tf.TensorSpec((None,), tf.float32)], autograph=False)
    tf.saved_model.save(tf.Module(), str(tmp_path / "hostile" / "1"), signatures=function)
    status, _, err = serve("--model=hostile", "--port=0")
    last = err.splitlines()[-1]
    assert (status, "WriteFile (node" in last, "--allow_file_operations" in last) == (2, True, True)
    assert not (tmp_path / "made").exists()
