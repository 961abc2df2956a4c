"""Data for training: what users pass, as datasets of global batches.

The names below load their module when first used, since some of these import TensorFlow.
"""

from importlib import import_module
from typing import Any

# Public name -> the module that defines it.
_PUBLIC_NAMES = {
    "Augmentation": "tfaccel.data.pipeline",
    "CacheOptions": "tfaccel.data.cache_choice",
    "Pipeline": "tfaccel.data.pipeline",
    "read_image_set": "tfaccel.data.image_files",
    "read_labelled_texts": "tfaccel.data.text_labels",
    "write_tfrecords": "tfaccel.data.tfrecord_files",
}

__all__ = sorted(_PUBLIC_NAMES)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC_NAMES:
        return getattr(import_module(_PUBLIC_NAMES[name]), name)
    raise AttributeError(f"module 'tfaccel.data' has no attribute {name!r}. Public names: {', '.join(__all__)}.")


def __dir__() -> list[str]:
    return list(__all__)
