"""Each thing that TensorFlow Serving's documentation of its REST API says, asked of tfaccel's server."""

import asyncio
import json
import time

import pytest
import tensorflow as tf
from rest_models import write_counter, write_half_plus, write_nest
from rest_points import HALF, POINTS, post

from tfaccel.extras.serving.messages import BodyRoom
from tfaccel.extras.serving.metrics import Metrics
from tfaccel.extras.serving.model_config import read_model_configs
from tfaccel.extras.serving.models import Models
from tfaccel.extras.serving.options import ServeOptions
from tfaccel.extras.serving.server import App

CONFIG = """
model_config_list {
  config {
    name: "half" base_path: "half" model_platform: "tensorflow"
    model_version_policy { specific { versions: 123 versions: 124 } }
    version_labels { key: "stable" value: 123 }
    version_labels { key: "canary" value: 124 }
  }
  config { name: "saved_model_half_plus_three" base_path: "three" }
  config { name: "counter" base_path: "counter" }
  config { name: "nest" base_path: "nest" }
}
"""
# The page begins with "In addition to gRPC APIs": that point is asked last.
NUM_POINTS = 59


@pytest.fixture(scope="module")
def ask(tmp_path_factory, logical_devices):
    """A function that asks the application: method, path and body; gives the status and the JSON."""
    folder = tmp_path_factory.mktemp("models")
    write_half_plus(folder / "half" / "00000123", 2.0, old=False)
    write_half_plus(folder / "half" / "00000124", 20.0, old=False)
    write_half_plus(folder / "half" / "00000125", 200.0, old=False)
    write_half_plus(folder / "three" / "123", 3.0, old=True)
    write_counter(folder / "counter" / "1")
    write_nest(folder / "nest" / "1")
    (folder / "models.config").write_text(CONFIG)
    metrics = Metrics()
    models = Models(read_model_configs(folder / "models.config"), ServeOptions(), metrics)
    models.start(loaded=lambda versions: None, failed=pytest.fail)
    deadline = time.monotonic() + 60
    while not models.is_ready:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    app = App(models, metrics, BodyRoom())

    def request(method, path, body=None):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return asyncio.run(_asked(app, method, path, content))

    request.models = models
    yield request
    models.close()


async def _asked(app, method, path, body):
    sent = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    await app({"type": "http", "method": method, "path": path, "headers": []}, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"])


@pytest.mark.parametrize("name", POINTS)
def test_point(ask, name):
    requests, wanted_status, wanted = POINTS[name]
    for request in requests if isinstance(requests, list) else [requests]:
        found_status, answer = ask(*request)
        assert found_status == wanted_status, answer
        assert wanted(answer) if callable(wanted) else answer == wanted


def test_grpc_gives_what_rest_gives(ask):
    from tensorflow_serving.apis import predict_pb2

    from tfaccel.extras.serving.grpc_server import GrpcMethods

    request = predict_pb2.PredictRequest()
    request.model_spec.name, request.model_spec.version_label = "half", "stable"
    request.inputs["x"].CopyFrom(tf.make_tensor_proto([2.0], tf.float32))
    answer = asyncio.run(GrpcMethods(ask.models, max_bytes=2**20).predict(request, is_large=False))
    rest = ask(*post(f"{HALF}/labels/stable:predict", inputs=[2.0]))[1]["outputs"]
    assert [list(output.float_val) for output in answer.outputs.values()] == [rest]


def test_all_points_are_asked():
    assert len(POINTS) + 1 == NUM_POINTS


def test_requests_that_change_a_model_run_once_and_alone(ask):
    def counter(name, **inputs):
        return ask(*post("/v1/models/counter:predict", signature_name=name, inputs=inputs))

    assert counter("incr_counter") == (200, {"outputs": 1.0})
    assert counter("incr_counter_by", delta=3.0) == (200, {"outputs": 4.0})
    assert counter("get_counter") == (200, {"outputs": 4.0})
    assert counter("reset_counter") == (200, {"outputs": 0.0})
    assert ask(*post("/v1/models/counter:predict", inputs={}))[0] == 400
