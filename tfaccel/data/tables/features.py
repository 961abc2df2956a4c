"""The number of features of a table's rows inside a model."""

from tfaccel.data.tables.encoding import TableEncoding

_MAX_EMBEDDING_WIDTH = 16


def embedding_width(num_codes: int) -> int:
    """The embedding size of a category: about the square root of the number of codes, at most 16.

    Example:
        >>> embedding_width(4), embedding_width(50), embedding_width(10_000)
        (2, 8, 16)
    """
    return min(_MAX_EMBEDDING_WIDTH, round(num_codes**0.5 + 0.5))


def num_features(encoding: TableEncoding) -> int:
    """The number of features of a row after the first layers.

    Example:
        >>> from tfaccel.data.tables.encoding import NumericColumn
        >>> num_features(TableEncoding(numeric=(NumericColumn("age", 40.0, 9.0, True),), categorical=(), target="pays"))
        2
    """
    numbers = sum(2 if column.has_missing else 1 for column in encoding.numeric)
    return numbers + sum(embedding_width(column.num_codes) for column in encoding.categorical)
