"""Private API of TFMOT and `tf_keras` that tfaccel uses. Imported in a child process only.

TFMOT's public API does not tell which layers can be quantized, pruned or clustered, and has no configuration that
quantizes only a layer's output. A missing private name raises `VersionError`.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any

from tfaccel.errors import VersionError
from tfaccel.tested_versions import TESTED, installed_version, private_part

_TFMOT = "tensorflow-model-optimization"


def allow_lambdas() -> None:
    """Lets `tf_keras` clone models with lambdas, as TFMOT's have."""
    import tf_keras

    private_part(tf_keras, "__internal__.enable_unsafe_deserialization", package="tf-keras")()


def has_mask(tensor: Any) -> bool:
    """Whether a layer of `tf_keras` has set a mask on its output; `Layer.output_mask` is of layers called once."""
    return getattr(tensor, "_keras_mask", None) is not None


def output_config_class() -> Any:
    """The class of configurations that quantize only a layer's output."""
    return _tfmot_part(
        "quantization.keras.default_8bit.default_8bit_quantize_configs", "Default8BitOutputQuantizeConfig"
    )


def prunable_weights(layer: Any) -> list[Any] | None:
    """The variables of a layer that TFMOT prunes; None where it does not know the layer."""
    registry = _tfmot_part("sparsity.keras.prune_registry", "PruneRegistry")
    if not hasattr(layer, "get_prunable_weights"):
        if not registry.supports(layer):
            return None
        registry.make_prunable(layer)
    return list(layer.get_prunable_weights())


def can_be_clustered(layer: Any) -> bool:
    """Whether TFMOT knows how to cluster the weights of a layer."""
    registry = _tfmot_part("clustering.keras.clustering_registry", "ClusteringRegistry")
    try:
        return bool(registry.supports(layer))
    except AttributeError:  # a layer without cells that TFMOT treats as recurrent
        return False


@functools.cache
def _tfmot_part(module: str, name: str) -> Any:
    try:
        found = import_module(f"tensorflow_model_optimization.python.core.{module}")
    except ModuleNotFoundError as error:
        raise VersionError(
            f"{_TFMOT} {installed_version(_TFMOT)} has no module `{error.name}`, which tfaccel needs. Install a "
            f"version that has it: pip install '{_TFMOT}=={TESTED[_TFMOT][-1]}.*'."
        ) from error
    return private_part(found, name, package=_TFMOT)
