"""TensorFlow's server listens on 127.0.0.1 if all workers are on this machine; otherwise the user is warned."""

import json

CODE = """
import json, logging, pathlib, socket
import tensorflow as tf
from tfaccel.processes.local_cluster import free_ports
from tfaccel.training.workers.rendezvous import Place
from tfaccel.training.workers.strategies import _only_as_public_as_needed

said = []
handler = logging.Handler()
handler.emit = lambda record: said.append(record.getMessage())
logging.getLogger("tfaccel").addHandler(handler)

def listens_on(port):
    found = set()
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path("/proc/self/net", table).read_text().splitlines()[1:]:
            address, state = line.split()[1], line.split()[3]
            if state == "0A" and int(address.rpartition(":")[2], 16) == port:
                found.add(address.rpartition(":")[0])
    return sorted(found)

outcomes = {}
for host in ("127.0.0.1", "localhost", "192.0.2.7"):
    (port,) = free_ports(1)
    said.clear()
    with _only_as_public_as_needed(Place((f"{host}:{port}",), 0)):
        server = tf.distribute.Server({"worker": [f"127.0.0.1:{port}"]}, job_name="worker", task_index=0)
    outcomes[host] = [port, listens_on(port), list(said)]
print(json.dumps(outcomes))
"""
LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}
ANY = {"00000000", "00000000000000000000000000000000"}


def test_servers_listen_on_loopback_or_the_user_is_warned(run_python):
    outcomes = json.loads(run_python(CODE).stdout.splitlines()[-1])
    for host in ("127.0.0.1", "localhost"):
        _, addresses, said = outcomes[host]
        assert addresses, host
        assert set(addresses) <= LOOPBACK, host
        assert said == []
    port, addresses, said = outcomes["192.0.2.7"]
    assert set(addresses) & ANY  # which the warning is about
    assert said == [
        f"TensorFlow's server on port {port} has no authentication: whoever can reach it can run programs here. Let a "
        "firewall or a network policy admit the workers only."
    ]
