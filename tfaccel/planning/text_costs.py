"""What the layers of models for text cost: tables of vectors, LSTMs, attention and Transformer blocks."""

from __future__ import annotations

from tfaccel.planning.layer_costs import LayerCost, layer_cost


def embedding_cost(num_rows: int, width: int) -> LayerCost:
    """A table of vectors: rows are taken from it, nothing is multiplied."""
    return LayerCost(0, num_rows * width)


def lstm_cost(num_inputs: int, width: int, *, length: int) -> LayerCost:
    """An LSTM over `length` positions: four gates, each calculated from the input and the state.

    Example:
        >>> lstm_cost(64, 64, length=100).num_parameters
        33024
    """
    return layer_cost(num_inputs + width, 4 * width, positions=length)


def attention_cost(width: int, *, length: int, context_length: int) -> LayerCost:
    """Attention from `length` positions to `context_length`: four projections, the scores, and what they select.

    Example:
        >>> attention_cost(64, length=10, context_length=10).multiplications
        176640
    """
    outer, inner = (layer_cost(width, width, positions=positions) for positions in (length, context_length))
    return outer + outer + inner + inner + LayerCost(2 * length * context_length * width)


def transformer_cost(
    num_tokens: int, *, length: int, width: int, num_blocks: int, context_length: int | None = None
) -> LayerCost:
    """Tables of tokens and positions, `tfaccel.models.transformer.TransformerBlock`s, and a normalisation behind them.

    Args:
        num_tokens: size of the vocabulary.
        length: of the texts, in tokens.
        width: of the blocks.
        num_blocks: how many.
        context_length: of what the blocks attend to beside their own text; None where they do not.

    Example:
        >>> transformer_cost(100, length=10, width=64, num_blocks=2).num_parameters
        107136
    """
    norm = LayerCost(0, 2 * width)
    block = attention_cost(width, length=length, context_length=length) + norm + norm
    block += layer_cost(width, 4 * width, positions=length) + layer_cost(4 * width, width, positions=length)
    if context_length is not None:
        block += attention_cost(width, length=length, context_length=context_length) + norm
    return sum([block] * num_blocks, embedding_cost(num_tokens + length, width) + norm)


def sequence_to_sequence_cost(
    num_tokens: tuple[int, int], lengths: tuple[int, int], *, width: int, num_blocks: int, num_copied: int | None = None
) -> LayerCost:
    """An encoder and a decoder; see `tfaccel.models.sequence_to_sequence.sequence_to_sequence` for the arguments.

    Example:
        >>> sequence_to_sequence_cost((20, 15), (12, 10), width=8, num_blocks=1).num_parameters
        2671
    """
    read, written = lengths
    encoder = transformer_cost(num_tokens[0], length=read, width=width, num_blocks=num_blocks)
    decoder = transformer_cost(num_tokens[1], length=written, width=width, num_blocks=num_blocks, context_length=read)
    cost = encoder + decoder + layer_cost(width, num_tokens[1], positions=written)
    if num_copied is None:
        return cost
    # The pointer, the gate, how well each place fits, and a matrix product that adds up places of the same token.
    cost += layer_cost(width, width, positions=written) + layer_cost(width, 1, positions=written)
    return cost + LayerCost(written * read * (width + num_tokens[1] + num_copied))
