"""Translation: an encoder-decoder Transformer with beam search, on dates in many formats or your own texts.

References:
    Vaswani et al., Attention is all you need, 2017, https://arxiv.org/abs/1706.03762 (the model)
    Xiong et al., On layer normalization in the Transformer architecture, 2020, https://arxiv.org/abs/2002.04745
    Wu et al., Google's neural machine translation system, 2016, https://arxiv.org/abs/1609.08144 (beam search)

Command:
    tfaccel train --recipe=translation --run_dir=runs/dates
    tfaccel train --recipe=translation --run_dir=runs/mine --data_dir=FOLDER --unit=subwords

    FOLDER has `source.txt` and `target.txt`, in UTF-8; each line of the second is the translation of the same line of
    the first. A tenth of the lines is held out for testing.

Use: `translate("runs/mine", ["A text."])` in this module translates texts.

Expected result on the dates (10,000 for training; 1,000 others for testing, each in one of 19 formats):
    99.9 % exact match, the median of five seeds (99.6 to 99.9 %), in 105 s of CPU time on two cores of an AMD EPYC, in
    float32, translations included; in mixed_bfloat16 99.8 %. A date parser reaches 100 %, the translation of the most
    similar training text 0 %.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

import tfaccel
from tfaccel import data, reporting

# ---------- The model: an encoder and a decoder


def build_model(
    num_tokens: tuple[int, int], lengths: tuple[int, int], *, any_length: bool = False, **blocks: Any
) -> Any:
    """Maps token ids of the source and of the translation so far to logits (float32) of the next token."""
    import keras

    from tfaccel.layers import TextDecoder, TextEncoder

    source = keras.Input((None if any_length else lengths[0],), dtype="int32", name="source")
    written = keras.Input((None if any_length else lengths[1],), dtype="int32", name="written")
    encoder = TextEncoder(num_tokens[0], max_length=lengths[0], **blocks, name="encoder")
    decoder = TextDecoder(num_tokens[1], max_length=lengths[1], **blocks, name="decoder")
    return keras.Model({"source": source, "written": written}, decoder(written, encoder(source), source))


# ---------- The workload: data, model, optimizer and loss


@tfaccel.recipe(adamw_learning_rate=3e-3, global_clipnorm=1.0)
def workload(
    *,
    data_dir: tfaccel.options.DataPath | None = None,  # folder with source.txt and target.txt; None for dates
    unit: Literal["characters", "words", "subwords"] = "characters",  # unit of a token, in both languages
    max_length: tfaccel.options.Count = 128,  # max tokens of a source or target text; the rest is cut off
    width: tfaccel.options.Count = 64,  # width of the Transformer blocks
    num_blocks: tfaccel.options.Count = 2,  # Transformer blocks of the encoder, and of the decoder
    dropout: tfaccel.options.Fraction = 0.0,  # dropout rate inside the model
    label_smoothing: tfaccel.options.Fraction = 0.0,  # fraction of the target spread evenly over all tokens
    group_by_length: bool = False,  # batches of texts of similar lengths, cut to the longest: less padding
    remat: bool = False,  # recompute the activations of each block in the backward pass: less memory, more time
    bad_data: tfaccel.data.BadData,
    training: tfaccel.options.TrainingOptions,
) -> tfaccel.Workload:
    """Builds the workload. The texts are read and checked here."""
    pairs = data.dates_in_words() if data_dir is None else data.read_translations(data_dir, bad_data=bad_data)
    languages = list(zip(*pairs.train, strict=True))
    most_tokens = 8_000 if unit == "subwords" else 20_000
    vocabularies = [data.Vocabulary.of(texts, unit=unit, most_tokens=most_tokens) for texts in languages]
    longest = [max(map(len, map(v.split, texts))) for v, texts in zip(vocabularies, languages, strict=True)]
    lengths = min(longest[0], max_length), min(longest[1] + 1, max_length)  # plus the end token
    sizes = len(vocabularies[0]), len(vocabularies[1])
    blocks = {"width": width, "num_blocks": num_blocks, "dropout": dropout, "remat": remat}

    def batches() -> Any:
        train, test = (data.encode_pairs(part, vocabularies, lengths) for part in (pairs.train, pairs.test))
        of_batches = train.lengths() if group_by_length else None
        return data.TextBatches(train.examples(), test.examples(), lengths=of_batches)

    def compile_args(num_steps: int) -> dict[str, Any]:
        import keras

        from tfaccel.layers import TokenCrossentropy

        return {
            "optimizer": training.make_optimizer(num_steps=num_steps),
            "loss": TokenCrossentropy(label_smoothing),  # ignores padding, as does the metric
            "weighted_metrics": [keras.metrics.SparseCategoricalAccuracy(name="token_accuracy")],
        }

    return tfaccel.Workload(
        name=__name__,
        build_model=lambda: build_model(sizes, lengths, any_length=group_by_length, **blocks),
        compile_args=compile_args,
        data=data.Batches((pairs, *vocabularies), batches, num_train_examples=len(pairs.train), takes_every=True),
        epochs=8,
        global_batch_size=64,
        bfloat16_on_cpu=True,
        min_replica_batch_size=64,
    )


# ---------- The results: translations of the test texts, and how many match exactly


@workload.show_result
def show_result(work: tfaccel.Workload, result: tfaccel.TrainResult) -> reporting.BaselineScores:
    """Writes both vocabularies and `translations.json`; compares exact matches of dates, or BLEU of your texts.

    BLEU and chrF need the library `sacrebleu` (`pip install "tfaccel[text]"`); without it, exact matches are compared.
    """
    if work.options["group_by_length"]:
        reporting.show_padding(*work.data.made().shares_of_padding(result.plan.global_batch_size))
    run_dir, (pairs, read, written) = Path(result.run_dir), work.data.source
    reporting.write_json(run_dir / "source_vocabulary.json", read.to_json())
    reporting.write_json(run_dir / "vocabulary.json", written.to_json())
    sources, targets = zip(*pairs.test, strict=True)
    found = translate(run_dir, sources)
    # Decoded again, so that whitespace between words does not count as an error.
    wanted = [written.decode(written.encode(target)) for target in targets]
    right = [a == b for a, b in zip(found, wanted, strict=True)]
    exact_match = float(np.mean(right))
    rows = [list(row) for row in zip(sources, found, wanted, strict=True)]
    scores = None
    if work.options["data_dir"] is not None:
        nearest = reporting.nearest_translations(pairs.train, sources)
        scores = reporting.translation_scores({"this model": found, "most similar training text": nearest}, targets)
    found_scores = {name: one.score for name, one in (scores or {}).items()}
    reporting.write_json(run_dir / "translations.json", {"exact_match": exact_match, **found_scores, "texts": rows})
    shown = [rows[row] for row in sorted(range(len(rows)), key=lambda row: right[row])[:6]]
    reporting.show_table("Translations, wrong ones first", ["text", "translation", "wanted"], shown)
    if scores:
        reporting.show_text(f"BLEU {scores['BLEU'].score:.1f}, chrF {scores['chrF'].score:.1f}")
        return scores["BLEU"]
    are_dates = work.options["data_dir"] is None
    return reporting.exact_match_scores(exact_match, pairs.train, pairs.test, are_dates=are_dates)


def translate(
    run_dir: tfaccel.options.DataPath, texts: Sequence[str], *, beam_size: int = 4, length_penalty: float = 0.6
) -> list[str]:
    """Translates each text with the model of a finished run; see `tfaccel.layers.BeamSearch`."""
    from tfaccel.layers import BeamSearch, load_text_model

    search = BeamSearch(beam_size=beam_size, length_penalty=length_penalty)
    model, (read, written) = load_text_model(run_dir, "source_vocabulary", "vocabulary")
    length = model.get_layer("encoder").get_config()["max_length"]
    arrays = data.encode_pairs([(text, "") for text in texts], (read, written), (length, 1))
    return [written.decode(tokens) for tokens in search.write(model, arrays.source)]


run = workload.run
