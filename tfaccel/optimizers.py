"""Optimizers that Keras does not have."""

from tfaccel.known_names import lazy_names

# Public name -> the module that defines it.
_PUBLIC_NAMES = {
    "Lars": "tfaccel.training.optimizers",
}

__all__ = sorted(_PUBLIC_NAMES)
__getattr__, __dir__ = lazy_names(__name__, _PUBLIC_NAMES, __all__)
