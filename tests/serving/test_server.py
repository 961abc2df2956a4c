"""A real server in a process of its own: the protocol, its limits, hot reload, and its graceful end."""

import base64
import http.client
import json
import os
import re
import shutil
import socket
import threading

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from running_server import NAME, PREDICT, RAW, ROW, Server, build, wait_for

from tfaccel.benchmarks.http_load import closed_loop, open_loop, post


@pytest.fixture(scope="module")
def versions(tmp_path_factory, logical_devices):
    """A folder with two versions of a model."""
    folder = tmp_path_factory.mktemp("models")
    build(folder / "1", bias=0.0)
    shutil.copytree(folder / "1", folder.parent / "kept")
    build(folder / "3", bias=5.0)
    return folder


@pytest.fixture(scope="module")
def server(versions):
    made = Server(versions, "--poll_seconds=0.1", "--max_request_bytes=100000", "--max_queue=8")
    yield made
    assert made.end() == 0


def logits(bias):
    return [31.5 + bias, bias, -31.5 + bias]


def test_rows_columns_names_and_versions(server):
    assert server.json(PREDICT, {"instances": [ROW, ROW]}) == (200, {"predictions": [logits(5.0)] * 2})
    assert server.json(PREDICT, {"inputs": {"pixels": [ROW]}}) == (200, {"outputs": [logits(5.0)]})
    for version, bias in ((1, 0.0), (3, 5.0)):
        body = {"instances": [{"pixels": ROW}]}
        assert server.json(f"/v1/models/{NAME}/versions/{version}:predict", body) == (
            200,
            {"predictions": [logits(bias)]},
        )
    many = server.json(PREDICT, {"instances": [ROW] * 70})[1]["predictions"]
    assert len(many) == 70 and many[69] == logits(5.0)


def test_raw_images_give_class_and_probabilities(server):
    import io

    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(np.array(ROW, np.uint8)[..., 0]).save(content, "PNG")
    image = {"b64": base64.b64encode(content.getvalue()).decode()}
    status, answer = server.json(
        PREDICT, {"signature_name": "serving_raw", "instances": [image, {"image_bytes": image}]}
    )
    assert status == 400 and "instances[1]" in answer["error"]
    status, answer = server.json(PREDICT, {"signature_name": "serving_raw", "instances": [image, image]})
    assert (status, [row["label"] for row in answer["predictions"]]) == (200, ["zero", "zero"])
    assert answer["predictions"][0]["probabilities"][0] == pytest.approx(1.0)
    bad = {"b64": base64.b64encode(b"no image").decode()}
    status, answer = server.json(PREDICT, {"signature_name": "serving_raw", "instances": [image, bad, image]})
    assert status == 400
    assert answer["error"].startswith("instances[1]: ")


def test_classify_names_the_classes(server):
    status, answer = server.json(f"/v1/models/{NAME}:classify", {"examples": [{"pixels": ROW}]})
    assert status == 200
    ((first, *_),) = answer["results"]
    assert first == ["zero", pytest.approx(1.0)]
    assert [name for name, _ in answer["results"][0]] == list(RAW.class_names)


def test_metadata_and_status(server):
    status, answer = server.json(f"/v1/models/{NAME}/metadata")
    assert (status, answer["model_spec"]) == (200, {"name": NAME, "signature_name": "", "version": "3"})
    signatures = answer["metadata"]["signature_def"]["signature_def"]
    pixels = signatures["serving_default"]["inputs"]["pixels"]
    assert [dim["size"] for dim in pixels["tensor_shape"]["dim"]] == ["-1", "8", "8", "1"]
    assert (pixels["dtype"], signatures["serving_raw"]["inputs"]["image_bytes"]["dtype"]) == ("DT_FLOAT", "DT_STRING")
    ok = {"error_code": "OK", "error_message": ""}
    rows = [{"version": version, "state": "AVAILABLE", "status": ok} for version in ("3", "1")]
    assert server.json(f"/v1/models/{NAME}") == (200, {"model_version_status": rows})
    assert server.json(f"/v1/models/{NAME}/versions/1") == (200, {"model_version_status": rows[1:]})


