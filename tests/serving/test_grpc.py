"""TensorFlow Serving's gRPC services, asked of a real server by TensorFlow Serving's own client."""

import json
import threading

import grpc
import numpy as np
import pytest
import tensorflow as tf
from grpc_models import ECHO, Client, arrays, fill_spec, refused, write_echo
from grpc_requests import WRONG_EXAMPLES, WRONG_TENSORS, example, request_of, tensor
from running_server import NAME, PREDICT, ROW, Server, build, wait_for
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    predict_pb2,
    regression_pb2,
)

CONFIG = """
model_config_list {
  config {
    name: "echo" base_path: "echo" model_version_policy { all {} }
    version_labels { key: "stable" value: 1 } version_labels { key: "gone" value: 7 }
  }
  config { name: "images" base_path: "images" }
}
"""
MAX_BYTES = 1_000_000
CLASSIFY, REGRESS = "tensorflow/serving/classify", "tensorflow/serving/regress"


@pytest.fixture(scope="module")
def server(tmp_path_factory, logical_devices):
    folder = tmp_path_factory.mktemp("models")
    write_echo(folder / "echo" / "1", start=1.0)
    write_echo(folder / "echo" / "2", start=2.0)
    build(folder / NAME / "1", bias=0.0)
    (folder / "models.config").write_text(CONFIG)
    config = f"--model_config_file={folder / 'models.config'}"
    made = Server(
        None, config, "--grpc_port=0", f"--max_request_bytes={MAX_BYTES}", "--max_queue=8", "--body_seconds=1"
    )
    wait_for(lambda: made.json("/readyz")[0] == 200)
    yield made
    assert made.end() == 0


@pytest.fixture(scope="module")
def client(server):
    return Client(server.grpc)


def test_predict_by_version_label_and_output(client, server):
    answer = client.predict("echo", x=[2.0, 4.0])
    assert arrays(answer) == {"y": [3.0, 4.0], "z": [-2.0, -4.0]}
    spec = answer.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("echo", 2, "serving_default")
    assert list(answer.outputs["y"].float_val) == [3.0, 4.0]  # as many clients read it
    for spec in ({"version": 1}, {"label": "stable"}):
        answer = client.predict("echo", spec=spec, output_filter=["y"], x=[2.0])
        assert (arrays(answer), answer.model_spec.version.value) == ({"y": [2.0]}, 1)
    many = arrays(client.predict(NAME, pixels=[ROW] * 70))["logits"]
    assert many == server.json(PREDICT, {"instances": [ROW] * 70})[1]["predictions"]
    assert arrays(client.predict("echo", "free", x=[[1.0, 2.0]])) == {"x": [1.0, 2.0]}
    assert arrays(client.predict("echo", "scalar", x=1.0, rows=[[2.0, 3.0]])) == {"x": [[3.0, 4.0]]}
    assert arrays(client.predict("echo", "scalar", x=1.0, rows=np.zeros((2, 2)))) == {"x": [[1.0, 1.0]] * 2}


@pytest.mark.parametrize("kind", ECHO)
def test_each_dtype_goes_in_and_out_in_each_form(client, kind):
    dtype = tf.as_dtype(kind)
    values = (
        [b"", b"\x00\xff", "\u00e4".encode()] if kind == "string" else np.array([0, 1, 1]).astype(dtype.as_numpy_dtype)
    )
    forms = [tf.make_tensor_proto(values, dtype)]
    if kind != "string":
        forms.append(tensor(kind, [3], tensor_content=values.tobytes()))
    if kind in ("float16", "bfloat16"):
        forms.append(tensor(kind, [3], half_val=values.view(np.uint16).tolist()))
    if kind == "float32":
        forms += [tensor(kind, [3], float_val=[0.0, 1.0]), tensor(kind, [3], float_val=[0.0, 1.0, 1.0])]
    for form in forms:
        answer = client.predict("echo", f"echo_{kind}", x=form).outputs["x"]
        assert (tf.as_dtype(answer.dtype), answer.tensor_content) == (dtype, b"")
        assert tf.make_ndarray(answer).tolist() == list(values)
    assert (
        arrays(client.predict("echo", f"echo_{kind}", x=tensor(kind, [2])))["x"] == [b"" if kind == "string" else 0] * 2
    )


def test_truth_values_are_zero_or_one(client):
    assert arrays(client.predict("echo", "echo_bool", x=tensor("bool", [3], tensor_content=b"\x00\x07\xff")))["x"] == [
        False,
        True,
        True,
    ]


