"""Layers and operations of Keras 3 inside a `tf_keras` model, as they are. Used in a child process only.

Keras 3 on TensorFlow calculates with TensorFlow's own tensors and variables, so that one of its layers can be called
from a layer of `tf_keras`, and its variables trained and saved with it.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Mapping
from typing import Any

from tfaccel.compressing.saved_classes import made_again
from tfaccel.compressing.translation_graph import TENSOR, replaced
from tfaccel.errors import CompressionError

_PRUNABLE = ("kernel", "recurrent_kernel", "embeddings")


class _Held:
    """Keeps an object out of what `tf_keras` tracks."""

    def __init__(self, value: Any) -> None:
        self.value = value


def restored(serialized: Mapping[str, Any]) -> Any:
    """The Keras 3 layer or operation that was saved like this, built where it was built.

    Raises:
        CompressionError: if its class cannot be found or made again.
    """
    try:
        return made_again(serialized)
    except (TypeError, ValueError, ImportError, AttributeError) as error:
        name = serialized.get("config", {}).get("name")
        raise CompressionError(
            f"Layer {name!r} ({serialized.get('class_name')}) cannot be made again in another process: "
            f"{' '.join(str(error).split())[:300]}. Define its class at the top level of a module, with a get_config, "
            "or use a post-training method."
        ) from error


@functools.cache
def kept_layer_class() -> Any:
    """The class of `tf_keras` layers that hold a Keras 3 layer or operation."""
    import keras
    import tensorflow as tf
    import tf_keras

    class KeptLayer(tf_keras.layers.Layer):
        """Calls a Keras 3 layer or operation.

        Args:
            saved: JSON text: the layer as Keras 3 saves it.
            arguments: JSON text: {"args", "kwargs"} of its calls, in which tensors are {"__tensor__": number}.
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
            args, kwargs = revived(arguments["args"]), revived(arguments["kwargs"])
            # As in Keras's own models, what the model is called with goes before what its layers were called with.
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


def revived(structure: Any) -> Any:
    """The constants among the arguments as Keras 3 knows them (slices, say); tensors stay."""
    import keras

    if isinstance(structure, dict) and "class_name" in structure:
        return keras.saving.deserialize_keras_object(structure, safe_mode=False)
    if isinstance(structure, dict):
        return {name: revived(value) for name, value in structure.items()}
    return [revived(value) for value in structure] if isinstance(structure, list) else structure
