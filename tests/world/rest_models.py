"""Models like those that TensorFlow Serving's documentation and tests ask, as TensorFlow 1 and 2 write them."""

import tensorflow as tf

v1 = tf.compat.v1
DTYPES = ("int8", "uint8", "int16", "int32", "uint32", "int64", "uint64", "float32", "float64", "bool", "string")


def write_half_plus(folder, number, *, old):
    """y = 0.5 x + a number. `old` has variables that are references, and sets one when it is loaded."""
    with tf.Graph().as_default(), v1.Session() as session:
        a = v1.Variable(0.5, name="a", use_resource=not old)
        b = v1.Variable(number - 1.0, name="b", use_resource=not old)
        once = v1.group(v1.assign(b, number), name="once")
        x = v1.placeholder(tf.float32, name="x")
        messages = v1.placeholder(tf.string, name="tf_example")
        parsed = v1.io.parse_example(messages, {"x": v1.io.FixedLenFeature([1], tf.float32)})
        y, y_of_example = a * x + b, a * parsed["x"] + b
        session.run(v1.global_variables_initializer())
        info = v1.saved_model.build_tensor_info
        builder = v1.saved_model.Builder(str(folder))
        define = v1.saved_model.build_signature_def
        examples = {"inputs": info(messages)}
        regress = define(examples, {"outputs": info(y_of_example)}, "tensorflow/serving/regress")
        classify = define(examples, {"scores": info(y_of_example)}, "tensorflow/serving/classify")
        signatures = {
            "serving_default": define({"x": info(x)}, {"y": info(y)}, "tensorflow/serving/predict"),
            "tensorflow/serving/regress": regress,
            "regress_x_to_y": regress,
            "classify_x_to_y": classify,
        }
        tags = [tf.saved_model.SERVING]
        builder.add_meta_graph_and_variables(session, tags, signature_def_map=signatures, main_op=once)
        builder.save()


def write_counter(folder):
    """A variable that requests change."""
    with tf.Graph().as_default(), v1.Session() as session:
        counter = v1.Variable(0.0, name="counter", use_resource=False)
        delta = v1.placeholder(tf.float32, name="delta")
        results = {
            "get_counter": counter,
            "incr_counter": counter.assign_add(1.0),
            "incr_counter_by": counter.assign_add(delta),
            "reset_counter": counter.assign(0.0),
        }
        session.run(v1.global_variables_initializer())
        info = v1.saved_model.build_tensor_info
        signatures = {
            name: v1.saved_model.build_signature_def(
                {"delta": info(delta)} if name == "incr_counter_by" else {},
                {"output": info(result)},
                "tensorflow/serving/predict",
            )
            for name, result in results.items()
        }
        builder = v1.saved_model.Builder(str(folder))
        builder.add_meta_graph_and_variables(session, [tf.saved_model.SERVING], signature_def_map=signatures)
        builder.save()


def write_nest(folder):
    """Signatures of several inputs and outputs, of labels and scores, of free sizes, and of every kind of values."""
    module, made = tf.Module(), {}

    def add(name, function, **specs):
        inputs = {key: tf.TensorSpec(shape, dtype, name=key) for key, (shape, dtype) in specs.items()}
        made[name] = tf.function(function, autograph=False).get_concrete_function(**inputs)

    def of_three(tag, signal, sensor):
        return {"tag": tag, "total": tf.reduce_sum(signal, 1), "sensor": sensor}

    add(
        "serving_default",
        of_three,
        tag=((None,), tf.string),
        signal=((None, 5), tf.int64),
        sensor=((None, 2, 2), tf.float32),
    )
    add("echo_bytes", lambda text: {"text_bytes": text}, text=((None,), tf.string))
    add("free", lambda a, b: {"a": a, "b": b}, a=((None,), tf.float32), b=((), tf.float32))
    add("pairs", lambda pair: {"sum": tf.reduce_sum(pair, [1, 2])}, pair=((None, 1, 2), tf.float32))
    for dtype in DTYPES:
        add(dtype, lambda x: {"y": tf.identity(x)}, x=((None,), tf.as_dtype(dtype)))

    def of_examples(inputs):
        features = {
            "words": tf.io.VarLenFeature(tf.string),
            "n": tf.io.FixedLenFeature([2], tf.int64, [0, 0]),
            "x": tf.io.FixedLenFeature([], tf.float32, 0.0),
        }
        parsed = tf.io.parse_example(inputs, features)
        words = tf.sparse.to_dense(parsed["words"])
        lengths = tf.cast(tf.reduce_sum(tf.strings.length(words), 1), tf.float32)
        total = lengths + tf.cast(tf.reduce_sum(parsed["n"], 1), tf.float32) + parsed["x"]
        labels = tf.tile([["low", "high"]], [tf.shape(inputs)[0], 1])
        return {"scores": tf.stack([-total, total], 1), "classes": labels}

    add("classify", of_examples, inputs=((None,), tf.string))
    add("total", lambda inputs: {"outputs": of_examples(inputs)["scores"][:, 1]}, inputs=((None,), tf.string))
    tf.saved_model.save(module, str(folder), signatures=made)
