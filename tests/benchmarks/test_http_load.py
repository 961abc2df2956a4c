"""Clients count what they are answered, and what they are not."""

import contextlib
import http.server
import threading

import pytest

from tfaccel.benchmarks.http_load import Load, closed_loop, open_loop, post


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers every other request with 500, and breaks the connection of those for /break."""

    protocol_version = "HTTP/1.1"
    num_requests = 0

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/break":
            self.close_connection = True
            return
        type(self).num_requests += 1
        body = b"x" * 70_000  # comes in several pieces
        self.send_response(200 if type(self).num_requests % 2 else 500)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def port():
    """The port of a server of the standard library."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    with contextlib.closing(server.socket):
        yield server.server_address[1]
        server.shutdown()
        thread.join()
        server.server_close()


def test_answers_are_counted_by_status(port):
    called = []
    load = closed_loop(
        port, [post("/", b"{}")], num_clients=3, seconds=0.4, warm_up_seconds=0.1, at_half=lambda: called.append(1)
    )
    assert set(load.statuses) == {200, 500}
    assert sum(load.statuses.values()) == len(load.latencies)
    assert abs(load.statuses[200] - load.statuses[500]) <= 3
    assert (load.num_failed, called) == (load.statuses[500], [1])
    assert load.num_in_time <= load.statuses[200] <= load.num_in_time + 3  # the others came after the window
    assert load.per_second == load.num_in_time / load.seconds


def test_rate_is_kept(port):
    load = open_loop(port, [post("/", b"{}")], per_second=100.0, num_clients=2, seconds=0.3)
    assert sum(load.statuses.values()) == 30


def test_broken_connections_count_as_failed(port):
    load = closed_loop(port, [post("/break", b"{}")], num_clients=2, seconds=0.2)
    assert (load.statuses, load.num_failed) == ({0: 2}, 2)


def test_percentiles_are_of_latencies():
    load = Load(2.0, 101, tuple(number / 100 for number in range(101)), {200: 101})
    assert load.percentile(99) == pytest.approx(0.99)
    assert load.per_second == 50.5
