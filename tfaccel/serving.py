"""Options of `tfaccel.serve`, and the models that it serves."""

from tfaccel.known_names import lazy_names

# Public name -> the module that defines it.
_PUBLIC_NAMES = {
    "ModelConfig": "tfaccel.extras.serving.model_config",
    "ServeOptions": "tfaccel.extras.serving.options",
}

__all__ = sorted(_PUBLIC_NAMES)
__getattr__, __dir__ = lazy_names(__name__, _PUBLIC_NAMES, __all__)
