"""The public names of the data package change on purpose only."""

import pytest

import tfaccel.data

PUBLIC_NAMES = [
    "Augmentation",
    "CacheOptions",
    "Pipeline",
    "read_image_set",
    "read_labelled_texts",
    "write_tfrecords",
]


def test_public_names_are_these():
    assert tfaccel.data.__all__ == PUBLIC_NAMES, "Changed on purpose? Change this list and CHANGELOG.md as well."
    assert dir(tfaccel.data) == PUBLIC_NAMES


def test_every_name_is_there_and_others_are_not(logical_devices):
    assert all(callable(getattr(tfaccel.data, name)) for name in PUBLIC_NAMES)
    with pytest.raises(AttributeError, match=r"has no attribute 'pipelines'\. Public names: Augmentation, Cache"):
        tfaccel.data.pipelines  # noqa: B018 (asked for on purpose)
