"""Text generation: an LSTM or small Transformer on characters or subwords, of documentation or your own text.

References:
    Graves, Generating sequences with recurrent neural networks, 2013, https://arxiv.org/abs/1308.0850 (lstm)
    Al-Rfou et al., Character-level language modeling with deeper self-attention, 2018,
        https://arxiv.org/abs/1808.04444 (transformer)
    Holtzman et al., The curious case of neural text degeneration, 2019, https://arxiv.org/abs/1904.09751 (top-p)

Command:
    tfaccel train --recipe=text_generation --run_dir=runs/manual
    tfaccel train --recipe=text_generation --run_dir=runs/mine --model=transformer --data_dir=FILE.txt

    FILE.txt is any text in UTF-8; its last tenth is held out for testing.

Use: `generate("runs/mine", "The ")` in this module continues a text.

Expected result on the documentation of CPython 3.11 (302,370 characters for training; 68,977 on other topics for
testing), and CPU time on two cores of an AMD EPYC with AVX512_BF16 (both are still improving at the end):
    LSTM             2.27 bits per character (five seeds: 1.96 to 2.34) in mixed_bfloat16; 2.26 in float32, in 134 s
    Transformer      2.24 bits per character in float32, in 220 s
    5-gram           2.13 bits per character; LZMA (xz), primed with the training text: 1.96; frequencies: 4.65
"""

from pathlib import Path
from typing import Any, Literal

import numpy as np

import tfaccel
import tfaccel.layers
from tfaccel import data, reporting

NUM_CHARACTERS = 128  # or subwords: the length of each training example, and the stride between them
LEARNING_RATES = {"lstm": 1e-2, "transformer": 2e-3}


# ---------- The model: a layer with a state, from which `generate` predicts one token after another


def build_model(name: str, *, num_tokens: int, num_layers: int, remat: bool, **sizes: Any) -> Any:
    """Maps token ids to logits (float32) of the token that follows each one."""
    import keras

    inputs = keras.Input((NUM_CHARACTERS,), dtype="int32", name="characters")
    if name == "lstm":
        writer = tfaccel.layers.LstmLanguageModel(num_tokens, num_layers=num_layers, **sizes, name="writer")
    else:
        sizes |= {"max_length": NUM_CHARACTERS, "num_blocks": num_layers, "remat": remat}
        writer = tfaccel.layers.TransformerLanguageModel(num_tokens, **sizes, name="writer")
    return keras.Model(inputs, writer(inputs))


# ---------- The workload: data, model, optimizer and loss


@tfaccel.recipe(adamw_learning_rate=lambda model: LEARNING_RATES[model], global_clipnorm=1.0)
def workload(
    *,
    data_dir: tfaccel.options.DataPath | None = None,  # text file; None for CPython's documentation
    unit: Literal["characters", "subwords"] = "characters",  # unit of a token
    model: Literal["lstm", "transformer"] = "lstm",  # architecture
    width: tfaccel.options.Count = 128,  # width of the model's layers
    num_layers: tfaccel.options.Count = 2,  # number of LSTM layers or Transformer blocks
    dropout: tfaccel.options.Fraction = 0.1,  # dropout rate inside the model
    label_smoothing: tfaccel.options.Fraction = 0.0,  # fraction of the target spread evenly over all tokens
    remat: bool = False,  # recompute the activations of each Transformer block: less memory, more time
    bad_data: tfaccel.data.BadData,
    training: tfaccel.options.TrainingOptions,
) -> tfaccel.Workload:
    """Builds the workload. The text is read and checked here."""
    if data_dir is None:  # the two splits share no topic
        texts = data.documentation_text(held_out=False), data.documentation_text(held_out=True)
    else:
        texts = data.read_text_parts(data_dir, min_characters=NUM_CHARACTERS + 1, bad_data=bad_data)
    vocabulary = data.Vocabulary.of(texts[:1], unit=unit)
    shape = {"width": width, "num_layers": num_layers, "dropout": dropout, "remat": remat}
    num_tokens = len(vocabulary.split(texts[0]))

    def batches() -> Any:
        train, test = (np.array(vocabulary.encode(text), np.int32) for text in texts)
        return data.TextPieces(train, test, length=NUM_CHARACTERS, stride=NUM_CHARACTERS)

    def compile_args(num_steps: int) -> dict[str, Any]:
        import keras

        return {
            "optimizer": training.make_optimizer(num_steps=num_steps),
            "loss": tfaccel.layers.TokenCrossentropy(label_smoothing),
            # The cross-entropy without label smoothing.
            "metrics": [keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name=f"nats_per_{unit[:-1]}")],
        }

    # One example less than would fit, since each epoch begins at a different token.
    num_train_examples = (num_tokens - NUM_CHARACTERS - 1) // NUM_CHARACTERS
    return tfaccel.Workload(
        name=__name__,
        build_model=lambda: build_model(model, num_tokens=len(vocabulary), **shape),
        compile_args=compile_args,
        data=data.Batches((*texts, vocabulary), batches, num_train_examples=num_train_examples, takes_every=True),
        epochs=12,
        global_batch_size=32,
        bfloat16_on_cpu=True,
    )


# ---------- The results: bits per character, and a sample


@workload.show_result
def show_result(work: tfaccel.Workload, result: tfaccel.TrainResult) -> reporting.BaselineScores:
    """Writes `vocabulary.json`; shows and writes `sample.txt`; compares the bits per character with an n-gram model."""
    run_dir, (train_text, test_text, vocabulary) = Path(result.run_dir), work.data.source
    reporting.write_json(run_dir / "vocabulary.json", vocabulary.to_json())
    prompt = test_text[: NUM_CHARACTERS // 2]
    sample = prompt + generate(run_dir, prompt)
    reporting.write_text(run_dir / "sample.txt", sample + "\n")
    reporting.show_text(f"A sample; its first {len(prompt)} characters are from the test text:\n\n{sample}\n")
    bits_per_token = result.final[f"nats_per_{vocabulary.unit[:-1]}"] / float(np.log(2))
    bits = bits_per_token * len(vocabulary.split(test_text)) / len(test_text)
    return reporting.text_bit_scores(bits, train_text, test_text)


def generate(
    run_dir: tfaccel.options.DataPath,
    prompt: str,
    *,
    num_characters: int = 400,
    temperature: float = 0.7,  # 0 for greedy decoding; higher values give more varied text
    top_k: int | None = None,  # sample from this many most likely tokens only; None for all
    top_p: float = 0.95,  # sample from the most likely tokens whose probabilities sum to this
    seed: int = 0,
) -> str:
    """Continues a prompt of at least one character with the model of a finished run."""
    if not prompt:
        raise tfaccel.errors.DataError("A prompt must have at least one character.")
    sampling = tfaccel.layers.Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    model, (vocabulary,) = tfaccel.layers.load_text_model(run_dir, "vocabulary")
    writer = tfaccel.layers.TokenWriter(model.get_layer("writer"))
    begun, no_text = vocabulary.encode(prompt), range(4)  # padding, unknown, start and end tokens
    tokens = writer.write(begun, num_characters, sampling, seed=seed, forbidden=no_text)
    return vocabulary.decode([*begun, *tokens])[len(vocabulary.decode(begun)) :][:num_characters]


run = workload.run
