"""Text classification: pooled embedding, bidirectional LSTM, Transformer or a pretrained network, on your own texts.

References:
    Joulin et al., Bag of tricks for efficient text classification, 2016, https://arxiv.org/abs/1607.01759 (embedding)
    Graves and Schmidhuber, Framewise phoneme classification with bidirectional LSTM, 2005,
        https://doi.org/10.1016/j.neunet.2005.06.042 (lstm)
    Vaswani et al., Attention is all you need, 2017, https://arxiv.org/abs/1706.03762 (transformer)

Command:
    tfaccel train --recipe=text_classification --run_dir=runs/chapters --model=transformer
    tfaccel train --recipe=text_classification --run_dir=runs/mine --data_dir=FILE.csv
    tfaccel train --recipe=text_classification --run_dir=runs/mine --data_dir=FILE.csv --backbone=PRESET

    FILE.csv has the columns `text` and `label`; or pass a folder with one subfolder per class, tfds:NAME or hf:NAME.
    PRESET is a folder that KerasHub's `save_to_preset` wrote, or a name that KerasHub downloads, such as
    bert_base_en_uncased: its tokenizer and its network take the place of the recipe's.

Use: `classify("runs/mine", ["A text."])` in this module returns the class of each text.

Expected result on the documentation of CPython 3.11 (735 passages for training; 184 from other topics for testing; 5
chapter groups), the median of five seeds and their range, and CPU time in float32 on two cores of an AMD EPYC:
    pooled embedding                     51.6 % (50.0 to 52.2 %), 7 s
    Transformer, mixed_bfloat16          47.8 % (45.7 to 52.7 %), 28 s
    bidirectional LSTM, mixed_bfloat16   47.3 % (43.5 to 48.9 %), 22 s
    TF-IDF with logistic regression      48.9 %; with a linear SVM 46.7 %; most frequent class 22.8 %
    One passage is 0.5 %: with so few texts, no model is clearly better than the baseline.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import tfaccel
from tfaccel import data, reporting

LEARNING_RATES = {"embedding": 1e-2, "lstm": 3e-3, "transformer": 1e-3}
PRESET_LEARNING_RATE = 5e-5  # that of KerasHub's tasks


# ---------- The models


def build_model(
    name: str, *, num_tokens: int, num_words: int, num_classes: int, dropout: float, remat: bool, any_length: bool
) -> Any:
    """Maps token ids to one logit (float32) per class; those of up to `num_words` tokens with `any_length`."""
    import keras
    from keras import layers

    from tfaccel.layers import TokenEmbedding, TransformerBlock

    inputs = keras.Input((None if any_length else num_words,), dtype="int32", name="words")
    is_word = keras.ops.not_equal(inputs, 0)
    if name == "transformer":
        x = TokenEmbedding(num_tokens, max_length=num_words, width=64, dropout=dropout)(inputs)
        mask = is_word[:, None, None, :]
        for _ in range(2):
            x = TransformerBlock(num_heads=2, dropout=dropout, remat=remat)(x, attention_mask=mask)
        x = layers.LayerNormalization(epsilon=1e-5)(x)
    else:
        x = layers.Embedding(num_tokens, 64)(inputs)
        if name == "lstm":
            read = layers.Bidirectional(layers.LSTM(64, return_sequences=True))
            x = read(layers.Dropout(dropout)(x), mask=is_word)
    # The mean over all tokens except padding.
    x = layers.GlobalAveragePooling1D()(x, mask=is_word)
    x = layers.Dropout(dropout)(x)
    # Logits stay float32 under mixed precision: 16 bits are too coarse for the loss.
    return keras.Model(inputs, layers.Dense(num_classes, dtype="float32", name="logits")(x))


def build_preset_model(
    preset: Any, *, num_words: int, num_classes: int, dropout: float, remat: bool, any_length: bool
) -> Any:
    """Maps the tokens of a preset of KerasHub to one logit (float32) per class: its features, and a new head."""
    import keras
    from keras import layers

    from tfaccel.layers import preset_text_features, rematerialize

    features = preset_text_features(preset, num_tokens=num_words)
    if remat:
        rematerialize(features)
    shape = (None if any_length else num_words,)
    inputs = {name: keras.Input(shape, dtype=one.dtype, name=name) for name, one in features.input.items()}
    x = layers.Dropout(dropout)(features(inputs))
    return keras.Model(inputs, layers.Dense(num_classes, dtype="float32", name="logits")(x))


# ---------- The workload: data, model, optimizer and loss


@tfaccel.recipe(
    data_dir_only=("text_column", "label_column", "encoding"),
    adamw_learning_rate=lambda model, backbone: PRESET_LEARNING_RATE if backbone else LEARNING_RATES[model],
)
def workload(
    *,
    # CSV or Parquet file, or folder with one subfolder of text files per class; None for passages of CPython's
    # documentation, labeled by chapter group
    data_dir: tfaccel.options.DataPath | None = None,
    model: Literal["embedding", "lstm", "transformer"] = "embedding",  # architecture
    # preset of KerasHub to start from, a folder or a name; None for `model`, from random weights
    backbone: str | None = None,
    unit: Literal["words", "characters", "subwords"] = "words",  # unit of a token, without a backbone
    num_words: tfaccel.options.Count = 100,  # max tokens of a text; the rest is cut off
    dropout: tfaccel.options.Fraction = 0.5,  # dropout rate inside the model
    # fraction of tokens replaced by the unknown token in training; none with a backbone
    token_dropout: tfaccel.options.Fraction = 0.4,
    label_smoothing: tfaccel.options.Fraction = 0.1,  # fraction of the target spread evenly over all classes
    group_by_length: bool = False,  # batches of texts of similar lengths, cut to the longest: less padding
    remat: bool = False,  # recompute the activations of each Transformer block: less memory, more time
    text_column: str = "text",  # column with the texts, in a table
    label_column: str = "label",  # column with their classes
    encoding: str = "utf-8",  # text encoding of a CSV file or of text files
    bad_data: tfaccel.data.BadData,
    training: tfaccel.options.TrainingOptions,
) -> tfaccel.Workload:
    """Builds the workload. The texts are read and checked here."""
    if data_dir is None:
        texts = data.documentation_passages()
    else:
        reading = {"text_column": text_column, "label_column": label_column, "encoding": encoding}
        texts = data.read_labelled_texts(data_dir, **reading, bad_data=bad_data)
    sizes = {"num_words": num_words, "num_classes": len(texts.class_names), "dropout": dropout, "remat": remat}
    sizes["any_length"] = group_by_length
    if backbone is None:
        tokens = {"unit": unit, "token_dropout": token_dropout, "group_by_length": group_by_length}
        examples = data.TextData(texts, num_words=num_words, **tokens)
        build = partial(build_model, model, num_tokens=len(examples.vocabulary), **sizes)
    else:
        preset = data.find_preset(backbone)
        preset.check_takes("texts")
        examples = data.PresetTextData(texts, preset, num_tokens=num_words, group_by_length=group_by_length)
        build = partial(build_preset_model, preset, **sizes)

    def compile_args(num_steps: int) -> dict[str, Any]:
        import keras

        return {
            "optimizer": training.make_optimizer(num_steps=num_steps),
            "loss": keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=label_smoothing),
            "metrics": ["accuracy"],
        }

    return tfaccel.Workload(
        name=__name__,
        build_model=build,
        compile_args=compile_args,
        data=examples,
        options={"backbone": backbone and preset.name},  # for a folder, its absolute path
        epochs=12,
        global_batch_size=32,
        bfloat16_on_cpu=backbone is not None or model != "embedding",
    )


# ---------- The results: the model next to scikit-learn baselines


@workload.show_result
def show_result(work: tfaccel.Workload, result: tfaccel.TrainResult) -> reporting.BaselineScores:
    """Writes `vocabulary.json` or `preset.json`, and `classes.json`; compares the accuracy with linear classifiers."""
    if work.options["group_by_length"]:
        reporting.show_padding(*work.data.made().shares_of_padding(result.plan.global_batch_size))
    run_dir, texts = Path(result.run_dir), work.data.source
    if work.options["backbone"] is None:
        reporting.write_json(run_dir / "vocabulary.json", work.raw_input.vocabulary.to_json())
    else:
        reporting.write_json(run_dir / "preset.json", {name: work.options[name] for name in ("backbone", "num_words")})
    reporting.write_json(run_dir / "classes.json", list(texts.class_names))
    train, test = (texts.train_texts, texts.train_labels), (texts.test_texts, texts.test_labels)
    return reporting.text_class_scores(result.final["accuracy"], train, test)


def classify(run_dir: tfaccel.options.DataPath, texts: Sequence[str]) -> list[str]:
    """Classifies each text with the model of a finished run; raises DataError if its files are missing."""
    import json

    from tfaccel.layers import load_text_model

    if Path(run_dir, "preset.json").exists():
        of_preset = json.loads(Path(run_dir, "preset.json").read_text())
        tokens = data.encode_by_preset(data.find_preset(of_preset["backbone"]), texts, of_preset["num_words"])
        model, _ = load_text_model(run_dir)
    else:
        model, (vocabulary,) = load_text_model(run_dir, "vocabulary")
        num_words = json.loads(Path(run_dir, "raw_input.json").read_text())["num_tokens"]
        tokens = vocabulary.encode_all(texts, num_words)
    names = json.loads(Path(run_dir, "classes.json").read_text())
    return [names[number] for number in model.predict(tokens, verbose=0).argmax(axis=1)]


run = workload.run
