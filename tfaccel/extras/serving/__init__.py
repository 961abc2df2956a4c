"""A server for exported models that speaks TensorFlow Serving's REST protocol."""
