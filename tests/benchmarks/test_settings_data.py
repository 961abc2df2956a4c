"""What settings are chosen by: training data alone, split as the recipe splits its data, which it reads itself."""

import re

import numpy as np
import pytest

from tfaccel.benchmarks import settings_data
from tfaccel.benchmarks.recipe_settings import RECIPE_SETTINGS
from tfaccel.benchmarks.settings_data import NUM_FOLDS, get_topics, write_validation
from tfaccel.data.box_data import digit_scenes
from tfaccel.data.images.files import read_image_arrays
from tfaccel.data.images.image_set import digits
from tfaccel.data.series_set import pendulum_series
from tfaccel.data.tables.table_data import embedded_table
from tfaccel.data.texts.documentation import documentation_text
from tfaccel.data.texts.files import read_text_parts
from tfaccel.data.texts.text_data import dates_in_words, documentation_summaries
from tfaccel.errors import TfaccelError, WorkloadError
from tfaccel.recipes import (
    object_detection,
    recommendation,
    sequence_forecasting,
    summarization,
    tabular_classification,
    tabular_regression,
    transfer_learning,
    translation,
)


def get_rows(*parts):
    """Images, or rows of numbers, as a sorted list of bytes."""
    return sorted(row.tobytes() for part in parts for row in np.asarray(part))


