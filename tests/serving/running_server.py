"""A SavedModel that is built in a moment, and a server of it in a process of its own."""

import http.client
import json
import re
import signal
import subprocess
import sys
import time

import numpy as np

from tfaccel.data.raw_input import ImageInput

NAME = "images"
RAW = ImageInput(image_size=8, num_channels=1, class_names=("zero", "one", "two"))
ROW = np.arange(64.0).reshape(8, 8, 1).tolist()
PREDICT = f"/v1/models/{NAME}:predict"


def build(folder, *, bias, slow_steps=40):
    """A SavedModel whose logits are the mean of the pixels and two numbers; its signature `slow` takes its time."""
    import keras
    import tensorflow as tf

    from tfaccel.exporting.sample_rows import raw_rows, sample_rows
    from tfaccel.exporting.saved_model_files import write_saved_model
    from tfaccel.exporting.signatures import make_signatures, traced

    pixels = keras.Input((8, 8, 1), name="pixels")
    mean = keras.layers.GlobalAveragePooling2D()(pixels)
    start = keras.initializers.Constant
    layer = keras.layers.Dense(
        3, kernel_initializer=start([[1.0, 0.0, -1.0]]), bias_initializer=start(bias), name="logits"
    )
    model = keras.Model(pixels, layer(mean))
    signatures = make_signatures(model, RAW)
    inner = signatures.traced["serving_default"]

    def slow(pixels):
        big = tf.random.uniform((900, 900)) * 1e-3
        for _ in range(slow_steps):
            big = tf.linalg.matmul(big, big) * 1e-3
        return {"logits": inner(pixels=pixels)["logits"] + 0.0 * tf.reduce_sum(big)}

    signatures.traced["slow"], signatures.functions["slow"] = traced(slow, {"pixels": signatures.inputs["pixels"]})
    rows = sample_rows(signatures.inputs, model, RAW, num_rows=1)
    requests = [("serving_default", rows), ("serving_raw", raw_rows(RAW, rows))]
    write_saved_model(folder, signatures, name=NAME, raw_input=RAW, requests=requests)


class Server:
    """A running server of a model; of those that flags name, if that is None."""

    def __init__(self, model, *flags):
        models = [] if model is None else [f"--model={model}"]
        command = [sys.executable, "-m", "tfaccel.scripts.serve", *models, "--port=0", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        assert "Serving" in line, self.process.stderr.read()
        self.is_asked_to_end = False
        self.port = int(re.search(r":(\d+)/", line)[1])
        grpc = re.search(r"gRPC at (\S+)", line)
        self.grpc = None if grpc is None else grpc[1]

    def ask(self, method, path, body=None, headers=None):
        """Status, headers and body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            body = json.dumps(body) if isinstance(body, (dict, list)) else body
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def ask_to_end(self):
        """Sends SIGTERM, once."""
        if not self.is_asked_to_end:
            self.is_asked_to_end = True
            self.process.send_signal(signal.SIGTERM)

    def json(self, path, body=None):
        status, _, content = self.ask("GET" if body is None else "POST", path, body)
        return status, json.loads(content)

    def end_and_read(self):
        """Waits for the end; returns what the server wrote on standard error."""
        return self.process.communicate(timeout=60)[1]

    def end(self):
        """Asks the server to end, once; returns its exit status."""
        self.ask_to_end()
        try:
            self.process.communicate(timeout=60)
        finally:
            self.process.kill()
            self.process.communicate()  # another test would be blamed for what is left open
        return self.process.returncode


def wait_for(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
