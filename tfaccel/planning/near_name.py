"""The sentence that helps after a misspelt name: see `tfaccel.near_name`."""

from tfaccel.near_name import check_names, near_name

__all__ = ["check_names", "near_name"]
