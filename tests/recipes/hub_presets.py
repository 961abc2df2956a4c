"""A child process that writes small presets of KerasHub with random weights: "bert" for texts, "vit" for images.

Argument: the folder to write them to.
"""

import sys
from pathlib import Path

import keras
import keras_hub

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = ("the", "one", "red", "green", "blue", "white", "saw", "file", "drill", "axe")


def write_presets(folder: Path) -> None:
    keras.utils.set_random_seed(0)
    models = keras_hub.models
    tokenizer = models.BertTokenizer(vocabulary=[*SPECIAL, *WORDS])
    texts = models.BertTextClassifier(
        models.BertBackbone(
            vocabulary_size=len(SPECIAL) + len(WORDS),
            num_layers=1,
            num_heads=2,
            hidden_dim=16,
            intermediate_dim=16,
            max_sequence_length=8,
            dropout=0.0,
        ),
        num_classes=2,
        preprocessor=models.BertTextClassifierPreprocessor(tokenizer, sequence_length=8),
    )
    texts.save_to_preset(str(folder / "bert"))
    converter = keras_hub.layers.ViTImageConverter(image_size=(8, 8), scale=[0.01, 0.02, 0.03], offset=[-1.0, 0.0, 1.0])
    images = models.ViTImageClassifier(
        models.ViTBackbone(
            image_shape=(8, 8, 3), patch_size=(4, 4), num_layers=1, num_heads=2, hidden_dim=8, mlp_dim=8
        ),
        num_classes=3,
        preprocessor=models.ViTImageClassifierPreprocessor(converter),
    )
    images.save_to_preset(str(folder / "vit"))


if __name__ == "__main__":
    write_presets(Path(sys.argv[1]))
