"""A server that is asked to end answers what it took, whenever it is asked; slow clients and lost ones harm nobody."""

import asyncio
import http.client
import json
import os
import re
import signal
import socket
import threading

import pytest
from running_server import NAME, PREDICT, ROW, Server, build, wait_for

from tfaccel.errors import ServeError
from tfaccel.extras.serving.messages import BodyRoom
from tfaccel.extras.serving.metrics import Metrics
from tfaccel.extras.serving.model_config import ModelConfig
from tfaccel.extras.serving.models import Models
from tfaccel.extras.serving.options import ServeOptions
from tfaccel.extras.serving.server import App, serve

BODY = json.dumps({"instances": [ROW]}).encode()
NUM_WAITING = re.compile(rb'queue_requests\{model="images"\} (\d+)')
SLOW = {"signature_name": "slow", "instances": [ROW]}


@pytest.fixture(scope="module")
def versions(tmp_path_factory, logical_devices):
    """A folder with one version of a model."""
    folder = tmp_path_factory.mktemp("models")
    build(folder / "1", bias=0.0)
    return folder


def head(length):
    return f"POST {PREDICT} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n".encode()


@pytest.mark.slow
def test_slow_and_lost_clients_harm_nobody_and_two_signals_end_as_one(versions):
    server = Server(versions, "--body_seconds=0.5", "--max_batch_size=4", "--batch_wait_ms=300")
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        client.sendall(head(len(BODY)) + BODY[:50])
        assert client.recv(1000).startswith(b"HTTP/1.1 408")
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        client.sendall(head(len(BODY)) + BODY)  # waits for others to share a batch with, and is gone before it is run
    assert server.json(PREDICT, {"instances": [ROW]})[0] == 200
    answers, sent = [], []

    def ask():
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("POST", PREDICT, json.dumps(SLOW))
        sent.append(connection)
        answers.append(connection.getresponse().status)
        connection.close()

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(sent) == 6)
    server.process.send_signal(signal.SIGTERM)
    server.process.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join()
    assert (server.process.wait(60), answers) == (0, [200] * 6)
    assert "Traceback" not in server.end_and_read()


@pytest.mark.slow
def test_requests_that_were_sent_whole_are_answered_however_large_they_are(versions):
    server = Server(versions, "--max_queue=100")
    body = json.dumps({"instances": [ROW] * 500}).encode()
    assert len(body) > 200_000
    answers, sent, lock = [], [], threading.Lock()

    def ask():
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
            client.sendall(head(len(body)) + body)
            with lock:
                sent.append(client)
                if len(sent) == 48:
                    server.ask_to_end()
            received = b""
            try:
                while part := client.recv(2**16):
                    received += part
            except OSError as error:
                received = str(error).encode()
            answers.append(received[:12])

    threads = [threading.Thread(target=ask) for _ in range(48)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (server.end(), answers) == (0, [b"HTTP/1.1 200"] * 48)


def test_what_takes_longer_than_stopping_may_is_forgotten(tmp_path, logical_devices):
    build(tmp_path / "1", bias=0.0, slow_steps=600)
    server = Server(tmp_path, "--stop_seconds=1")
    body = json.dumps(SLOW).encode()
    clients = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(4)]
    for number, client in enumerate(clients):
        client.sendall(head(len(body)) + body)
        if number == 0:
            wait_for(lambda: NUM_WAITING.search(server.ask("GET", "/metrics")[2])[1] == b"0")
    wait_for(lambda: NUM_WAITING.search(server.ask("GET", "/metrics")[2])[1] == b"3")
    assert server.end() == 0
    for client in clients:
        client.close()


@pytest.fixture
def outer_signals():
    """Signals whose handlers must be as before in the end."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: pytest.fail("SIGTERM came after the end"))
    yield signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, before)


def test_signal_in_the_first_moment_is_not_lost(versions, outer_signals):
    told = []

    def end(addresses, served):
        told.append(addresses.url)
        os.kill(os.getpid(), signal.SIGTERM)

    serve([ModelConfig(NAME, versions)], ServeOptions(port=0), on_ready=end)
    assert told[0].startswith("http://127.0.0.1:")
    assert signal.getsignal(signal.SIGTERM) is outer_signals


def test_folder_without_a_model_ends_the_server(tmp_path, outer_signals):
    with pytest.raises(ServeError, match="holds no SavedModel, and no folders of versions"):
        ready = lambda addresses, served: pytest.fail("it is not ready")  # noqa: E731
        serve([ModelConfig(NAME, tmp_path)], ServeOptions(port=0), on_ready=ready)
    assert signal.getsignal(signal.SIGTERM) is outer_signals


def test_nothing_is_ready_until_a_model_is_loaded(tmp_path):
    metrics = Metrics()
    models = Models([ModelConfig(NAME, tmp_path)], ServeOptions(), metrics)
    try:
        app = App(models, metrics, BodyRoom())
        assert asyncio.run(ask(app, "GET", "/readyz")) == (503, {"ready": False})
        assert asyncio.run(ask(app, "GET", "/healthz")) == (200, {"status": "alive"})
        assert asyncio.run(ask(app, "POST", PREDICT)) == (503, {"error": "images is being loaded. Try again later."})
    finally:
        models.close()


async def ask(app, method, path):
    """Status and body that an application answers with, without a server."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": BODY, "more_body": False}

    async def send(message):
        sent.append(message)

    await app({"type": "http", "method": method, "path": path, "query_string": b"", "headers": []}, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"])
