"""Servers of stores' protocols on this machine, for tests: S3 (moto) and Google Cloud Storage (gcp-storage-emulator).

    python remote_stores.py s3|gs

Prints the environment that leads clients to it, as JSON, and serves the empty bucket `bucket` until it is ended.
"""

import contextlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def store(kind: str) -> Iterator[dict[str, str]]:
    """Runs a server in a process of its own; yields the environment of its clients."""
    command = [sys.executable, "-W", "ignore", str(Path(__file__)), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        try:
            assert child.stdout is not None
            yield json.loads(child.stdout.readline())
        finally:
            child.kill()


def _s3() -> dict[str, str]:
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address, keys = f"http://{host}:{port}", {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    boto3.client("s3", endpoint_url=address, region_name="us-east-1", **keys).create_bucket(Bucket="bucket")
    named = {name.upper(): value for name, value in keys.items()}
    return {"AWS_ENDPOINT_URL": address, "AWS_DEFAULT_REGION": "us-east-1", **named}


def _gs() -> dict[str, str]:
    from gcp_storage_emulator.server import create_server

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    create_server("127.0.0.1", port, in_memory=True, default_bucket="bucket").start()
    return {
        "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}",
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    }


if __name__ == "__main__":
    print(json.dumps({"s3": _s3, "gs": _gs}[sys.argv[1]]()), flush=True)
    threading.Event().wait()
