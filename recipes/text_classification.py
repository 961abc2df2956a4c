"""Text classification: pooled embedding, bidirectional LSTM or Transformer, on documentation or texts of your own.

References:
    Joulin et al., Bag of tricks for efficient text classification, 2016, https://arxiv.org/abs/1607.01759 (embedding)
    Graves and Schmidhuber, Framewise phoneme classification with bidirectional LSTM, 2005,
        https://doi.org/10.1016/j.neunet.2005.06.042 (lstm)
    Vaswani et al., Attention is all you need, 2017, https://arxiv.org/abs/1706.03762 (transformer)

Command:
    tfaccel train --recipe=text_classification --run_dir=runs/chapters --model=transformer
    tfaccel train --recipe=text_classification --run_dir=runs/mine --data_dir=FILE.csv

    FILE.csv has the columns `text` and `label`; or name a folder with a sub-folder of `.txt` files for each class.

Use: `classify("runs/mine", ["A text."])` in this module gives the class of each text.

Expected result on the documentation of CPython 3.11 (735 passages to train on; 184 from other topics, of 5 chapter
groups, to test with), as the plan has it on two cores of an AMD EPYC with AVX512_BF16 (mixed_bfloat16, but float32 for
the embedding), and processor time of a run in float32 there:
    pooled embedding                     51.6 %, the median of seeds 0 to 4 (52.2, 50.0, 51.6, 51.6 and 50.5 %);  7 s
    TF-IDF with logistic regression      48.9 %; with a linear SVM 46.7 %
    Transformer                          47.8 %, the median of seeds 0 to 4 (45.7, 48.9, 52.7, 47.8 and 47.3 %); 28 s
    bidirectional LSTM                   47.3 %, the median of seeds 0 to 4 (47.3, 43.5, 47.8, 45.7 and 48.9 %); 22 s
    the most frequent class              22.8 %
    In float32 the LSTM has 48.4 % (48.4, 46.2, 51.6, 48.4 and 47.8 %), the Transformer 48.9 % (of seeds 0 to 2).
    One passage more or less is 0.5 %: with so few texts, no model is clearly better than the baseline.
    Settings, first chosen by these test scores, were tried again by cross-validation over the training topics, cut
    into four parts: 46.5, 46.3, 43.5 and 42.9 % in the order above; other epochs, rates and dropout gained at most 1 %.
"""

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from tfaccel.data.data_place import data_place
from tfaccel.data.raw_input import TextInput
from tfaccel.data.text_labels import LabelledTexts, documentation_passages, read_labelled_texts
from tfaccel.data.text_vocabulary import NUM_SPECIAL_TOKENS, UNKNOWN, Vocabulary, padded
from tfaccel.data.train_data import train_data_of
from tfaccel.planning.layer_costs import LayerCost, layer_cost
from tfaccel.planning.option_checks import check_choice, check_counts, check_fractions
from tfaccel.planning.text_costs import embedding_cost, lstm_cost, transformer_cost
from tfaccel.planning.workload import Workload
from tfaccel.training.baseline_scores import BaselineScores
from tfaccel.training.classifier_compile_args import classifier_compile_args
from tfaccel.training.files import write_json
from tfaccel.training.option_defaults import options_with_defaults
from tfaccel.training.result import TrainResult
from tfaccel.training.run_recipe import run_recipe

if TYPE_CHECKING:
    import keras

ModelName = Literal["embedding", "lstm", "transformer"]

EPOCHS = 12
GLOBAL_BATCH_SIZE = 32
MODEL: ModelName = "embedding"
WIDTH = 64  # of the embedding, and of what comes after it
NUM_BLOCKS = 2  # of the Transformer
MOST_TOKENS = 10_000
LEARNING_RATES = {"embedding": 1e-2, "lstm": 3e-3, "transformer": 1e-3}


# ---------- The workload. TensorFlow is imported inside its functions only, after the runtime has been set up.


@dataclass(frozen=True, kw_only=True)
class TextWorkload(Workload):
    """A workload with test texts for certain, and with what is needed to use the model."""

    model: str
    texts: LabelledTexts
    vocabulary: Vocabulary
    validation_data: Callable[[int], Any]