def test_classify_and_regress(client, server):
    rows = [example(x=[1.5]), example(x=[2.0], n=[3])]
    classify, regress = classification_pb2.ClassificationRequest, regression_pb2.RegressionRequest
    answer = client.predictions.Classify(request_of(classify, signature="classify", examples=rows))
    pairs = [[(found.label, found.score) for found in row.classes] for row in answer.result.classifications]
    assert pairs == [[("low", -1.5), ("high", 1.5)], [("low", -5.0), ("high", 5.0)]]
    assert (answer.model_spec.name, answer.model_spec.signature_name) == ("echo", "classify")
    request = request_of(regress, signature="regress", examples=[example(x=[1.0])], context=example(n=[4]), version=1)
    answer = client.predictions.Regress(request)
    assert [found.value for found in answer.result.regressions] == [5.0]
    assert answer.model_spec.version.value == 1
    flat = example(pixels=[float(value) for value in range(64)])  # a signature that takes tensors by name
    answer = client.predictions.Classify(request_of(classify, NAME, examples=[flat]))
    wanted = server.json(f"/v1/models/{NAME}:classify", {"examples": [{"pixels": ROW}]})[1]["results"]
    (found,) = answer.result.classifications
    assert [[pair.label, pytest.approx(pair.score)] for pair in found.classes] == wanted[0]


def test_multi_inference(client):
    request = inference_pb2.MultiInferenceRequest()
    for name, method in (("classify", CLASSIFY), ("regress", REGRESS)):
        fill_spec(request.tasks.add(method_name=method).model_spec, "echo", name)
    request.input.example_list.examples.append(example(x=[1.5]))
    first, second = client.predictions.MultiInference(request).results
    assert [found.score for found in first.classification_result.classifications[0].classes] == [-1.5, 1.5]
    assert [found.value for found in second.regression_result.regressions] == [1.5]
    ask = client.predictions.MultiInference
    request.tasks[1].model_spec.signature_name = "classify"
    assert refused(ask, request) == ("INVALID_ARGUMENT", "Duplicate evaluation of signature: 'classify'.")
    request.tasks[1].model_spec.name = NAME
    assert "must ask the same model" in refused(ask, request)[1]
    request.tasks[1].method_name = "tensorflow/serving/predict"
    assert "method_name must be tensorflow/serving/classify or" in refused(ask, request)[1]
    del request.tasks[:]
    assert refused(ask, request) == ("INVALID_ARGUMENT", "Inference request must have at least one task.")


def test_metadata_and_status(client):
    request = request_of(get_model_metadata_pb2.GetModelMetadataRequest, label="stable")
    request.metadata_field.append("signature_def")
    answer = client.predictions.GetModelMetadata(request)
    assert (answer.model_spec.name, answer.model_spec.version.value) == ("echo", 1)
    found = get_model_metadata_pb2.SignatureDefMap()
    assert answer.metadata["signature_def"].Unpack(found)
    assert set(found.signature_def["serving_default"].outputs) == {"y", "z"}
    request.metadata_field.append("weights")
    assert refused(client.predictions.GetModelMetadata, request)[1].startswith("Metadata field 'weights' is not")
    del request.metadata_field[:]
    assert "at least one metadata_field" in refused(client.predictions.GetModelMetadata, request)[1]
    status = get_model_status_pb2.GetModelStatusRequest
    rows = client.models.GetModelStatus(request_of(status)).model_version_status
    available = get_model_status_pb2.ModelVersionStatus.AVAILABLE
    assert [(row.version, row.state, row.status.error_code) for row in rows] == [(2, available, 0), (1, available, 0)]
    (row,) = client.models.GetModelStatus(request_of(status, version=1)).model_version_status
    assert row.version == 1
    assert refused(client.models.GetModelStatus, request_of(status, version=9))[0] == "NOT_FOUND"
    assert refused(client.models.GetModelStatus, request_of(status, "other"))[0] == "NOT_FOUND"
    code, message = refused(client.models.HandleReloadConfigRequest, model_management_pb2.ReloadConfigRequest())
    assert (code, "--model_config_file, and change that file" in message) == ("UNIMPLEMENTED", True)


@pytest.mark.parametrize(
    ("path", "name", "signature", "spec", "code"),
    [
        ("other:predict", "other", "", {}, "NOT_FOUND"),
        ("echo/versions/9:predict", "echo", "", {"version": 9}, "NOT_FOUND"),
        ("echo/labels/gone:predict", "echo", "", {"label": "gone"}, "NOT_FOUND"),
        ("echo/labels/none:predict", "echo", "", {"label": "none"}, "INVALID_ARGUMENT"),
        ("echo:predict", "echo", "pears", {}, "INVALID_ARGUMENT"),
    ],
)
def test_errors_are_those_of_rest(client, server, path, name, signature, spec, code):
    wanted = server.json(f"/v1/models/{path}", {"inputs": {"x": [1.0]}, "signature_name": signature})[1]["error"]
    assert refused(client.predict, name, signature, spec, x=[1.0]) == (code, wanted)


@pytest.mark.parametrize(("signature", "tensors", "message"), WRONG_TENSORS)
def test_tensor_that_no_input_can_be_is_refused(client, signature, tensors, message):
    code, found = refused(client.predict, "echo", signature, **tensors)
    assert (code, message in found) == ("INVALID_ARGUMENT", True), found


def test_model_that_fails_names_the_row(client):
    image = tensor("string", [2], string_val=[b"no image", b"none either"])
    code, message = refused(client.predict, NAME, "serving_raw", image_bytes=image)
    assert (code, message.startswith("inputs[0]: ")) == ("INVALID_ARGUMENT", True), message


