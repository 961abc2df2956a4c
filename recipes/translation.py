"""Translation: an encoder-decoder Transformer with beam search, on dates written in many ways or texts of your own.

References:
    Vaswani et al., Attention is all you need, 2017, https://arxiv.org/abs/1706.03762 (the model)
    Xiong et al., On layer normalization in the Transformer architecture, 2020, https://arxiv.org/abs/2002.04745
    Wu et al., Google's neural machine translation system, 2016, https://arxiv.org/abs/1609.08144 (beam search)

Command:
    tfaccel train --recipe=translation --run_dir=runs/dates
    tfaccel train --recipe=translation --run_dir=runs/mine --data_dir=FOLDER --unit=words

    FOLDER has `source.txt` and `target.txt`, in UTF-8; each line of the first is translated by the same line of the
    second. A tenth of the lines is kept for testing.

Use: `translate("runs/mine", ["A text."])` in this module translates texts.

Expected result on the dates (10,000 of them to train on; 1,000 other ones, each in one of 19 forms, to test with):
    99.9 % exact match, the median of seeds 0 to 4 (99.6, 99.9, 99.9, 99.8 and 99.9 %), after 105 s of processor time on
    two cores of an AMD EPYC with AVX512_BF16, in float32, imports and translations included; in mixed_bfloat16, which
    the plan chooses there, 99.8 % (seed 0). On training dates that were kept aside, 4, 8 and 16 epochs have 96.2, 99.4
    and 99.8 % (`tfaccel benchmark settings`, one seed). A date parser that is told the names of months has 100 %; the
    most similar training text has 0 %.
"""

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfaccel.data.data_place import data_place
from tfaccel.data.text_pairs import TextPairs, dates_in_words, encode_pairs, read_translations
from tfaccel.data.text_vocabulary import Unit, Vocabulary, split_text
from tfaccel.data.train_data import train_data_of
from tfaccel.models.token_compile_args import token_compile_args
from tfaccel.planning.option_checks import check_choice, check_counts, check_fractions
from tfaccel.planning.text_costs import sequence_to_sequence_cost
from tfaccel.planning.workload import Workload
from tfaccel.training.baseline_scores import BaselineScores
from tfaccel.training.files import write_json
from tfaccel.training.option_defaults import options_with_defaults
from tfaccel.training.result import TrainResult
from tfaccel.training.run_recipe import run_recipe

if TYPE_CHECKING:
    import keras

EPOCHS = 8
GLOBAL_BATCH_SIZE = 64
WIDTH = 64
NUM_BLOCKS = 2
LEARNING_RATE = 3e-3
BEAM_SIZE = 4
MOST_TOKENS = 20_000  # of a vocabulary
NUM_SHOWN = 6


# ---------- The workload. TensorFlow is imported inside its functions only, after the runtime has been set up.


@dataclass(frozen=True, kw_only=True)
class TranslationWorkload(Workload):
    """A workload with test pairs for certain, and with what is needed to use the model."""

    pairs: TextPairs
    vocabularies: tuple[Vocabulary, Vocabulary]  # of what is read, and of what is written
    validation_data: Callable[[int], Any]


def workload(
    *,
    data_dir: str | os.PathLike[str] | None = None,
    unit: Unit = "characters",
    max_length: int = 128,
    width: int = WIDTH,
    num_blocks: int = NUM_BLOCKS,
    dropout: float = 0.0,
    label_smoothing: float = 0.0,
    remat: bool = False,
    **training_options: Any,
) -> TranslationWorkload:
    """What this recipe trains. The texts are read and checked here.

    Args:
        data_dir: a folder with source.txt and target.txt; None for dates.
        unit: what a token is, in both languages.
        max_length: tokens of a text that are read, or written, at most; longer ones are cut off.
        width: of the Transformer's blocks.
        num_blocks: of the encoder, and of the decoder.
        dropout: part of the numbers inside the model that is dropped in training.
        label_smoothing: part of the target that is spread over all tokens.
        remat: calculate the inside of each block again in the backward pass: less memory, more time.
        **training_options: see `tfaccel.training.training_options.TrainingOptions`.

    Raises:
        DataError: if the texts cannot be used; the message names the file and the line.
        WorkloadError: if another argument cannot be used.

    Example:
        >>> workload().pairs.train[0]
        ('01.04.2038', '2038-04-01')
    """
    options = options_with_defaults(training_options, learning_rate=LEARNING_RATE, global_clipnorm=1.0)
    check_choice("unit", unit, ("characters", "words"))
    check_counts(max_length=max_length, width=width, num_blocks=num_blocks)
    check_fractions(dropout=dropout, label_smoothing=label_smoothing)
    pairs = dates_in_words() if data_dir is None else read_translations(data_dir)
    sources, targets = zip(*pairs.train, strict=True)
    vocabularies = (vocabulary_of(sources, unit), vocabulary_of(targets, unit))
    longest = [max(len(split_text(text, unit)) for text in texts) for texts in (sources, targets)]
    lengths = (min(longest[0], max_length), min(longest[1] + 1, max_length))  # one more, for the end
    settings = {
        "data_dir": data_place(data_dir),
        "unit": unit,
        "max_length": max_length,
        "width": width,
        "num_blocks": num_blocks,
        "dropout": dropout,
        "label_smoothing": label_smoothing,
        "remat": remat,
    }
    costs = sequence_to_sequence_cost(
        (len(vocabularies[0]), len(vocabularies[1])), lengths, width=width, num_blocks=num_blocks
    )

    @functools.cache
    def batches() -> Any:
        from tfaccel.data.text_batches import TextBatches

        parts = [encode_pairs(part, vocabularies, lengths).examples() for part in (pairs.train, pairs.test)]
        return TextBatches(train=parts[0], test=parts[1])

    return TranslationWorkload(
        name="translation",
        build_model=lambda: build_model(
            vocabularies, lengths, width=width, num_blocks=num_blocks, dropout=dropout, remat=remat
        ),
        compile_args=lambda num_steps: token_compile_args(
            options, num_steps=num_steps, label_smoothing=label_smoothing
        ),
        train_data=train_data_of(batches),
        validation_data=lambda batch_size: batches().test(batch_size),
        callbacks=options.callbacks,
        global_batch_size=GLOBAL_BATCH_SIZE,
        epochs=EPOCHS,
        num_train_examples=len(pairs.train),
        flops_per_example=costs.flops_per_example,
        num_parameters=costs.num_parameters,
        options={**asdict(options), **settings},
        pairs=pairs,
        vocabularies=vocabularies,
    )


