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
topics for testing), in 50 s of CPU time on two cores of an AMD EPYC, in float32:
    ROUGE-L of 0.123, the median of five seeds (0.108 to 0.131), in mixed_bfloat16, the default on a CPU with
    AVX512_BF16; in float32 0.138. Lead-1 reaches 0.123, TextRank 0.146. From so few texts the model learns which words
    belong in a summary, not how to write one: do not expect to beat lead-1.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tfaccel
import tfaccel.layers
from tfaccel import data, reporting

MAX_SUMMARY_WORDS = 60
NUM_COPIED = 40  # max distinct out-of-vocabulary words per document


# ---------- The model: an encoder, and a decoder that generates words or copies them from the document


def build_model(num_tokens: int, lengths: tuple[int, int], *, any_length: bool = False, **blocks: Any) -> Any:
    """Maps token ids of the document and of the summary so far to log-probabilities (float32) of the next word.

    There are `NUM_COPIED` more of them than tokens in the vocabulary, for out-of-vocabulary words of the document.
    """
    import keras

    source = keras.Input((None if any_length else lengths[0],), dtype="int32", name="source")
    written = keras.Input((None if any_length else lengths[1],), dtype="int32", name="written")
    encoder = tfaccel.layers.TextEncoder(num_tokens, max_length=lengths[0], **blocks, name="encoder")
    decoder = tfaccel.layers.CopyingDecoder(
        num_tokens, max_length=lengths[1], num_copied=NUM_COPIED, **blocks, name="decoder"
    )
    read = encoder(tfaccel.layers.known_tokens(source, num_tokens))
    return keras.Model({"source": source, "written": written}, decoder(written, read, source))


# ---------- The workload: data, model, optimizer and loss


@tfaccel.recipe(data_dir_only=("document_column", "summary_column"), adamw_learning_rate=2e-3, global_clipnorm=1.0)
def workload(
    *,
    # CSV or Parquet file; None for entries of CPython's documentation, whose first sentence serves as the summary
    data_dir: tfaccel.options.DataPath | None = None,
    num_words: tfaccel.options.Count = 100,  # max tokens of a document; the rest is cut off
    width: tfaccel.options.Count = 64,  # width of the Transformer blocks
    num_blocks: tfaccel.options.Count = 1,  # Transformer blocks of the encoder, and of the decoder
    dropout: tfaccel.options.Fraction = 0.3,  # dropout rate inside the model
    label_smoothing: tfaccel.options.Fraction = 0.0,  # fraction of the target spread evenly over all words
    group_by_length: bool = False,  # batches of texts of similar lengths, cut to the longest: less padding
    remat: bool = False,  # recompute the activations of each block in the backward pass: less memory, more time
    document_column: str = "document",  # column with the documents
    summary_column: str = "summary",  # column with their summaries
    encoding: str = "utf-8",  # text encoding of a CSV file
    bad_data: tfaccel.data.BadData,
    training: tfaccel.options.TrainingOptions,
) -> tfaccel.Workload:
    """Builds the workload. The documents are read and checked here."""
    if data_dir is None:
        pairs = data.documentation_summaries()
    else:
        reading = {"document_column": document_column, "summary_column": summary_column, "encoding": encoding}
        pairs = data.read_summaries(data_dir, **reading, bad_data=bad_data)
    texts = [text for pair in pairs.train for text in pair]
    vocabulary = data.Vocabulary.of(texts, unit="words", least_count=3, most_tokens=20_000)
    longest = max(len(data.split_text(summary, "words")) for _, summary in pairs.train)
    lengths = (num_words, min(longest, MAX_SUMMARY_WORDS) + 1)  # plus the end token
    blocks = {"width": width, "num_blocks": num_blocks, "dropout": dropout, "remat": remat}

    def batches() -> Any:
        train, test = (
            data.encode_pairs_to_copy(part, vocabulary, lengths, NUM_COPIED) for part in (pairs.train, pairs.test)
        )
        of_batches = train.lengths() if group_by_length else None
        return data.TextBatches(train.examples(), test.examples(), lengths=of_batches)

    def compile_args(num_steps: int) -> dict[str, Any]:
        import keras

        return {
            "optimizer": training.make_optimizer(num_steps=num_steps),
            "loss": tfaccel.layers.TokenCrossentropy(label_smoothing),  # ignores padding, as does the metric
            "weighted_metrics": [keras.metrics.SparseCategoricalAccuracy(name="token_accuracy")],
        }

    return tfaccel.Workload(
        name=__name__,
        build_model=lambda: build_model(len(vocabulary), lengths, any_length=group_by_length, **blocks),
        compile_args=compile_args,
        data=data.Batches((pairs, vocabulary), batches, num_train_examples=len(pairs.train), takes_every=True),
        epochs=10,
        global_batch_size=16,
        bfloat16_on_cpu=True,
    )


# ---------- The results: summaries of the test documents, next to single sentences


@workload.show_result
def show_result(work: tfaccel.Workload, result: tfaccel.TrainResult) -> reporting.BaselineScores | None:
    """Writes `vocabulary.json` and `summaries.json`; compares ROUGE-L with that of single sentences."""
    if work.options["group_by_length"]:
        reporting.show_padding(*work.data.made().shares_of_padding(result.plan.global_batch_size))
    run_dir, (pairs, vocabulary) = Path(result.run_dir), work.data.source
    reporting.write_json(run_dir / "vocabulary.json", vocabulary.to_json())
    documents, wanted = (list(texts) for texts in zip(*pairs.test, strict=True))
    written = {
        "this model": summarize(run_dir, documents),
        "lead-1": [data.first_sentence(text)[0] for text in documents],
        "TextRank": [reporting.central_sentence(text) for text in documents],
    }
    rows = [list(row) for row in zip(documents, *written.values(), wanted, strict=True)]
    reporting.write_json(run_dir / "summaries.json", {"document, model, lead-1, TextRank, wanted": rows})
    for document, summary, *_, reference in rows[:3]:
        reporting.show_text(f"document  {document[:200]} ...\nsummary   {summary}\nwanted    {reference}\n")
    return reporting.summary_scores(written, wanted)


def summarize(
    run_dir: tfaccel.options.DataPath, texts: Sequence[str], *, beam_size: int = 4, length_penalty: float = 1.0
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