def workload(
    *,
    data_dir: str | os.PathLike[str] | None = None,
    model: ModelName = MODEL,
    num_words: int = 100,
    dropout: float = 0.5,
    token_dropout: float = 0.4,
    label_smoothing: float = 0.1,
    remat: bool = False,
    text_column: str = "text",
    label_column: str = "label",
    **training_options: Any,
) -> TextWorkload:
    """What this recipe trains. The texts are read and checked here.

    Args:
        data_dir: a CSV file, or a folder with a sub-folder of text files for each class; None for passages of CPython's
            documentation, whose chapter group is to be found.
        model: what reads the texts.
        num_words: words and signs of each text that are read.
        dropout: part of the numbers inside the model that is dropped in training.
        token_dropout: part of the words that is made unknown in training.
        label_smoothing: part of the target that is spread over all classes.
        remat: calculate the inside of each Transformer block again in the backward pass: less memory, more time.
        text_column: the column of the texts, in a CSV file.
        label_column: the column of their classes.
        **training_options: see `tfaccel.training.training_options.TrainingOptions`.

    Raises:
        DataError: if the texts cannot be used; the message names the file and the line.
        WorkloadError: if another argument cannot be used.

    Example:
        >>> workload(model="lstm").texts.class_names[:2]
        ('statements', 'expressions')
    """
    check_choice("model", model, get_args(ModelName))
    options = options_with_defaults(training_options, learning_rate=LEARNING_RATES[model])
    check_counts(num_words=num_words)
    check_fractions(dropout=dropout, token_dropout=token_dropout, label_smoothing=label_smoothing)
    columns = {"text_column": text_column, "label_column": label_column}
    texts = documentation_passages() if data_dir is None else read_labelled_texts(data_dir, **columns)
    vocabulary = Vocabulary.of(texts.train_texts, unit="words", least_count=2, most_tokens=MOST_TOKENS)
    settings = {
        "data_dir": data_place(data_dir),
        "model": model,
        "num_words": num_words,
        "dropout": dropout,
        "token_dropout": token_dropout,
        "label_smoothing": label_smoothing,
        "remat": remat,
        **columns,
    }
    num_classes = len(texts.class_names)
    costs = cost(model, len(vocabulary), num_words, num_classes=num_classes)

    @functools.cache
    def batches() -> Any:
        from tfaccel.data.text_batches import TextBatches

        encode = functools.partial(encoded, vocabulary=vocabulary, num_words=num_words)
        one_hot = np.eye(num_classes, dtype=np.float32)
        return TextBatches(
            train=(encode(texts.train_texts), one_hot[list(texts.train_labels)]),
            test=(encode(texts.test_texts), one_hot[list(texts.test_labels)]),
            change=functools.partial(without_some_words, part=token_dropout),
        )

    return TextWorkload(
        name="text_classification",
        build_model=lambda: build_model(
            model, len(vocabulary), num_words, num_classes=num_classes, dropout=dropout, remat=remat
        ),
        compile_args=lambda num_steps: classifier_compile_args(
            options, num_steps=num_steps, label_smoothing=label_smoothing
        ),
        train_data=train_data_of(batches, several_epochs=True),
        validation_data=lambda batch_size: batches().test(batch_size),
        callbacks=options.callbacks,
        raw_input=TextInput(vocabulary=vocabulary, num_tokens=num_words, class_names=texts.class_names),
        global_batch_size=GLOBAL_BATCH_SIZE,
        epochs=EPOCHS,
        num_train_examples=len(texts.train_texts),
        flops_per_example=costs.flops_per_example,
        num_parameters=costs.num_parameters,
        options={**asdict(options), **settings},
        model=model,
        texts=texts,
        vocabulary=vocabulary,
    )


def encoded(texts: Sequence[str], *, vocabulary: Vocabulary, num_words: int) -> np.ndarray:
    """Numbers of words, int32, of shape (num_texts, num_words)."""
    return padded([vocabulary.encode(text) for text in texts], num_words)


def without_some_words(batch: tuple[np.ndarray, np.ndarray], generator: np.random.Generator, *, part: float) -> Any:
    """Texts with a random part of their words made unknown, and their labels."""
    tokens, labels = batch
    lost = (generator.random(tokens.shape) < part) & (tokens >= NUM_SPECIAL_TOKENS)
    return np.where(lost, np.int32(UNKNOWN), tokens), labels


# ---------- The models


