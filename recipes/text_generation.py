"""Text generation: a character LSTM or a small Transformer that writes on, on documentation or a text of your own.

References:
    Graves, Generating sequences with recurrent neural networks, 2013, https://arxiv.org/abs/1308.0850 (lstm)
    Al-Rfou et al., Character-level language modeling with deeper self-attention, 2018,
        https://arxiv.org/abs/1808.04444 (transformer)
    Holtzman et al., The curious case of neural text degeneration, 2019, https://arxiv.org/abs/1904.09751 (top-p)

Command:
    tfaccel train --recipe=text_generation --run_dir=runs/manual
    tfaccel train --recipe=text_generation --run_dir=runs/mine --model=transformer --data_dir=FILE.txt

    FILE.txt is any text in UTF-8; its last tenth is kept for testing.

Use: `generate("runs/mine", "The ")` in this module writes on after a text.

Expected result on the documentation of CPython 3.11 (302,370 characters to train on, 68,977 of other topics to test
with), of seed 0, and processor time on two cores of an AMD EPYC, in float32 (both still learn at the end):
    LSTM             2.26 bits per character, after 134 s (as planned, in mixed_bfloat16: 2.27, five seeds 1.96 to 2.34)
    Transformer      2.24 bits per character, after 220 s
    5-gram           2.13 bits per character; LZMA (xz) of the test text behind the training text 1.96
    frequencies      4.65; with so little text, quoting it is better
    On training text that was kept aside, 6, 12 and 24 epochs of the LSTM have 2.95, 2.30 and 1.93 bits per character
    (`tfaccel benchmark settings`, one seed): 24 are better; 12 keep a run below two minutes.
"""

import functools
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from tfaccel.data.data_place import data_place
from tfaccel.data.text_documentation import documentation_text
from tfaccel.data.text_files import read_text
from tfaccel.data.text_vocabulary import NUM_SPECIAL_TOKENS, Vocabulary
from tfaccel.data.train_data import train_data_of
from tfaccel.errors import DataError
from tfaccel.planning.layer_costs import LayerCost, layer_cost
from tfaccel.planning.option_checks import check_choice, check_counts, check_fractions
from tfaccel.planning.text_costs import embedding_cost, lstm_cost, transformer_cost
from tfaccel.planning.workload import Workload
from tfaccel.training.baseline_scores import BaselineScores
from tfaccel.training.files import whole_file, write_json
from tfaccel.training.option_defaults import options_with_defaults
from tfaccel.training.result import TrainResult
from tfaccel.training.run_recipe import run_recipe
from tfaccel.training.training_options import TrainingOptions

if TYPE_CHECKING:
    import keras

ModelName = Literal["lstm", "transformer"]

EPOCHS = 12
GLOBAL_BATCH_SIZE = 32
MODEL: ModelName = "lstm"
NUM_CHARACTERS = 128  # of each training example
STRIDE = 128  # from the start of one example to that of the next
SAMPLE_CHARACTERS = 400
TEST_PART = 0.1
LEARNING_RATES = {"lstm": 1e-2, "transformer": 2e-3}


# ---------- The workload. TensorFlow is imported inside its functions only, after the runtime has been set up.


@dataclass(frozen=True, kw_only=True)
class LanguageWorkload(Workload):
    """A workload with test text for certain, and with what is needed to use the model."""

    train_text: str
    test_text: str
    vocabulary: Vocabulary
    validation_data: Callable[[int], Any]


