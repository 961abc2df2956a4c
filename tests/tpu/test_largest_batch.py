import pytest

from tfaccel.extras.tpu.readiness import MAX_TRIALS, Trial, largest_batch, memory_part


def search(limit, *, known=64, highest=65536, tells=False, silent_from=10**9):
    tried = []

    def try_batch(rows):
        tried.append(rows)
        if rows >= silent_from:
            return None
        return Trial(rows <= limit, rows / limit if tells and rows > limit else None)

    found = largest_batch(try_batch, known=known, highest=highest)
    assert all(rows % 8 == 0 for rows in tried)
    assert len(tried) <= MAX_TRIALS
    assert len(set(tried)) == len(tried)
    return found, tried


def test_all_examples_fit_at_once():
    assert search(10**9, highest=1437) == (1432, [1432])


@pytest.mark.parametrize("limit", [70, 100, 1000, 12345, 60000])
@pytest.mark.parametrize("tells", [False, True])
def test_the_answer_fits_and_is_near(limit, tells):
    found, _ = search(limit, tells=tells)
    assert found <= limit
    assert found >= limit / 1.2 or limit - found <= 8


def test_a_compiler_that_tells_how_much_is_missing_needs_fewer_trials():
    assert len(search(12345, tells=True)[1]) < len(search(12345)[1])


def test_the_second_unanswered_trial_ends_the_search_with_what_is_known():
    assert search(10**6, silent_from=1) == (64, [65536, 2048])
    assert search(10**6, silent_from=10_000) == (2048, [65536, 2048, 11584])


def test_nothing_is_tried_above_the_limit():
    assert search(1000, known=64, highest=64) == (64, [])
    assert search(1000, known=64, highest=9) == (64, [])


def test_the_compilers_words_tell_how_much_is_missing():
    assert memory_part("Used 20.00G of 10.00G hbm. Exceeded hbm capacity") == 2.0
    assert memory_part("required for HLO temporaries (512.00M) exceeds available HBM (1.00G).") == 0.5
    assert memory_part("out of memory") is None
