"""The public names of the data package change on purpose only."""

import pytest

import tfaccel.data

PUBLIC_NAMES = [
    "Augmentation",
    "BadData",
    "Batches",
    "BoxData",
    "CacheOptions",
    "Catalogue",
    "ExampleData",
    "GanData",
    "ImageBatches",
    "ImageData",
    "ImageInput",
    "ImageMoves",
    "InteractionData",
    "Pipeline",
    "PresetTextData",
    "SeriesData",
    "TableData",
    "TextBatches",
    "TextData",
    "TextInput",
    "TextPieces",
    "Vocabulary",
    "dates_in_words",
    "digit_images",
    "documentation_passages",
    "documentation_summaries",
    "documentation_text",
    "encode_by_preset",
    "encode_pairs",
    "encode_pairs_to_copy",
    "few_digit_images",
    "find_preset",
    "first_sentence",
    "generated_clicks",
    "pendulum_series",
    "read_coco",
    "read_image_set",
    "read_interactions",
    "read_labelled_texts",
    "read_series",
    "read_summaries",
    "read_text_parts",
    "read_translations",
    "scenes_of_digits",
    "season_length",
    "seasonal_naive",
    "split_text",
    "unknown_words",
    "write_tfrecords",
]


def test_public_names_are_these():
    assert tfaccel.data.__all__ == PUBLIC_NAMES, "Changed on purpose? Change this list and CHANGELOG.md as well."
    assert dir(tfaccel.data) == PUBLIC_NAMES


def test_every_name_is_there_and_others_are_not(logical_devices):
    assert all(callable(getattr(tfaccel.data, name)) for name in PUBLIC_NAMES)
    with pytest.raises(AttributeError, match=r"'pipelines'\. Did you mean 'Pipeline'\? Public names: Augmentation, Ba"):
        tfaccel.data.pipelines  # noqa: B018 (asked for on purpose)
