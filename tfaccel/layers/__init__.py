"""Layers, models and losses for the ready recipes and for your own models.

Names load their module on first use, since these import TensorFlow.
"""

from tfaccel.known_names import lazy_names

# Public name -> the module that defines it, and its name there if that differs.
_PUBLIC_NAMES = {
    "BeamSearch": "tfaccel.models.beam_search",
    "ConditionalGan": "tfaccel.models.conditional_gan",
    "CopyingDecoder": "tfaccel.models.sequence_to_sequence",
    "GeneratorAverage": "tfaccel.models.conditional_gan",
    "LstmLanguageModel": "tfaccel.models.transformer",
    "QuantileLoss": "tfaccel.models.losses",
    "SampleJudge": "tfaccel.models.sample_judge",
    "Sampling": "tfaccel.models.sampling",
    "TextDecoder": "tfaccel.models.sequence_to_sequence",
    "TextEncoder": "tfaccel.models.sequence_to_sequence",
    "TokenCrossentropy": "tfaccel.models.losses",
    "TokenEmbedding": "tfaccel.models.transformer",
    "TokenWriter": "tfaccel.models.sampling",
    "TransformerBlock": "tfaccel.models.transformer",
    "TransformerLanguageModel": "tfaccel.models.transformer",
    "bernoulli_cost": "tfaccel.models.losses",
    "bounds": "tfaccel.models.losses",
    "column_inputs": "tfaccel.data.tables.layers",
    "detection_loss": "tfaccel.models.centre_detector",
    "divergence_cost": "tfaccel.models.losses",
    "find_backbone": "tfaccel.models.backbones",
    "known_tokens": "tfaccel.models.sequence_to_sequence",
    "layer_stages": "tfaccel.training.optimizers",
    "load_text_model": "tfaccel.models.sequence_to_sequence",
    "median_absolute_error": "tfaccel.models.losses",
    "normal_cost": "tfaccel.models.losses",
    "preset_text_features": "tfaccel.models.pretrained",
    "prepared_backbone": "tfaccel.models.pretrained",
    "read_detections": "tfaccel.models.centre_detector",
    "rematerialize": "tfaccel.training.steps.rematerialized",
    "sample_inputs": "tfaccel.models.sample_judge",
    "spliced": "tfaccel.models.losses",
    "staged_optimizer": "tfaccel.training.optimizers",
    "table_inputs": "tfaccel.data.tables.layers",
}

__all__ = sorted(_PUBLIC_NAMES)
__getattr__, __dir__ = lazy_names(__name__, _PUBLIC_NAMES, __all__)