def workload(
    *,
    data_dir: str | os.PathLike[str] | None = None,
    model: ModelName = MODEL,
    width: int = 128,
    num_layers: int = 2,
    dropout: float = 0.1,
    label_smoothing: float = 0.0,
    remat: bool = False,
    **training_options: Any,
) -> LanguageWorkload:
    """What this recipe trains. The text is read and checked here.

    Args:
        data_dir: a text file; None for CPython's documentation.
        model: what writes.
        width: of the model's layers.
        num_layers: LSTM layers or Transformer blocks.
        dropout: part of the numbers inside the model that is dropped in training.
        label_smoothing: part of the target that is spread over all characters.
        remat: calculate the inside of each Transformer block again in the backward pass: less memory, more time.
        **training_options: see `tfaccel.training.training_options.TrainingOptions`.

    Raises:
        DataError: if the text cannot be used.
        WorkloadError: if another argument cannot be used.

    Example:
        >>> workload(model="transformer").vocabulary.unit
        'characters'
    """
    check_choice("model", model, get_args(ModelName))
    options = options_with_defaults(training_options, learning_rate=LEARNING_RATES[model], global_clipnorm=1.0)
    check_counts(width=width, num_layers=num_layers)
    check_fractions(dropout=dropout, label_smoothing=label_smoothing)
    train_text, test_text = documentation() if data_dir is None else read_parts(data_dir)
    vocabulary = Vocabulary.of([train_text], unit="characters")
    settings = {"data_dir": data_place(data_dir), "model": model, "width": width,
                "num_layers": num_layers, "dropout": dropout, "label_smoothing": label_smoothing,
                "remat": remat}  # fmt: skip
    # An example fewer than there are places for, since each epoch begins at another character.
    num_examples = (len(train_text) - NUM_CHARACTERS - 1) // STRIDE
    costs = cost(model, len(vocabulary), width=width, num_layers=num_layers)

    @functools.cache
    def batches() -> Any:
        from tfaccel.data.text_batches import TextPieces

        train_tokens, test_tokens = (np.array(vocabulary.encode(text), np.int32) for text in (train_text, test_text))
        return TextPieces(train_tokens, test_tokens, length=NUM_CHARACTERS, stride=STRIDE)

    return LanguageWorkload(
        name="text_generation",
        build_model=lambda: build_model(
            model, len(vocabulary), width=width, num_layers=num_layers, dropout=dropout, remat=remat
        ),
        compile_args=lambda num_steps: compile_args(options, num_steps=num_steps, label_smoothing=label_smoothing),
        train_data=train_data_of(batches),
        validation_data=lambda batch_size: batches().test(batch_size),
        callbacks=options.callbacks,
        global_batch_size=GLOBAL_BATCH_SIZE,
        epochs=EPOCHS,
        num_train_examples=num_examples,
        flops_per_example=costs.flops_per_example,
        num_parameters=costs.num_parameters,
        options={**asdict(options), **settings},
        train_text=train_text,
        test_text=test_text,
        vocabulary=vocabulary,
    )


def documentation() -> tuple[str, str]:
    """The text of CPython's documentation, in which no topic is both in the first (training) and the second part."""
    return documentation_text(held_out=False), documentation_text(held_out=True)


def read_parts(path: str | os.PathLike[str]) -> tuple[str, str]:
    """The first nine tenths of a text, and its last tenth.

    Raises:
        DataError: if the file cannot be read, or a part is shorter than one example.
    """
    text = read_text(path)
    least = int(np.ceil((2 * NUM_CHARACTERS + 2) / TEST_PART))
    if len(text) < least:
        raise DataError(f"{path} has {len(text)} characters; {least} are the least to train and to test with.")
    cut = len(text) - int(TEST_PART * len(text))
    return text[:cut], text[cut:]


# ---------- The model


def build_model(
    name: str, num_tokens: int, *, width: int, num_layers: int, dropout: float, remat: bool
) -> "keras.Model":
    """The model: numbers of characters in, logits (float32) of the character after each one out.

    Example:
        >>> build_model("lstm", 90, width=32, num_layers=1, dropout=0.0, remat=False).output.shape
        (None, 128, 90)
    """
    import keras

    from tfaccel.models.language_model import LstmLanguageModel, TransformerLanguageModel

    inputs = keras.Input((NUM_CHARACTERS,), dtype="int32", name="characters")
    layer: keras.layers.Layer
    if name == "lstm":
        layer = LstmLanguageModel(num_tokens, width=width, num_layers=num_layers, dropout=dropout, name="writer")
    else:
        layer = TransformerLanguageModel(num_tokens, max_length=NUM_CHARACTERS, width=width, num_blocks=num_layers,
                                         dropout=dropout, remat=remat, name="writer")  # fmt: skip
    return keras.Model(inputs, layer(inputs))


