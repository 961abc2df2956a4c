"""Keras 3 layers and operations kept inside a `tf_keras` model. Used in a child process only.

Keras 3 on TensorFlow computes with TensorFlow tensors and variables, so a `tf_keras` layer can call a Keras 3 layer,
and train and save its variables.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Mapping
from typing import Any

from tfaccel.compressing.tfmot.saved_classes import rebuild
from tfaccel.compressing.tfmot.translation_graph import TENSOR, replaced
from tfaccel.errors import CompressionError

_PRUNABLE = ("kernel", "recurrent_kernel", "embeddings")


class _Held:
    """Hides an object from `tf_keras`'s tracking."""

    def __init__(self, value: Any) -> None:
        self.value = value


def restored(serialized: Mapping[str, Any]) -> Any:
    """Deserializes a Keras 3 layer or operation, and builds it if it was built.

    Raises:
        CompressionError: if its class cannot be found or deserialized.
    """
    try:
        return rebuild(serialized)
    except (TypeError, ValueError, ImportError, AttributeError) as error:
        name = serialized.get("config", {}).get("name")
        raise CompressionError(
            f"Layer {name!r} ({serialized.get('class_name')}) cannot be rebuilt in another process: "
            f"{' '.join(str(error).split())[:300]}. Define its class at the top level of a module, with a get_config, "
            "or use a post-training method."
        ) from error


@functools.cache
def kept_layer_class() -> Any:
    """The class of `tf_keras` layers that wrap a Keras 3 layer or operation."""
    import keras
    import tensorflow as tf
    import tf_keras

    class KeptLayer(tf_keras.layers.Layer):
        """Calls a Keras 3 layer or operation.

        Args:
            saved: the serialized Keras 3 layer, as JSON text.
            arguments: {"args", "kwargs"} of its calls as JSON text, with tensors as {"__tensor__": number}.
        """

        def __init__(self, saved: str, arguments: str, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self._saved, self._arguments = saved, arguments
            layer = restored(json.loads(saved))
            self._held = _Held(layer)
            self._calls_layer = isinstance(layer, keras.layers.Layer)
            self._takes_training = self._calls_layer and "training" in inspect.signature(layer.call).parameters
            self.supports_masking = bool(self._calls_layer and layer.supports_masking)
            # A list of variables, so that they are trained, copied and saved with this layer.
            self._variables_of_keras = [variable.value for variable in layer.variables] if self._calls_layer else []

        @property
        def keras_layer(self) -> Any:
            return self._held.value

        def call(self, inputs: Any, training: Any = None) -> Any:
            return tf.autograph.experimental.do_not_convert(self._call_keras)(inputs, training)

        def _call_keras(self, inputs: Any, training: Any) -> Any:
            tensors = tf.nest.flatten(inputs)
            arguments = replaced(json.loads(self._arguments), lambda number: tensors[number])
            args, kwargs = deserialize_constants(arguments["args"]), deserialize_constants(arguments["kwargs"])
            # As in Keras's own models, the model's `training` argument takes precedence over the layer's.
            if self._takes_training and (training is not None or "training" not in kwargs):
                kwargs["training"] = bool(tf.get_static_value(training)) if tf.is_tensor(training) else bool(training)
            return self._held.value(*args, **kwargs)

        def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
            if not self.supports_masking:
                return None
            return tf.autograph.experimental.do_not_convert(self._held.value.compute_mask)(inputs, mask)

        def get_prunable_weights(self) -> list[Any]:
            """The variables that TFMOT may prune."""
            return [v.value for v in self.kernels()]

        def kernels(self) -> list[Any]:
            """The Keras 3 variables that are kernels or tables."""
            variables = self._held.value.trainable_variables if self._calls_layer else []
            return [v for v in variables if v.name in _PRUNABLE and len(v.shape) >= 2]

        def get_config(self) -> dict[str, Any]:
            return {**super().get_config(), "saved": self._saved, "arguments": self._arguments}

    return KeptLayer


def numbered(args: Any, kwargs: Any) -> tuple[str, list[str]]:
    """The arguments of a call as `KeptLayer` takes them, and the names of the tensors in the order of their numbers.

    Example:
        >>> numbered([{"__tensor__": "in:0"}, 2], {})
        ('{"args": [{"__tensor__": 0}, 2], "kwargs": {}}', ['in:0'])
    """
    names: list[str] = []

    def number(name: str) -> dict[str, int]:
        names.append(name)
        return {TENSOR: len(names) - 1}

    arguments = replaced({"args": args, "kwargs": kwargs}, number)
    return json.dumps(arguments), names


def deserialize_constants(structure: Any) -> Any:
    """Deserializes constants among the arguments (such as slices); tensors are left as they are."""
    import keras

    if isinstance(structure, dict) and "class_name" in structure:
        return keras.saving.deserialize_keras_object(structure, safe_mode=False)
    if isinstance(structure, dict):
        return {name: deserialize_constants(value) for name, value in structure.items()}
    return [deserialize_constants(value) for value in structure] if isinstance(structure, list) else structure
