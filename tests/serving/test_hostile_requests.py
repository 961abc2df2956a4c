"""Requests that are broken, too much, or meant to harm get a clear answer, and the server goes on."""

import base64
import gzip
import json
import socket

import pytest
from running_server import NAME, PREDICT, ROW, Server, build

from tfaccel.extras.serving.http_protocol import MAX_HEAD_BYTES

BODY = json.dumps({"instances": [ROW]}).encode()
LOGITS = {"predictions": [[31.5, 0.0, -31.5]]}
ORIGIN = "https://pages.example"
ARABIC = f"/v1/models/{NAME}/versions/%D9%A1:predict"  # with another script's digit for one


@pytest.fixture(scope="module")
def server(tmp_path_factory, logical_devices):
    folder = tmp_path_factory.mktemp("models")
    build(folder / "1", bias=0.0)
    made = Server(folder, "--head_seconds=1", "--body_seconds=2", f"--allowed_origins={ORIGIN}")
    yield made
    assert made.end() == 0


def request(body=BODY, *headers, path=PREDICT, length=None, version="1.1"):
    """A request as it goes over the wire."""
    lines = [f"POST {path} HTTP/{version}", "Host: a", f"Content-Length: {len(body) if length is None else length}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


def exchange(server, content, *, ends=False):
    """What a connection gives until the server closes it; `ends`: the client says that it sends no more."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        client.sendall(content)
        if ends:
            client.shutdown(socket.SHUT_WR)
        received = b""
        while part := client.recv(2**16):
            received += part
    return received


def answered(received):
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


CLOSE = "Connection: close"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"instances":' + b"[" * 1000 + b"]" * 1000 + b"}", "instances[0]: input 'pixels' must be float32"),
        (b'{"instances":' + b"[" * 900 + b"NaN" + b"]" * 900 + b"}", "instances[0]: input 'pixels' must be float32"),
        (b'{"instances":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "The body is no JSON: depth limit exceeded"),
        (b'{"instances":' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}", '"instances" must be a list'),
        (b'{"signature_name":' + b"[" * 900 + b"]" * 900 + b"}", '"signature_name" must be a text. Received: list.'),
        (b'{"instances":["' + b"a" * 3_000_000 + b'"' + b',"b"' * 900 + b"]}", "instances[0]: input 'pixels' must be"),
        (b'{"instances":[[[[1e400]]]]}', "number is infinity"),
        (b'{"instances":[[[[1e400]]], NaN]}', "number is infinity"),
        (b'{"instances":[' + b"9" * 100_000 + b"]}", "number is infinity"),
        (b'{"instances":["\xff"]}', "The body is no UTF-8: byte 15 cannot be read."),
        (b'{"instances":["\\ud800", NaN]}', "instances[0]: input 'pixels' must be float32"),
        (b'{"instances":[1],"instances":[2]}', "an object with the key 'instances' twice"),
        (b'{"instances":[[[[true]]]]}', "instances[0]: input 'pixels' must be float32"),
    ],
)
def test_body_that_no_input_can_have_is_refused(server, body, message):
    status, answer = answered(exchange(server, request(body, CLOSE)))
    assert (status, message in answer["error"]) == (400, True), answer


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (b"GET /healthz HTTP/1.1\r\nX: " + b"a" * 48 * 2**20, 431, f"at most {MAX_HEAD_BYTES} bytes"),
        (b"GET /healthz HTTP/1.1\r\n" + b"X: a\r\n" * 20_000 + b"\r\n", 431, f"at most {MAX_HEAD_BYTES} bytes"),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", 431, f"at most {MAX_HEAD_BYTES} bytes"),
        (b"GET /healthz HTTP/1.1\r\nHost:", 408, "The headers were not there after 1 seconds."),
        (request(length=len(BODY) + 9), 408, "The body was not there after 2 seconds."),
        (request(BODY, "Transfer-Encoding: chunked"), 400, "Invalid HTTP request received."),
        (request(BODY, "Transfer-Encoding : chunked"), 400, "Invalid HTTP request received."),
        (request(BODY, "Content-Length: 3"), 400, "Invalid HTTP request received."),
        (request(length="-2"), 400, "Invalid HTTP request received."),
        (request(length="9" * 30), 400, "Invalid HTTP request received."),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "Invalid HTTP request received."),
        (request(BODY, "Connection: close", path=ARABIC), 400, "A version is a whole number."),
    ],
)
def test_malformed_http_is_refused(server, content, status, message):
    found, answer = answered(exchange(server, content))
    assert (found, message in answer["error"]) == (status, True), answer


def test_client_that_closed_its_side_gets_its_answers(server):
    assert answered(exchange(server, request(), ends=True)) == (200, LOGITS)
    assert exchange(server, request() * 5, ends=True).count(b"200 OK") == 5
    assert exchange(server, request() * 2 + request()[:-9], ends=True).count(b"200 OK") == 2
    status, answer = answered(exchange(server, request()[:-9], ends=True))
    assert (status, answer["error"]) == (400, "The body ended before its announced length.")
    status, answer = answered(exchange(server, b"POST /v1", ends=True))
    assert (status, answer["error"]) == (400, "The request ended within its headers.")


def test_requests_in_a_row_and_old_ones(server):
    assert exchange(server, request() * 20 + request(BODY, CLOSE)).count(b"200 OK") == 21
    assert exchange(server, request() * 4 + b"GARBAGE\x00\r\n").count(b"200 OK") == 4
    assert answered(exchange(server, request(version="1.0"))) == (200, LOGITS)
    assert exchange(server, request(length=10)).count(b"HTTP/1.1 400") == 1
    assert exchange(server, b"HEAD /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").endswith(b"\r\n\r\n")


def test_compressed_bodies_and_answers(server):
    gzipped = "Content-Encoding: gzip"
    assert answered(exchange(server, request(gzip.compress(BODY), gzipped, CLOSE))) == (200, LOGITS)
    two = gzip.compress(BODY[:50]) + gzip.compress(BODY[50:])
    assert answered(exchange(server, request(two, gzipped, CLOSE))) == (200, LOGITS)
    for body, status, message in (
        (gzip.compress(b" " * 2**26), 413, "must have at most 33554432 bytes"),
        (gzip.compress(BODY)[:-9], 400, "it ends too early"),
        (BODY, 400, "is not compressed with gzip"),
    ):
        found, answer = answered(exchange(server, request(body, gzipped, CLOSE)))
        assert (found, message in answer["error"]) == (status, True), answer
    many = json.dumps({"instances": [ROW] * 100}).encode()
    for accepted, is_compressed in (("gzip, deflate", True), ("deflate", False), ("gzip;q=0", False)):
        status, headers, content = server.ask("POST", PREDICT, many, {"Accept-Encoding": accepted})
        assert (status, headers.get("content-encoding") == "gzip") == (200, is_compressed)
        rows = json.loads(gzip.decompress(content) if is_compressed else content)["predictions"]
        assert rows == LOGITS["predictions"] * 100


def test_pages_of_allowed_origins_may_ask(server):
    asks = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    status, headers, _ = server.ask("OPTIONS", PREDICT, None, asks)
    assert (status, headers["access-control-allow-origin"]) == (200, ORIGIN)
    assert "POST" in headers["access-control-allow-methods"]
    assert server.ask("OPTIONS", PREDICT, None, {**asks, "Origin": "https://other.example"})[0] == 400
    for origin, allowed in ((ORIGIN, ORIGIN), ("https://other.example", None)):
        status, headers, _ = server.ask("POST", PREDICT, BODY, {"Origin": origin})
        assert (status, headers.get("access-control-allow-origin")) == (200, allowed)


def test_bytes_need_no_padding(server):
    import io

    import numpy as np
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(np.array(ROW, np.uint8)[..., 0]).save(content, "PNG")
    text = base64.b64encode(content.getvalue() + b"\x00" * (-len(content.getvalue()) % 3 + 1)).decode()
    assert text.endswith("=")
    for form in (text, text.rstrip("="), f"{text[:9]} \n{text[9:]}"):
        body = {"signature_name": "serving_raw", "instances": [{"b64": form}]}
        assert server.json(PREDICT, body)[1]["predictions"][0]["label"] == "zero"
    body = {"signature_name": "serving_raw", "instances": [{"b64": text.rstrip("=") + "="}]}
    assert server.json(PREDICT, body)[0] == (200 if text.endswith("==") is False else 400)
