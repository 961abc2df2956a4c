"""The data of text workloads that start from a preset of KerasHub: the preset's own tokens of labelled texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfaccel.data.class_labels import LabelledTexts
from tfaccel.data.epochs import Batches
from tfaccel.data.hub_presets import Preset
from tfaccel.data.in_memory import TextBatches, filled_columns
from tfaccel.data.raw_input import RawInput


class PresetTextData(Batches):
    """Batches of a preset's tokens and one-hot classes (float32). The texts are `source`.

    Args:
        texts: a `LabelledTexts`.
        preset: from `find_preset`. Its tokenizer is loaded, and encodes all texts, on first use.
        num_tokens: tokens per text; longer texts are cut off, shorter ones padded.
        group_by_length: as of `TextData`.

    Example:
        >>> from tfaccel.data import documentation_passages, find_preset
        >>> data = PresetTextData(documentation_passages(), find_preset("bert_tiny_en_uncased"), num_tokens=64)
        >>> data.num_train_examples == len(data.source.train_texts)
        True
    """

    source: LabelledTexts

    def __init__(self, texts: LabelledTexts, preset: Preset, *, num_tokens: int, group_by_length: bool = False) -> None:
        self._preset, self._num_tokens, self._group_by_length = preset, num_tokens, group_by_length
        super().__init__(
            texts,
            self._batches,
            num_train_examples=len(texts.train_texts),
            several_epochs=True,
            takes_every=True,
            raw_input=RawInput(class_names=tuple(map(str, texts.class_names))),
        )

    def _batches(self) -> Any:
        texts, one_hot = self.source, np.eye(len(self.source.class_names), dtype=np.float32)
        both = encode_by_preset(self._preset, [*texts.train_texts, *texts.test_texts], self._num_tokens)
        num_train = len(texts.train_texts)
        train, test = ({name: rows[part] for name, rows in both.items()} for part in _parts(num_train))
        lengths = None
        if self._group_by_length:
            lengths = dict.fromkeys(train, filled_columns(train["padding_mask"])), None
        return TextBatches(
            (train, one_hot[list(texts.train_labels)]), (test, one_hot[list(texts.test_labels)]), lengths=lengths
        )


def _parts(num_train: int) -> tuple[slice, slice]:
    return slice(num_train), slice(num_train, None)


def encode_by_preset(preset: Preset, texts: Sequence[str], num_tokens: int) -> dict[str, np.ndarray]:
    """The inputs of a preset's text classifier, int32 or bool arrays of shape (texts, num_tokens), by name.

    Args:
        preset: from `find_preset`.
        texts: the texts.
        num_tokens: tokens per text; longer texts are cut off, shorter ones padded.

    Raises:
        WorkloadError: if the preset has no tokenizer, or cannot be loaded.
    """
    preprocessor = preset.load("TextClassifierPreprocessor", sequence_length=num_tokens)
    return {name: np.asarray(rows) for name, rows in preprocessor(list(texts)).items()}
