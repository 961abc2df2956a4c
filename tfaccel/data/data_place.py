"""Where a user's data lie, as a text that says the same in every working folder."""

import os

NAMED_DATA_SETS = ("tfds:", "hf:")


def data_place(data_dir: str | os.PathLike[str] | None) -> str | None:
    """The absolute path of a folder or file; the name of a data set ("tfds:mnist") as it is; None for None.

    Example:
        >>> data_place("tfds:mnist"), data_place("/data/../images"), data_place(None)
        ('tfds:mnist', '/images', None)
    """
    if data_dir is None or str(data_dir).startswith(NAMED_DATA_SETS):
        return None if data_dir is None else str(data_dir)
    return os.path.abspath(data_dir)
