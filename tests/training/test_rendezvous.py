"""Workers meet before TensorFlow starts: a missing, duplicate or mismatched worker is named."""

import logging
import socket
import subprocess
import sys
import threading
import time

import pytest

from tfaccel.errors import ClusterError
from tfaccel.planning.workload import Workload
from tfaccel.processes.local_cluster import free_ports
from tfaccel.training.workers.rendezvous import Place, check_own_port, meet, settings_to_agree_on, wait_seconds


def met(workers, *, num_workers=3, seconds=30.0, addresses=None):
    """Starts workers, each (index, settings that must match, delay in seconds); "met" or the error message of each."""
    addresses = addresses or tuple(f"127.0.0.1:{port}" for port in free_ports(num_workers))
    found = [""] * len(workers)

    def worker(number, index, same, delay):
        time.sleep(delay)
        try:
            meet(Place(addresses, index), same, seconds=seconds)
            found[number] = "met"
        except ClusterError as error:
            found[number] = str(error)

    threads = [threading.Thread(target=worker, args=(number, *one)) for number, one in enumerate(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for address in addresses:  # TensorFlow takes the ports next
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("", int(address.partition(":")[2])))
            listener.listen()
    return found


@pytest.mark.parametrize("late", [0, 1, 2])
def test_workers_meet_whoever_comes_last(late):
    same = {"global_batch_size": 8, "the cluster": ["a", "b"]}
    assert met([(index, same, 0.5 * (index == late)) for index in range(3)]) == ["met"] * 3


@pytest.mark.parametrize("missing", [0, 2])
def test_missing_worker_is_named_at_once_and_when_the_time_is_up(missing, caplog):
    with caplog.at_level(logging.WARNING, "tfaccel"):
        found = met([(index, {}, 0) for index in range(3) if index != missing], seconds=1.5)
    for text in found:
        assert f"Worker {missing} (127.0.0.1:" in text
        assert "did not connect within 1.5" in text and "Set TFACCEL_WORKER_WAIT_SECONDS to wait longer." in text
    assert f"Waiting for worker {missing} (127.0.0.1:" in caplog.text


def test_worker_that_ends_while_it_waits_may_come_again():
    assert met([(1, {"x": 1}, 0), (0, {"x": 1}, 0.6)], num_workers=2, seconds=20.0) == ["met", "met"]


def test_second_worker_of_one_index_is_refused_and_the_first_goes_on():
    first, second, chief, other = met([(1, {}, 0), (1, {}, 0.6), (0, {}, 0), (2, {}, 1.5)])
    assert (first, chief, other) == ("met", "met", "met")
    assert "Another process is worker 1 of this cluster already. Give each worker its own task index" in second


def test_what_workers_do_not_agree_on_is_named_on_all():
    found = met([(0, {"dtype_policy": "float32"}, 0), (1, {"dtype_policy": "mixed_bfloat16"}, 0)], num_workers=2)
    text = "The workers do not agree: dtype_policy is 'float32' on worker 0 and 'mixed_bfloat16' on worker 1."
    assert all(one.startswith(text) for one in found)


def test_other_code_and_other_settings_are_named():
    def work(width, **options):
        return Workload("small", lambda: width, dict, print, global_batch_size=8, options=options)

    def settings(width, **config):
        return settings_to_agree_on(work(width), {"epochs": 3, "options": {"rate": 0.1, "data_dir": "/a"}, **config})

    first = settings(4)
    assert met([(0, first, 0), (1, settings(4, options={"rate": 0.1, "data_dir": "/b"}), 0)], num_workers=2) == [
        "met",
        "met",
    ]
    for other, text in (
        (settings(5), "the code of the model is '"),
        (settings(4, epochs=4), "epochs is 3 on worker 0 and 4 on worker 1. Start all of them with the same"),
        (settings(4, options={"rate": 0.2, "data_dir": "/a"}), "options.rate is 0.1 on worker 0 and 0.2 on worker 1."),
    ):
        found = met([(0, first, 0), (1, other, 0)], num_workers=2)
        assert all(one.startswith(f"The workers do not agree: {text}") for one in found), found


def test_port_that_is_taken_is_named():
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ClusterError, match=f"Worker 0 cannot listen on its port {port} .*another program, uses it"):
            meet(Place((f"127.0.0.1:{port}", "127.0.0.1:1"), 0), {}, seconds=1.0)


def test_process_at_the_port_is_named_before_tensorflow_starts():
    code = "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); "
    code += "sys.stdin.read()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        port = int(other.stdout.readline())
        with pytest.raises(
            ClusterError, match=rf"uses it \(process {other.pid}: .*python.* -c import socket.*\)\. Stop"
        ):
            check_own_port(0, f"127.0.0.1:{port}")
        other.stdin.close()
    check_own_port(0, f"127.0.0.1:{port}")
    with socket.create_server(("127.0.0.1", port)):
        check_own_port(0, f"127.0.0.1:{port}")  # this process's own


def test_another_program_at_the_port_is_not_taken_for_a_worker():
    addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(2))

    def knock():
        with socket.create_connection(("127.0.0.1", int(addresses[0].partition(":")[2])), timeout=5) as connection:
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 70_000)

    timer = threading.Timer(0.4, knock)
    timer.start()
    assert met([(0, {}, 0), (1, {}, 1.2)], addresses=addresses) == ["met", "met"]
    timer.join()


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf"])
def test_time_that_is_none_is_refused(text):
    with pytest.raises(ClusterError, match=f"must be a number of seconds above 0. Received: .*={text}"):
        wait_seconds({"TFACCEL_WORKER_WAIT_SECONDS": text})
    assert wait_seconds({"TFACCEL_WORKER_WAIT_SECONDS": "2.5"}) == 2.5