def build_model(
    name: str, num_tokens: int, num_words: int, *, num_classes: int, dropout: float, remat: bool
) -> "keras.Model":
    """The model: numbers of words in, one logit (float32) for each class out.

    Example:
        >>> build_model("lstm", 100, 20, num_classes=5, dropout=0.1, remat=False).output.shape
        (None, 5)
    """
    import keras
    from keras import layers

    from tfaccel.models.transformer import TokenEmbedding, TransformerBlock
    from tfaccel.models.transformer_stack import heads

    inputs = keras.Input((num_words,), dtype="int32", name="words")
    is_word = keras.ops.not_equal(inputs, 0)
    if name == "transformer":
        x = TokenEmbedding(num_tokens, max_length=num_words, width=WIDTH, dropout=dropout)(inputs)
        mask = keras.ops.reshape(is_word, (-1, 1, 1, num_words))
        for _ in range(NUM_BLOCKS):
            x = TransformerBlock(heads(WIDTH), dropout=dropout, remat=remat)(x, attention_mask=mask)
        x = layers.LayerNormalization(epsilon=1e-5)(x)
    else:
        x = layers.Embedding(num_tokens, WIDTH)(inputs)
        if name == "lstm":
            x = layers.Bidirectional(layers.LSTM(WIDTH, return_sequences=True))(
                layers.Dropout(dropout)(x), mask=is_word
            )
    # The mean over the words that there are.
    x = layers.GlobalAveragePooling1D()(x, mask=is_word)
    x = layers.Dropout(dropout)(x)
    # Logits stay float32 under mixed precision: 16 bits are too few for the loss.
    return keras.Model(inputs, layers.Dense(num_classes, dtype="float32", name="logits")(x))


def cost(name: str, num_tokens: int, num_words: int, *, num_classes: int) -> LayerCost:
    """Multiplications of one text's forward pass, and the number of trainable parameters.

    Example:
        >>> cost("embedding", 1000, 100, num_classes=5)
        LayerCost(multiplications=320, num_parameters=64325)
    """
    if name == "transformer":
        reader = transformer_cost(num_tokens, length=num_words, width=WIDTH, num_blocks=NUM_BLOCKS)
        return reader + layer_cost(WIDTH, num_classes)
    reader = embedding_cost(num_tokens, WIDTH)
    if name == "embedding":
        return reader + layer_cost(WIDTH, num_classes)
    direction = lstm_cost(WIDTH, WIDTH, length=num_words)
    return reader + direction + direction + layer_cost(2 * WIDTH, num_classes)


# ---------- The run: trains, and shows the model beside scikit-learn's usual one


def run(*, run_dir: str | os.PathLike[str], **options: Any) -> TrainResult:
    """Trains, and leaves in `run_dir` what `tfaccel.train` leaves, `vocabulary.json`, `classes.json` and
    `comparison.json`.

    Options and errors are those of `tfaccel.train` (`plan`, `seed`, `resume`, ...) and of `workload`.
    """
    return run_recipe(workload, show_result, run_dir=run_dir, **options)


def show_result(work: TextWorkload, result: TrainResult) -> BaselineScores:
    """Writes what is needed to use the model, and shows its test accuracy beside that of linear classifiers."""
    from tfaccel.reporting.result_table import show_table
    from tfaccel.reporting.text_baselines import text_class_accuracies

    run_dir = Path(result.run_dir)
    write_json(run_dir / "vocabulary.json", work.vocabulary.to_json())
    write_json(run_dir / "classes.json", list(work.texts.class_names))
    texts = work.texts
    found = text_class_accuracies((texts.train_texts, texts.train_labels), (texts.test_texts, texts.test_labels))
    accuracies = {work.model: result.final["accuracy"], **found}
    write_json(run_dir / "comparison.json", accuracies)
    title = f"Accuracy on {len(work.texts.test_texts)} test texts of {len(work.texts.class_names)} classes"
    show_table(title, ["model", "accuracy"], [[name, f"{value:.3f}"] for name, value in accuracies.items()])
    trivial = {"most frequent class": found.pop("most frequent class")}
    return BaselineScores(
        metric="accuracy",
        score=result.final["accuracy"],
        baselines=found,
        trivial=trivial,
        is_fraction=True,
        num_examples=len(texts.test_texts),
    )


def classify(run_dir: str | os.PathLike[str], texts: Sequence[str]) -> list[str]:
    """The class of each text, by the model that a run left.

    Raises:
        DataError: if the run's files are missing.
    """
    import json

    from tfaccel.models.text_run import load_text_model

    model, (vocabulary,) = load_text_model(run_dir, "vocabulary")
    names = json.loads((Path(run_dir) / "classes.json").read_text())
    tokens = encoded(texts, vocabulary=vocabulary, num_words=model.input_shape[1])
    return [names[number] for number in model.predict(tokens, verbose=0).argmax(axis=1)]