def test_health_readiness_and_counts(server):
    assert server.json("/healthz") == (200, {"status": "alive"})
    assert server.json("/readyz") == (200, {"ready": True})
    server.json(PREDICT, {"instances": [ROW]})
    status, headers, content = server.ask("GET", "/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain")
    text = content.decode()
    assert {"tfaccel_requests", "tfaccel_batch_rows"} <= {
        family.name for family in text_string_to_metric_families(text)
    }
    assert re.search(
        r'^tfaccel_requests_total\{method="predict",model="images",status="200"\} [1-9]', text, re.MULTILINE
    )
    for name in ("tfaccel_request_seconds_bucket", "tfaccel_batch_rows_count", "tfaccel_queue_requests"):
        assert name in text


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        (PREDICT, b"{", 400, "The body is no JSON"),
        (PREDICT, {"instances": [ROW, [1]]}, 400, "instances[1]: input 'pixels' must be float32 of shape (8, 8, 1)."),
        (PREDICT, {"signature_name": "other", "instances": [ROW]}, 400, "Serving signature name: 'other' not found"),
        (PREDICT, {"signature_name": 3, "instances": [ROW]}, 400, '"signature_name" must be a text'),
        (f"/v1/models/{NAME}:classify", {"instances": [ROW]}, 400, '"examples" must be a list'),
        (f"/v1/models/{NAME}:classify", {"examples": [{"pixels": ROW}, {"pixels": 1}]}, 400, "examples[1]: input"),
        (
            f"/v1/models/{NAME}:regress",
            {"examples": [{"pixels": ROW}]},
            400,
            "one number for each row, but logits (1, 3)",
        ),
        (
            f"/v1/models/{NAME}/labels/new:predict",
            {"instances": [ROW]},
            400,
            "Unrecognized servable version label: new. Labels: none.",
        ),
        (f"/v1/models/{NAME}/versions/{'9' * 5000}:predict", {}, 400, "A version is a whole number. Received: '999"),
        (f"/v1/models/{NAME}/", {}, 404, "Malformed request: POST /v1/models/images/"),
        ("/v1/models/other:predict", {"instances": [ROW]}, 404, "Servable not found for request: Latest(other)."),
        (f"/v1/models/{NAME}/versions/2:predict", {"instances": [ROW]}, 404, "Specific(images, 2). Versions: 1, 3."),
        (f"/v1/models/{NAME}/versions/x:predict", {"instances": [ROW]}, 400, "A version is a whole number."),
        ("/v2/models", {}, 404, "Malformed request: POST /v2/models"),
        (PREDICT, b"[" + b"0," * 60000 + b"0]", 413, "The body must have at most 100000 bytes"),
    ],
)
def test_malformed_requests_are_told_where(server, path, body, status, message):
    found, headers, content = server.ask("POST", path, body)
    assert (found, headers["content-type"]) == (status, "application/json")
    assert message in json.loads(content)["error"]


def test_other_methods_are_told_which_one_is_right(server):
    for method, path, allowed in (
        ("GET", PREDICT, "POST"),
        ("PUT", PREDICT, "POST"),
        ("POST", f"/v1/models/{NAME}", "GET"),
    ):
        status, headers, content = server.ask(method, path)
        assert (status, allowed in headers["allow"].split(", ")) == (405, True)
        assert json.loads(content) == {"error": f"Malformed request: {method} {path}"}


def test_body_without_announced_length_is_limited_too(server):
    def parts(number):
        for _ in range(number):
            yield b" " * 50_000

    status, _, content = server.ask("POST", PREDICT, parts(40))
    assert (status, "at most 100000 bytes" in content.decode()) == (413, True)
    small = json.dumps({"instances": [ROW]}).encode()
    status, _, content = server.ask("POST", PREDICT, iter([small[:100], small[100:]]))
    assert status == 200
    status, _, content = server.ask("POST", PREDICT, small, {"Content-Encoding": "br"})
    assert (status, "may be compressed with gzip only" in content.decode()) == (415, True)
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:  # asks before it sends the body
        head = f"POST {PREDICT} HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 200000\r\n\r\n"
        client.sendall(head.encode())
        assert client.recv(20).startswith(b"HTTP/1.1 413")


def test_new_versions_come_and_old_ones_go_without_a_dropped_request(server, versions):
    request = post(PREDICT, json.dumps({"instances": [ROW]}).encode())

    def change():
        os.replace(versions.parent / "kept", versions / "4")
        wait_for(lambda: server.json(f"/v1/models/{NAME}/versions/4")[0] == 200)
        os.replace(versions / "3", versions.parent / "kept")
        wait_for(lambda: server.json(f"/v1/models/{NAME}/versions/3")[0] == 404)

    load = closed_loop(server.port, [request], num_clients=6, seconds=3.0, at_half=change)
    assert (load.num_failed, load.statuses[200] > 50) == (0, True)
    assert server.json(PREDICT, {"instances": [ROW]})[1] == {"predictions": [logits(0.0)]}
    (versions / "7").mkdir()
    (versions / "7" / "saved_model.pb").write_bytes(b"broken")
    wait_for(lambda: "END" in str(server.json(f"/v1/models/{NAME}")))
    broken = server.json(f"/v1/models/{NAME}")[1]["model_version_status"][0]
    assert (broken["version"], broken["status"]["error_code"]) == ("7", "UNKNOWN")
    assert "cannot be loaded" in broken["status"]["error_message"]
    assert server.json(f"/v1/models/{NAME}/versions/7") == (200, {"model_version_status": [broken]})
    assert server.json(PREDICT, {"instances": [ROW]})[0] == 200


def test_load_at_a_rate_is_answered(server):
    request = post(PREDICT, json.dumps({"instances": [ROW]}).encode())
    load = open_loop(server.port, [request], per_second=50.0, num_clients=4, seconds=1.0)
    assert (load.statuses, len(load.latencies)) == ({200: 50}, 50)
    assert load.percentile(50) <= load.percentile(99)


def test_full_queue_refuses_and_sigterm_ends_after_the_last_answer(server):
    answers, sent = [], []

    def ask():
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("POST", PREDICT, json.dumps({"signature_name": "slow", "instances": [ROW]}))
        sent.append(connection)
        answer = connection.getresponse()
        answers.append((answer.status, dict(answer.getheaders()), answer.read()))
        connection.close()

    threads = [threading.Thread(target=ask) for _ in range(30)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(sent) == 30)
    server.ask_to_end()
    for thread in threads:
        thread.join()
    assert server.end() == 0
    assert (len(answers), sorted({status for status, _, _ in answers})) == (30, [200, 429])
    headers, content = next((headers, content) for status, headers, content in answers if status == 429)
    assert headers["retry-after"] == "1"
    assert "requests are waiting already" in content.decode()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", server.port), timeout=5)