@pytest.mark.parametrize(("request_", "message"), WRONG_EXAMPLES)
def test_examples_that_cannot_be_read_are_refused(client, request_, message):
    code, found = refused(client.predictions.Classify, request_)
    assert (code, message in found) == ("INVALID_ARGUMENT", True), found


def test_outputs_that_are_not_there_are_refused(client):
    code, message = refused(client.predict, "echo", output_filter=["w"], x=[1.0])
    assert (code, message) == (
        "INVALID_ARGUMENT",
        "output tensor alias not found in signature: 'w'. There are: y, z.",
    )
    assert "duplicate output tensor alias: 'y'" in refused(client.predict, "echo", output_filter=["y", "y"], x=[1.0])[1]
    request = predict_pb2.PredictRequest(predict_streamed_options={"return_single_response": True})
    fill_spec(request.model_spec, "echo")
    assert "predict_streamed_options" in refused(client.predictions.Predict, request)[1]


def test_bytes_that_are_no_request_are_refused(client, server):
    code, message = refused(client.raw, b"\xff" * 9)
    assert (code, message.startswith("The body is no PredictRequest: Error parsing message")) == (
        "INVALID_ARGUMENT",
        True,
    )
    assert refused(client.raw, b"")[1].startswith("Missing ModelSpec.")
    assert refused(client.raw, b"", "SessionRun")[0] == "UNIMPLEMENTED"
    for content, options in (
        (b"\0" * (MAX_BYTES + 1), {}),
        (b"\0" * 20 * MAX_BYTES, {"compression": grpc.Compression.Gzip}),
    ):
        code, message = refused(client.raw, content, **options)
        assert (code, "larger than max" in message) == ("RESOURCE_EXHAUSTED", True)
    whole = predict_pb2.PredictRequest()
    fill_spec(whole.model_spec, NAME)
    whole.inputs["pixels"].CopyFrom(tf.make_tensor_proto([ROW] * 2000, tf.float32))
    content = whole.SerializeToString()
    assert 256 * 2**10 < len(content) < MAX_BYTES
    for compression in (grpc.Compression.Gzip, grpc.Compression.NoCompression):
        answer = predict_pb2.PredictResponse.FromString(client.raw(content, compression=compression))
        assert len(arrays(answer)["logits"]) == 2000
    stream = client.channel.stream_unary("/tensorflow.serving.PredictionService/Predict")
    assert refused(stream, iter([b"", b""])) == ("INVALID_ARGUMENT", "A request must have one message.")
    assert refused(stream, iter([])) == ("INVALID_ARGUMENT", "A request must have one message.")
    release = threading.Event()
    code, message = refused(stream, (release.wait(30) and b"" for _ in range(1)))
    release.set()
    assert (code, message) == ("DEADLINE_EXCEEDED", "The body was not there after 1 seconds.")


def test_requests_are_counted_and_lost_clients_harm_nobody(client, server):
    call = client.predictions.Predict.future
    request = predict_pb2.PredictRequest()
    fill_spec(request.model_spec, NAME, "slow")
    request.inputs["pixels"].CopyFrom(tf.make_tensor_proto([ROW], tf.float32))
    for _ in range(3):
        call(request).cancel()
    code, _ = refused(client.predictions.Predict, request, timeout=0.001)
    assert code == "DEADLINE_EXCEEDED"
    client.predict("echo", x=[1.0])
    text = server.ask("GET", "/metrics")[2].decode()
    for method, model, status in (("predict", "echo", 200), ("predict", "echo", 400), ("status", "echo", 404)):
        line = f'method="{method}",model="{model}",status="{status}"'
        assert f"tfaccel_requests_total{{{line}}}" in text


@pytest.mark.slow
def test_full_queue_refuses_and_sigterm_ends_after_the_last_answer(server):
    request = predict_pb2.PredictRequest()
    fill_spec(request.model_spec, NAME, "slow")
    request.inputs["pixels"].CopyFrom(tf.make_tensor_proto([ROW], tf.float32))
    clients = [Client(server.grpc) for _ in range(6)]
    for one in clients:
        grpc.channel_ready_future(one.channel).result(timeout=30)
    calls = [clients[number % 6].predictions.Predict.future(request, timeout=60) for number in range(30)]
    rest = json.dumps({"signature_name": "slow", "instances": [ROW]})
    status = []
    thread = threading.Thread(target=lambda: status.append(server.ask("POST", PREDICT, rest)[0]))
    thread.start()
    wait_for(lambda: any(call.done() for call in calls))
    server.ask_to_end()
    codes = [(call.exception(), call.code().name) for call in calls]
    thread.join()
    assert server.end() == 0
    assert sorted({code for _, code in codes}) == ["OK", "RESOURCE_EXHAUSTED"]
    full = next(error for error, code in codes if code == "RESOURCE_EXHAUSTED")
    assert "requests are waiting already. Try again later." in full.details()
    assert ("grpc-retry-pushback-ms", "1000") in [tuple(pair) for pair in full.trailing_metadata()]
    assert status[0] in (200, 429)
    assert refused(clients[0].predict, "echo", x=[1.0])[0] == "UNAVAILABLE"
