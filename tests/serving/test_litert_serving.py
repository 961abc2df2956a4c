"""LiteRT files are served as SavedModels are: by both protocols, alone, and as versions beside them."""

import io
import json
import os
import shutil

import numpy as np
import pytest
from grpc_models import Client, arrays, refused
from PIL import Image
from running_server import NAME, RAW, ROW, Server, build, wait_for

from tfaccel.errors import ServeError
from tfaccel.extras.serving.model_config import read_model_configs
from tfaccel.extras.serving.servable import Servable

LOGITS = [31.5, 0.0, -31.5]


@pytest.fixture(scope="module")
def file(tmp_path_factory, logical_devices):
    """A LiteRT file of the model that `build` makes a SavedModel of."""
    import keras

    from tfaccel.exporting.litert_files import litert_content
    from tfaccel.exporting.signatures import make_signatures

    pixels = keras.Input((8, 8, 1), name="pixels")
    mean = keras.layers.GlobalAveragePooling2D()(pixels)
    layer = keras.layers.Dense(3, kernel_initializer=keras.initializers.Constant([[1.0, 0.0, -1.0]]), name="logits")
    model = keras.Model(pixels, layer(mean))
    rows = {"pixels": np.array([ROW], np.float32)}
    made = tmp_path_factory.mktemp("files") / "images.tflite"
    made.write_bytes(litert_content(model, make_signatures(model, RAW), name=NAME, raw_input=RAW, rows=rows))
    return made


def png():
    content = io.BytesIO()
    Image.fromarray(np.array(ROW, np.uint8)[..., 0]).save(content, "PNG")
    return content.getvalue()


@pytest.mark.slow
def test_file_is_served_by_both_protocols(file):
    import base64

    import tensorflow as tf

    server = Server(file, "--grpc_port=0")
    try:
        client, path = Client(server.grpc), f"/v1/models/{NAME}"
        rows = [LOGITS] * 5
        assert server.json(f"{path}:predict", {"instances": [ROW] * 5}) == (200, {"predictions": rows})
        assert arrays(client.predict(NAME, pixels=[ROW] * 5)) == {"logits": rows}
        status, answer = server.json(f"{path}:classify", {"examples": [{"pixels": ROW}]})
        assert (status, answer["results"][0][0]) == (200, ["zero", pytest.approx(1.0)])
        image, bad = ({"b64": base64.b64encode(content).decode()} for content in (png(), b"no image"))
        raw = {"signature_name": "serving_raw", "instances": [image, image]}
        status, answer = server.json(f"{path}:predict", raw)
        assert (status, [row["label"] for row in answer["predictions"]]) == (200, ["zero", "zero"])
        assert answer["predictions"][0]["probabilities"][0] == pytest.approx(1.0)
        status, answer = server.json(f"{path}:predict", raw | {"instances": [image, bad, image]})
        assert (status, answer["error"][:14]) == (400, "instances[1]: ")
        found = arrays(client.predict(NAME, "serving_raw", image_bytes=tf.make_tensor_proto([png()])))
        assert found["label"] == [b"zero"]
        assert "shape (8, 8, 1)" in refused(client.predict, NAME, pixels=[[1.0]])[1]
        signatures = server.json(f"{path}/metadata")[1]["metadata"]["signature_def"]["signature_def"]
        pixels = signatures["serving_default"]["inputs"]["pixels"]
        assert [dim["size"] for dim in pixels["tensor_shape"]["dim"]] == ["-1", "8", "8", "1"]
        outputs = signatures["serving_raw"]["outputs"]
        assert {name: entry["dtype"] for name, entry in outputs.items()} == {
            "label": "DT_STRING",
            "probabilities": "DT_FLOAT",
        }
        assert server.json(path)[1]["model_version_status"][0]["version"] == "1"
        shutil.copy(file, file.with_name("other"))
        os.unlink(file)  # what is served stays
        assert server.json(f"{path}:predict", {"instances": [ROW]})[0] == 200
    finally:
        os.replace(file.with_name("other"), file)
        assert server.end() == 0


@pytest.mark.slow
def test_versions_may_be_files_and_saved_models(file, tmp_path):
    for version in (1, 2):
        (tmp_path / NAME / str(version)).mkdir(parents=True)
    build(tmp_path / NAME / "2", bias=5.0)
    shutil.copy(file, tmp_path / NAME / "1" / "model.tflite")
    shutil.copy(file, tmp_path / NAME / "2" / "model.tflite")  # TensorFlow Serving takes the SavedModel too
    config = {"model_config_list": {"config": [{"name": NAME, "base_path": NAME, "model_version_policy": {"all": {}}}]}}
    (tmp_path / "models.json").write_text(json.dumps(config))
    assert [found.folder for found in read_model_configs(tmp_path / "models.json")] == [tmp_path / NAME]
    server = Server(tmp_path / NAME, "--poll_seconds=0.1")
    try:
        for version, bias in ((1, 0.0), (2, 5.0)):
            answer = server.json(f"/v1/models/{NAME}/versions/{version}:predict", {"instances": [ROW]})[1]
            assert answer == {"predictions": [[value + bias for value in LOGITS]]}
        (tmp_path / NAME / "3").mkdir()
        shutil.copy(file, tmp_path / NAME / "3" / "model.tflite")
        wait_for(lambda: server.json(f"/v1/models/{NAME}/versions/3:predict", {"instances": [ROW]})[0] == 200)
        (tmp_path / NAME / "4").mkdir()
        (tmp_path / NAME / "4" / "model.tflite").write_bytes(b"broken")
        wait_for(lambda: "LiteRT cannot load" in str(server.json(f"/v1/models/{NAME}")))
    finally:
        assert server.end() == 0


def test_rows_of_a_file_are_not_filled_up(file):
    sizes = []
    servable = Servable(file, 1, max_batch_size=4, observe=lambda num_rows, seconds: sizes.append(num_rows))
    from tfaccel.extras.serving.request_inputs import read_inputs

    inputs = read_inputs({"instances": [ROW] * 7}, servable.signature("serving_default"))
    work = servable.work("serving_default", inputs, None)
    assert work.key is None
    (outputs,) = work.run([work])
    assert (outputs["logits"].tolist(), sizes) == ([LOGITS] * 7, [4, 3])


def test_file_that_cannot_be_loaded_is_named(tmp_path):
    (tmp_path / "model.tflite").write_bytes(b"\x00\x00\x00\x00TFL3 but nothing more")
    with pytest.raises(ServeError, match=r"LiteRT cannot load .*model\.tflite"):
        Servable(tmp_path / "model.tflite", 1, max_batch_size=4, observe=lambda num_rows, seconds: None)
