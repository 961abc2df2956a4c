"""Text classification: pooled embedding, bidirectional LSTM or Transformer, on documentation or your own texts.

References:
    Joulin et al., Bag of tricks for efficient text classification, 2016, https://arxiv.org/abs/1607.01759 (embedding)
    Graves and Schmidhuber, Framewise phoneme classification with bidirectional LSTM, 2005,
        https://doi.org/10.1016/j.neunet.2005.06.042 (lstm)
    Vaswani et al., Attention is all you need, 2017, https://arxiv.org/abs/1706.03762 (transformer)

Command:
    tfaccel train --recipe=text_classification --run_dir=runs/chapters --model=transformer
    tfaccel train --recipe=text_classification --run_dir=runs/mine --data_dir=FILE.csv

    FILE.csv has the columns `text` and `label`; or pass a folder with one subfolder per class, tfds:NAME or hf:NAME.

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
from pathlib import Path
from typing import Any, Literal

import tfaccel
from tfaccel import data, reporting

LEARNING_RATES = {"embedding": 1e-2, "lstm": 3e-3, "transformer": 1e-3}


# ---------- The models


def build_model(name: str, *, num_tokens: int, num_words: int, num_classes: int, dropout: float, remat: bool) -> Any:
    """Maps token ids to one logit (float32) per class."""
    import keras
    from keras import layers

    from tfaccel.layers import TokenEmbedding, TransformerBlock

    inputs = keras.Input((num_words,), dtype="int32", name="words")
    is_word = keras.ops.not_equal(inputs, 0)
    if name == "transformer":
        x = TokenEmbedding(num_tokens, max_length=num_words, width=64, dropout=dropout)(inputs)
        mask = keras.ops.reshape(is_word, (-1, 1, 1, num_words))
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


# ---------- The workload: data, model, optimizer and loss


@tfaccel.recipe(
    data_dir_only=("text_column", "label_column", "encoding"), adamw_learning_rate=lambda model: LEARNING_RATES[model]
)
def workload(
    *,
    # CSV or Parquet file, or folder with one subfolder of text files per class; None for passages of CPython's
    # documentation, labeled by chapter group
    data_dir: tfaccel.options.DataPath | None = None,
    model: Literal["embedding", "lstm", "transformer"] = "embedding",  # architecture
    num_words: tfaccel.options.Count = 100,  # max tokens of a text; the rest is cut off
    dropout: tfaccel.options.Fraction = 0.5,  # dropout rate inside the model
    token_dropout: tfaccel.options.Fraction = 0.4,  # fraction of tokens replaced by the unknown token in training
    label_smoothing: tfaccel.options.Fraction = 0.1,  # fraction of the target spread evenly over all classes
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
    examples = data.TextData(texts, num_words=num_words, token_dropout=token_dropout)
    sizes = {"num_tokens": len(examples.vocabulary), "num_words": num_words, "num_classes": len(texts.class_names)}

    def compile_args(num_steps: int) -> dict[str, Any]:
        import keras

        return {
            "optimizer": training.make_optimizer(num_steps=num_steps),
            "loss": keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=label_smoothing),
            "metrics": ["accuracy"],
        }

    return tfaccel.Workload(
        name=__name__,
        build_model=lambda: build_model(model, **sizes, dropout=dropout, remat=remat),
        compile_args=compile_args,
        data=examples,
        epochs=12,
        global_batch_size=32,
        bfloat16_on_cpu=model != "embedding",
    )


# ---------- The results: the model next to scikit-learn baselines


@workload.show_result
def show_result(work: tfaccel.Workload, result: tfaccel.TrainResult) -> reporting.BaselineScores:
    """Writes `vocabulary.json` and `classes.json`; compares the accuracy with linear classifiers."""
    run_dir, texts = Path(result.run_dir), work.data.source
    reporting.write_json(run_dir / "vocabulary.json", work.raw_input.vocabulary.to_json())
    reporting.write_json(run_dir / "classes.json", list(texts.class_names))
    train, test = (texts.train_texts, texts.train_labels), (texts.test_texts, texts.test_labels)
    return reporting.text_class_scores(result.final["accuracy"], train, test)


def classify(run_dir: tfaccel.options.DataPath, texts: Sequence[str]) -> list[str]:
    """Classifies each text with the model of a finished run; raises DataError if its files are missing."""
    import json

    from tfaccel.layers import load_text_model

    model, (vocabulary,) = load_text_model(run_dir, "vocabulary")
    names = json.loads(Path(run_dir, "classes.json").read_text())
    tokens = vocabulary.encode_all(texts, model.input_shape[1])
    return [names[number] for number in model.predict(tokens, verbose=0).argmax(axis=1)]


run = workload.run
