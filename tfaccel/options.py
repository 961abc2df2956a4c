"""Options of calls, and the values that they take: how to measure, to train, and to read raw inputs."""

from tfaccel.known_names import lazy_names

# Public name -> the module that defines it.
_PUBLIC_NAMES = {
    "BatchOptions": "tfaccel.measuring.batch_report",
    "MeasureOptions": "tfaccel.measuring.report",
    "TrainingOptions": "tfaccel.training.training_options",
    "Count": "tfaccel.training.recipe",
    "DataPath": "tfaccel.training.recipe",
    "Fraction": "tfaccel.training.recipe",
    "ImageInput": "tfaccel.data.raw_input",
    "TextInput": "tfaccel.data.raw_input",
    "TableInput": "tfaccel.data.raw_input",
    "SearchOptions": "tfaccel.tuning.options",
    "LearningRateTest": "tfaccel.tuning.learning_rate_report",
    "Device": "tfaccel.hardware.hardware",
}

__all__ = sorted(_PUBLIC_NAMES)
__getattr__, __dir__ = lazy_names(__name__, _PUBLIC_NAMES, __all__)
