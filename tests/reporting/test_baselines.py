"""What needs no network: it predicts well where there is something to be predicted, and takes what recipes give it."""

import numpy as np
import pytest

from tfaccel.reporting.samples import gaussian_samples, mixture_log_likelihood
from tfaccel.reporting.texts import central_sentence, parsed_dates, text_bit_scores, text_class_scores


def test_text_is_predicted_from_what_stood_before():
    generator = np.random.default_rng(0)
    text = "".join(generator.choice(list("abcd"), 4000))
    random = text_bit_scores(2.0, text[:3000], text[3000:])
    assert (random.score, random.higher_is_better, random.num_examples) == (2.0, False, 1000)
    assert all(1.98 < value < 2.8 for value in {**random.baselines, **random.trivial}.values())
    words = text_bit_scores(1.0, "over and over again. " * 100, "over and over again. " * 20)
    assert max(words.baselines.values()) < 1 < words.trivial["frequencies"]
    assert text_bit_scores(2.0, "abc" * 100, "äöü" * 10).trivial["frequencies"] == pytest.approx(np.log2(3))


def test_texts_of_few_examples_and_of_none():
    found = text_class_scores(0.5, (["red", "blue"], [0, 1]), (["red", "blue"], [0, 1]))
    assert (list(found.baselines.values()), found.trivial) == ([1.0, 1.0], {"most frequent class": 0.5})
    assert (central_sentence(""), central_sentence("One.")) == ("", "One.")


def test_dates_in_all_three_languages():
    texts = ["MAR 3 2004", "dienstag, den 9. märz 1999", "le mardi 9 mars 1999", "3/4/2001", "3.4.2001", "20010304"]
    assert parsed_dates(texts) == ["2004-03-03", "1999-03-09", "1999-03-09", "2001-03-04", "2001-04-03", "2001-03-04"]


def test_small_tables_start_no_threads(run_python):
    """Threads that wait for each other actively take minutes where other programs use the cores."""
    code = """
import os
from tfaccel.data.tables.table_data import embedded_table
from tfaccel.data.tables.tabular_set import TableOptions, make_tabular_set
from tfaccel.reporting.classes import class_probabilities, predicted_numbers
import sklearn.ensemble, sklearn.linear_model, sklearn.impute, sklearn.pipeline, sklearn.model_selection
import threadpoolctl
threadpoolctl.threadpool_limits(2, user_api="openmp")
wine, diabetes = (
    make_tabular_set(embedded_table(name), TableOptions(target="target"), classification=name == "wine")
    for name in ("wine", "diabetes")
)
before = len(os.listdir("/proc/self/task"))
class_probabilities(wine), predicted_numbers(diabetes)
print(len(os.listdir("/proc/self/task")) - before)
"""
    assert run_python(code, fresh=True).stdout == "0\n"


def test_mixtures_find_what_goes_together():
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(400, 1)) * [1.0, -1.0] + 0.1 * generator.normal(size=(400, 2))
    known, others = rows[:300], rows[300:]
    own = mixture_log_likelihood(known, others, is_image=False).mean()
    assert own > mixture_log_likelihood(known, others * [1, -1], is_image=False).mean() + 2
    samples, labels = gaussian_samples(np.concatenate([known, known + 50]), np.repeat([3, 5], 300), 200)
    assert labels.tolist() == [3] * 200 + [5] * 200
    assert np.corrcoef(samples[:200].T)[0, 1] < -0.9
    assert samples[200:].mean() == pytest.approx(50, abs=1)
