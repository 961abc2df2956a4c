"""How many numbers describe a row of a table inside a model."""

from tfaccel.data.tables.encoding import TableEncoding

_MAX_EMBEDDING_WIDTH = 16


def embedding_width(num_codes: int) -> int:
    """Numbers that stand for one category: about the square root of how many there are, at most 16.

    Example:
        >>> embedding_width(4), embedding_width(50), embedding_width(10_000)
        (2, 8, 16)
    """
    return min(_MAX_EMBEDDING_WIDTH, round(num_codes**0.5 + 0.5))


def num_features(encoding: TableEncoding) -> int:
    """How many numbers describe a row behind the first layers.

    Example:
        >>> from tfaccel.data.tables.encoding import NumericColumn
        >>> num_features(TableEncoding(numeric=(NumericColumn("age", 40.0, 9.0, True),), categorical=(), target="pays"))
        2
    """
    numbers = sum(2 if column.has_missing else 1 for column in encoding.numeric)
    return numbers + sum(embedding_width(column.num_codes) for column in encoding.categorical)