@pytest.mark.parametrize("recipe", ["image_classification", "autoencoder", "gan"])
def test_digits_are_the_training_digits_and_each_is_kept_aside_once(tmp_path, recipe):
    kept_aside = []
    for seed in range(NUM_FOLDS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        arguments, judged_by = write_validation(recipe, folder, seed=seed)
        train, kept = read_image_arrays(folder / "images.npz").load()
        assert arguments == {"data_dir": str(folder / "images.npz")}
        assert get_rows(train.images, kept.images) == get_rows(digits().load()[0].images)
        kept_aside.append(kept.images)
    assert get_rows(*kept_aside) == get_rows(digits().load()[0].images)
    if recipe == "gan":  # A classifier of images that the GAN has not seen judges its samples.
        swapped = read_image_arrays(folder / "judge" / "images.npz").load()
        assert judged_by == {"data_dir": str(folder / "judge" / "images.npz")}
        assert [get_rows(part.images) for part in swapped] == [get_rows(kept.images), get_rows(train.images)]


@pytest.mark.parametrize(
    ("recipe", "name"), [(tabular_classification, "breast_cancer"), (tabular_regression, "diabetes")]
)
def test_tables_have_the_training_rows(tmp_path, recipe, name):
    arguments, _ = write_validation(recipe.__name__.rpartition(".")[2], tmp_path, seed=1)
    table, whole = recipe.workload(**arguments).data.source, recipe.workload().data.source
    parts = [np.stack([*map(np.asarray, part.inputs.values())]) for part in (table.train, table.test, whole.train)]
    rows = [part.transpose(1, 0, 2).reshape(part.shape[1], -1) for part in parts]
    assert get_rows(rows[0], rows[1]) == get_rows(rows[2])
    assert len(rows[1]) == pytest.approx(len(rows[2]) / NUM_FOLDS, abs=1)
    assert embedded_table(name).num_rows > len(rows[2])


def test_clicks_are_the_training_rows(tmp_path):
    arguments, _ = write_validation("recommendation", tmp_path, seed=1)
    table, whole = recommendation.workload(**arguments).data.source.table, recommendation.workload().data.source.table
    assert table.encoding.sources == whole.encoding.sources
    counts = [len(part.targets) for part in (table.train, table.test, whole.train)]
    assert counts[0] + counts[1] == counts[2] == NUM_FOLDS * counts[1]
    prices = [np.sort(part.inputs["numbers"][:, 0]) for part in (table.train, table.test, whole.train)]
    assert np.array_equal(np.sort(np.concatenate(prices[:2])), prices[2])


def test_series_ends_where_the_test_part_begins(tmp_path):
    arguments, _ = write_validation("sequence_forecasting", tmp_path, seed=3)
    series, whole = sequence_forecasting.workload(**arguments).data.source, pendulum_series()
    np.testing.assert_array_equal(series.values, whole.values[: whole.num_train])
    assert series.num_train == round(0.8 * whole.num_train)


def test_few_digits_are_tested_with_unused_training_digits(tmp_path):
    arguments, _ = write_validation("transfer_learning", tmp_path, seed=0)
    train, kept = read_image_arrays(tmp_path / "images.npz").load()
    assert len(train.images) == transfer_learning.workload(**arguments).num_train_examples == 100
    of_training = set(get_rows(digits().load()[0].images))
    assert set(get_rows(train.images, kept.images)) <= of_training
    assert transfer_learning.workload(**arguments).options["image_size"] == 8


@pytest.mark.parametrize("seed", range(NUM_FOLDS))
def test_texts_are_of_training_topics_and_cut_between_topics(tmp_path, seed):
    write_validation("text_generation", tmp_path, seed=seed)
    train, kept = read_text_parts(tmp_path / "text.txt", min_characters=1)
    topics, kept_topics = get_topics(seed)
    assert not {topic.name for topic in topics} & {topic.name for topic in kept_topics}
    assert train.endswith("\n".join(topics[-1].paragraphs[-1].splitlines()) + "\n")
    assert kept.startswith(kept_topics[0].paragraphs[0][:50])
    assert len(kept) == pytest.approx(len(train) / 9, rel=1e-3)
    held_out = [part for part in documentation_text(held_out=True).split("\n\n") if len(part) > 80]
    assert not [part for part in held_out if part in train or part in kept]


def test_summaries_are_of_training_topics_and_tested_with_other_topics(tmp_path):
    arguments, _ = write_validation("summarization", tmp_path, seed=0)
    pairs = summarization.workload(**arguments).data.source[0]
    of_topics = {document for topic in get_topics(0)[1] for document, _ in (*topic.entries(), *topic.prose())}
    assert len(pairs.test) == pytest.approx(len(pairs.train) / 9, abs=1)
    assert {document for document, _ in pairs.test} <= {document.strip() for document in of_topics}
    assert not {document for document, _ in pairs.train} & {document.strip() for document in of_topics}
    tested_with = {document for document, _ in documentation_summaries().test}
    assert not tested_with & {document for document, _ in (*pairs.train, *pairs.test)}


def test_dates_are_the_training_dates(tmp_path):
    arguments, _ = write_validation("translation", tmp_path, seed=2)
    pairs = translation.workload(**arguments).data.source[0]
    assert sorted(pairs.train + pairs.test) == sorted(dates_in_words().train)
    assert len(pairs.test) == 1000


def test_scenes_show_training_digits_only():
    whole, parts = digit_scenes(), digit_scenes("validation")
    assert write_validation("object_detection", None, seed=0)[0] == {"test_part": "validation"}
    assert object_detection.workload(test_part="validation").options["test_part"] == "validation"
    images = [scenes.test().images for scenes in (whole, parts)]
    assert images[0].shape == images[1].shape
    assert not set(get_rows(images[0])) & set(get_rows(images[1]))
    with pytest.raises(
        WorkloadError, match=re.escape("`test_part` is for the bundled data. Received: test_part='validation'")
    ):
        object_detection.workload(data_dir="x", test_part="validation")
    with pytest.raises(WorkloadError, match="test_part"):
        object_detection.workload(test_part="validatoin")


def test_a_recipe_without_settings_is_named():
    with pytest.raises(TfaccelError, match=r"There is no recipe 'gann' with settings to choose\. Did you mean 'gan'"):
        write_validation("gann", None, seed=0)
    assert set(RECIPE_SETTINGS) == set(settings_data._WRITERS)