def cost(name: str, num_tokens: int, *, width: int, num_layers: int) -> LayerCost:
    """Multiplications of one piece's forward pass, and the number of trainable parameters.

    Example:
        >>> cost("lstm", 90, width=32, num_layers=1)
        LayerCost(multiplications=1417216, num_parameters=14170)
    """
    logits = layer_cost(width, num_tokens, positions=NUM_CHARACTERS)
    if name == "transformer":
        return transformer_cost(num_tokens, length=NUM_CHARACTERS, width=width, num_blocks=num_layers) + logits
    layers = [lstm_cost(width, width, length=NUM_CHARACTERS)] * num_layers
    return sum(layers, embedding_cost(num_tokens, width) + logits)


def compile_args(options: TrainingOptions, *, num_steps: int, label_smoothing: float) -> dict[str, Any]:
    """What `Model.compile` takes; the metric is the cross-entropy without smoothing, in nats."""
    import keras

    from tfaccel.models.token_loss import TokenCrossentropy

    return {
        "optimizer": options.make_optimizer(num_steps=num_steps),
        "loss": TokenCrossentropy(label_smoothing),
        "metrics": [keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="nats_per_character")],
    }


# ---------- The run: trains, and shows bits per character and a sample


def run(*, run_dir: str | os.PathLike[str], **options: Any) -> TrainResult:
    """Trains, and leaves in `run_dir` what `tfaccel.train` leaves, `vocabulary.json`, `sample.txt` and
    `bits_per_character.json`.

    Options and errors are those of `tfaccel.train` (`plan`, `seed`, `resume`, ...) and of `workload`.
    """
    return run_recipe(workload, show_result, run_dir=run_dir, **options)


def show_result(work: LanguageWorkload, result: TrainResult) -> BaselineScores:
    """Writes what is needed to use the model, and shows bits per character of the test text and a sample."""
    from tfaccel.reporting.result_table import show_table, show_text
    from tfaccel.reporting.text_baselines import text_bits

    run_dir = Path(result.run_dir)
    write_json(run_dir / "vocabulary.json", work.vocabulary.to_json())
    name, own_bits = str(work.options["model"]), result.final["nats_per_character"] / float(np.log(2))
    baselines = text_bits(work.train_text, work.test_text)
    bits = {name: own_bits, **baselines}
    write_json(run_dir / "bits_per_character.json", bits)
    prompt = work.test_text[: NUM_CHARACTERS // 2]
    sample = prompt + generate(run_dir, prompt)
    with whole_file(run_dir / "sample.txt") as path:
        path.write_text(sample + "\n", encoding="utf-8")
    show_text(f"A sample; its first {len(prompt)} characters are from the test text:\n\n{sample}\n")
    rows = [[name, f"{value:.3f}"] for name, value in bits.items()]
    show_table(f"Bits per character of {len(work.test_text)} characters of test text", ["model", "bits"], rows)
    trivial = {"frequencies": baselines.pop("frequencies")}
    return BaselineScores(metric="bits per character", score=own_bits, baselines=baselines, trivial=trivial,
                          higher_is_better=False, num_examples=len(work.test_text))  # fmt: skip


def generate(
    run_dir: str | os.PathLike[str],
    prompt: str,
    *,
    num_characters: int = SAMPLE_CHARACTERS,
    temperature: float = 0.7,
    top_k: int | None = None,
    top_p: float = 0.95,
    seed: int = 0,
) -> str:
    """What the model that a run left writes after a prompt.

    Args:
        run_dir: of the run.
        prompt: at least one character.
        num_characters: how many to write.
        temperature: 0 for the likeliest character each time; more for more surprising ones.
        top_k: draw from that many likeliest characters only; None for all.
        top_p: draw from the likeliest characters that have this probability together.
        seed: decides what is drawn.

    Raises:
        DataError: if the prompt is empty or the run's files are missing.
        WorkloadError: for temperature, top_k or top_p out of range.
    """
    from tfaccel.models.sampling import Sampling, TokenWriter
    from tfaccel.models.text_run import load_text_model

    if not prompt:
        raise DataError("A prompt must have at least one character.")
    check_counts(num_characters=num_characters)
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    model, (vocabulary,) = load_text_model(run_dir, "vocabulary")
    writer, specials = TokenWriter(model.get_layer("writer")), range(NUM_SPECIAL_TOKENS)
    tokens = writer.write(vocabulary.encode(prompt), num_characters, sampling, seed=seed, forbidden=specials)
    return vocabulary.decode(tokens)
