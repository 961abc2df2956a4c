"""A SavedModel with a signature for each dtype, and a client of gRPC."""

import grpc
import tensorflow as tf
from tensorflow_serving.apis import model_service_pb2_grpc, predict_pb2, prediction_service_pb2_grpc

ECHO = (
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "bool",
    "string",
    "complex64",
    "complex128",
)


def write_echo(folder, *, start):
    """`serving_default` gives half of `x` and `start`; `echo_DTYPE` what it gets; others take `tf.train.Example`."""
    module, made = tf.Module(), {}

    def add(name, function, **inputs):
        specs = [tf.TensorSpec(shape, kind, name=key) for key, (shape, kind) in inputs.items()]
        made[name] = tf.function(function, input_signature=specs, autograph=False)

    def parsed(inputs):
        features = {"x": tf.io.FixedLenFeature((), tf.float32), "n": tf.io.FixedLenFeature((), tf.int64, 0)}
        found = tf.io.parse_example(inputs, features)
        return found["x"] + tf.cast(found["n"], tf.float32)

    def classify(inputs):
        total = parsed(inputs)
        return {"scores": tf.stack([-total, total], 1), "classes": tf.tile([["low", "high"]], [tf.shape(inputs)[0], 1])}

    add("serving_default", lambda x: {"y": 0.5 * x + start, "z": -x}, x=((None,), tf.float32))
    for kind in ECHO:
        add(f"echo_{kind}", lambda x: {"x": tf.identity(x)}, x=((None,), tf.as_dtype(kind)))
    add("free", lambda x: {"x": tf.reshape(x, [-1])}, x=(None, tf.float32))
    add("scalar", lambda x, rows: {"x": x + rows}, x=((), tf.float32), rows=((None, 2), tf.float32))
    add("classify", classify, inputs=((None,), tf.string))
    add("regress", lambda inputs: {"outputs": parsed(inputs)}, inputs=((None,), tf.string))
    tf.saved_model.save(module, str(folder), signatures=made)


class Client:
    """Stubs of a server's services."""

    def __init__(self, address):
        self.channel = grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        self.predictions = prediction_service_pb2_grpc.PredictionServiceStub(self.channel)
        self.models = model_service_pb2_grpc.ModelServiceStub(self.channel)

    def predict(self, name, signature="", spec=None, output_filter=(), **tensors):
        """The answer; `tensors` are messages, or values of float32."""
        request = predict_pb2.PredictRequest(output_filter=output_filter)
        fill_spec(request.model_spec, name, signature, **(spec or {}))
        for key, value in tensors.items():
            is_message = hasattr(value, "tensor_shape")
            request.inputs[key].CopyFrom(value if is_message else tf.make_tensor_proto(value, tf.float32))
        return self.predictions.Predict(request, timeout=60)

    def raw(self, content, method="Predict", **options):
        """What is answered to bytes."""
        call = self.channel.unary_unary(f"/tensorflow.serving.PredictionService/{method}")
        return call(content, timeout=60, **options)


def fill_spec(spec, name, signature="", version=None, label=None):
    spec.name, spec.signature_name = name, signature
    if version is not None:
        spec.version.value = version
    if label is not None:
        spec.version_label = label


def arrays(answer):
    return {name: tf.make_ndarray(value).tolist() for name, value in answer.outputs.items()}


def refused(call, *arguments, **options):
    """The code and the message of an error."""
    try:
        found = call(*arguments, **options)
    except grpc.RpcError as error:
        return error.code().name, error.details()
    raise AssertionError(f"It was answered: {found}")