def vocabulary_of(texts: Sequence[str], unit: Unit) -> Vocabulary:
    """The vocabulary of texts, the commonest 20,000 tokens."""
    return Vocabulary.of(texts, unit=unit, most_tokens=MOST_TOKENS)


# ---------- The model


def build_model(
    vocabularies: tuple[Vocabulary, Vocabulary], lengths: tuple[int, int], **settings: Any
) -> "keras.Model":
    """The model: tokens of what is read and of what is to be written in, logits (float32) of the next token out."""
    from tfaccel.models.sequence_to_sequence import sequence_to_sequence

    return sequence_to_sequence((len(vocabularies[0]), len(vocabularies[1])), lengths, **settings)


# ---------- The run: trains, and shows translations of the test texts


def run(*, run_dir: str | os.PathLike[str], **options: Any) -> TrainResult:
    """Trains, and leaves in `run_dir` what `tfaccel.train` leaves, `source_vocabulary.json`, `vocabulary.json`,
    `translations.json` and `comparison.json`.

    Options and errors are those of `tfaccel.train` (`plan`, `seed`, `resume`, ...) and of `workload`.
    """
    return run_recipe(workload, show_result, run_dir=run_dir, **options)


def show_result(work: TranslationWorkload, result: TrainResult) -> BaselineScores:
    """Writes what is needed to use the model, and shows how many test texts it translates exactly, and some of them."""
    from tfaccel.reporting.result_table import show_table
    from tfaccel.reporting.translation_baselines import exact_matches

    run_dir = Path(result.run_dir)
    for name, vocabulary in zip(("source_vocabulary", "vocabulary"), work.vocabularies, strict=True):
        write_json(run_dir / f"{name}.json", vocabulary.to_json())
    sources, targets = zip(*work.pairs.test, strict=True)
    found = translate(run_dir, sources)
    # How words are joined to a text is no fault of the model.
    wanted = [work.vocabularies[1].decode(work.vocabularies[1].encode(target)) for target in targets]
    right = [a == b for a, b in zip(found, wanted, strict=True)]
    exact_match = float(np.mean(right))
    rows = [list(row) for row in zip(sources, found, wanted, strict=True)]
    write_json(run_dir / "translations.json", {"exact_match": exact_match, "texts": rows})
    faults_first = sorted(range(len(rows)), key=lambda row: right[row])[:NUM_SHOWN]
    show_table("Translations, wrong ones first", ["text", "translation", "wanted"], [rows[row] for row in faults_first])
    baselines = exact_matches(work.pairs.train, work.pairs.test, are_dates=work.options["data_dir"] is None)
    scores = {"this model": exact_match, **baselines}
    rows = [[name, f"{score:.4f}"] for name, score in scores.items()]
    show_table(f"Exact match on {len(right)} test texts", ["", "exact"], rows)
    write_json(run_dir / "comparison.json", scores)
    return BaselineScores(
        metric="exact match", score=exact_match, baselines=baselines, is_fraction=True, num_examples=len(right)
    )


def translate(
    run_dir: str | os.PathLike[str], texts: Sequence[str], *, beam_size: int = BEAM_SIZE, length_penalty: float = 0.6
) -> list[str]:
    """The translation of each text, by the model that a run left.

    Args:
        run_dir: of the run.
        texts: to be translated.
        beam_size: beginnings that the search keeps; 1 takes the likeliest token each time.
        length_penalty: how much longer translations are preferred; see `tfaccel.models.beam_search.BeamSearch`.

    Raises:
        DataError: if the run's files are missing.
        WorkloadError: for a beam size below 1.
    """
    from tfaccel.models.beam_search import BeamSearch
    from tfaccel.models.text_run import load_text_model

    search = BeamSearch(beam_size=beam_size, length_penalty=length_penalty)
    model, (read, written) = load_text_model(run_dir, "source_vocabulary", "vocabulary")
    length = model.get_layer("encoder").get_config()["max_length"]
    arrays = encode_pairs([(text, "") for text in texts], (read, written), (length, 1))
    return [written.decode(tokens) for tokens in search.write(model, arrays.source)]
