"""The recipes for text: they learn, run on several replicas and in low precision, leave what is needed to use them, and
refuse bad input with one clear line."""

import json
import re
from pathlib import Path

import pytest
from own_texts import write_own_texts

from tfaccel.data import documentation_passages, documentation_text
from tfaccel.errors import DataError, WorkloadError
from tfaccel.recipes import summarization, text_classification, text_generation, translation
from tfaccel.reporting.texts import summary_scores, text_bit_scores, text_class_scores

RECIPES = [text_classification, text_generation, translation, summarization]
PROGRAM = Path(__file__).with_name("text_recipe_runs.py").read_text()


@pytest.fixture(scope="module")
def own_data(tmp_path_factory):
    """A folder with small data of a user's own for each recipe."""
    folder = tmp_path_factory.mktemp("texts")
    write_own_texts(folder)
    return folder


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.__name__)
def test_workload_is_made_without_tensorflow(run_python, recipe):
    run_python(
        f"""
import sys
from {recipe.__name__} import workload
work = workload(optimizer="lamb", remat=True, ema=True, schedule="linear", early_stopping=2)
assert work.num_train_examples > 500 and work.options["optimizer"] == "lamb", work
sys.exit(", ".join({{"tensorflow", "keras"}} & set(sys.modules)) or 0)
""",
        fresh=True,
    )


@pytest.fixture
def trained(run_python, tmp_path, own_data):
    """A function from the numbers of some cases to what each gave, by number."""

    def case(recipe, data, use, *, strategy="mirrored", global_batch_size=8, dtype_policy="float32", **options):
        return {
            "recipe": recipe,
            "strategy": strategy,
            "global_batch_size": global_batch_size,
            "use": use,
            "dtype_policy": dtype_policy,
            "options": {"data_dir": str(own_data / data), **options},
        }

    texts = ["the red red blue one", "the axe axe saw one"]
    sampled = ("generate", "over and ")
    cases = [
        case("text_classification", "labels.csv", ("classify", texts), epochs=4, num_words=8),
        case(
            "text_classification",
            "labels.csv",
            ("classify", texts),
            epochs=4,
            num_words=8,
            model="lstm",
            strategy="none",
        ),
        case(
            "text_classification",
            "labels.csv",
            ("classify", texts),
            epochs=6,
            num_words=8,
            model="transformer",
            learning_rate=3e-3,
            dtype_policy="mixed_bfloat16",
            remat=True,
            strategy="none",
        ),
        case(
            "text_generation",
            "text.txt",
            sampled,
            epochs=6,
            width=32,
            num_layers=1,
            strategy="none",
            global_batch_size=4,
        ),
        case(
            "text_generation",
            "text.txt",
            sampled,
            epochs=1,
            width=32,
            num_layers=1,
            model="transformer",
            ema=True,
            label_smoothing=0.1,
            strategy="none",
        ),
        case(
            "translation",
            "",
            ("translate", ["a b c a", "c c b a"]),
            epochs=40,
            width=32,
            num_blocks=1,
            remat=True,
            learning_rate=1e-2,
            strategy="none",
        ),
        case(
            "summarization",
            "summaries.csv",
            ("summarize", ["other is here . the rest of it is old"]),
            epochs=14,
            width=32,
            num_words=12,
            dropout=0.0,
            learning_rate=1e-2,
            dtype_policy="mixed_bfloat16",
            strategy="none",
        ),
        case(
            "translation",
            "",
            ("translate", ["a b c a", "c c b a"]),
            unit="subwords",
            epochs=10,
            width=32,
            num_blocks=1,
            learning_rate=1e-2,
        ),
        case("text_classification", "labels.csv", ("classify", texts), unit="subwords", epochs=6, num_words=12),
        case(
            "text_generation",
            "long.txt",
            sampled,
            unit="subwords",
            epochs=2,
            width=32,
            num_layers=1,
            global_batch_size=4,
        ),
    ]

    def run(*numbers):
        child = run_python(PROGRAM, tmp_path, json.dumps([cases[number] for number in numbers]))
        return dict(zip(numbers, json.loads(child.stdout.splitlines()[-1]), strict=True))

    return run


@pytest.mark.slow
def test_recipes_learn_and_leave_what_is_needed_to_use_them(trained, tmp_path):
    results = trained(0, 4, 5, 6)
    assert results[0]["used"] == ["colour", "tool"]
    assert results[0]["final"]["accuracy"] == 1.0
    assert len(results[4]["used"]) == 400
    assert set(results[4]["used"]) <= set("over and over again.")
    assert results[5]["used"] == ["ABCA", "CCBA"]
    assert results[6]["used"] == ["other"]
    baselines = json.loads((tmp_path / "0" / "result.json").read_text())["baselines"]
    assert baselines["baselines"]["TF-IDF with logistic regression"] == 1.0


@pytest.mark.slow
def test_their_other_models_learn_as_well(trained, tmp_path):
    results = trained(1, 2, 3, 7, 8, 9)
    for number in (1, 2):
        assert results[number]["used"] == ["colour", "tool"]
        assert results[number]["final"]["accuracy"] == 1.0
    assert results[3]["final"]["nats_per_character"] < 2.5
    assert len(results[3]["used"]) == 400
    assert set("".join(results[7]["used"])) <= set("ABC ") and all(results[7]["used"])
    translations = json.loads((tmp_path / "3" / "translations.json").read_text())
    assert 0 <= translations["BLEU"] < 100 and 0 < translations["chrF"] < 100
    compared = json.loads((tmp_path / "3" / "result.json").read_text())["baselines"]
    assert compared["metric"] == "BLEU" and list(compared["baselines"]) == ["most similar training text"]
    assert results[8]["used"] == ["colour", "tool"]
    assert len(results[9]["used"]) == 400
    assert 0 < results[9]["final"]["nats_per_subword"] < 4


def test_options_of_an_optimizer_leave_the_recipe_s_own_out():
    assert translation.workload().options["learning_rate"] == 3e-3
    options = summarization.workload(optimizer="SGD", clipnorm=0.5).options
    assert (options["learning_rate"], options["clipnorm"], options["global_clipnorm"]) == (None, 0.5, None)
    assert text_generation.workload(learning_rate=1.0).options["learning_rate"] == 1.0


@pytest.mark.parametrize(
    ("recipe", "options", "error", "message"),
    [
        (text_classification, {"model": "gru"}, WorkloadError, "`model` must be one of embedding, lstm, transformer."),
        (text_generation, {"model": "embedding"}, WorkloadError, "`model` must be one of lstm, transformer."),
        (translation, {"unit": "syllables"}, WorkloadError, "`unit` must be one of characters, words, subwords."),
        (text_classification, {"token_dropout": 1.0}, WorkloadError, "`token_dropout` must be a number from 0 to"),
        (translation, {"optimizer": "adamm"}, WorkloadError, "Keras has no optimizer 'adamm'. Did you mean 'adam"),
        (summarization, {"num_words": 0}, WorkloadError, "`num_words` must be a whole number of at least 1."),
        (text_classification, {"data_dir": "nowhere"}, DataError, "There is no folder or file nowhere (`data_dir`)."),
        (text_generation, {"data_dir": "nowhere"}, DataError, "There is no file nowhere."),
        (translation, {"data_dir": "nowhere"}, DataError, "must be a folder with source.txt and target.txt."),
        (summarization, {"data_dir": "nowhere"}, DataError, "There is no file nowhere."),
    ],
)
def test_options_that_cannot_be_are_refused(recipe, options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        recipe.workload(**options)


def test_data_that_cannot_be_used_is_refused(own_data, tmp_path):
    with pytest.raises(DataError, match=re.escape("has no column 'labels'. Did you mean 'label'?")):
        text_classification.workload(data_dir=own_data / "labels.csv", label_column="labels")
    with pytest.raises(DataError, match=re.escape("has no column 'abstract'. Columns: document, summary.")):
        summarization.workload(data_dir=own_data / "summaries.csv", summary_column="abstract")
    (tmp_path / "a.txt").write_text("short")
    with pytest.raises(DataError, match=re.escape("has 5 characters; it needs at least 2580 to train and test with.")):
        text_generation.workload(data_dir=tmp_path / "a.txt")


@pytest.mark.parametrize(
    "use",
    [
        lambda folder: text_classification.classify(folder, ["a"]),
        lambda folder: text_generation.generate(folder, "a"),
        lambda folder: translation.translate(folder, ["a"]),
        lambda folder: summarization.summarize(folder, ["a"]),
    ],
)
def test_folder_without_a_run_is_refused(logical_devices, tmp_path, use):
    with pytest.raises(
        DataError, match=r"There is no file .*vocabulary.json\. Was this folder left by a finished run\?"
    ):
        use(tmp_path)


@pytest.mark.slow
def test_baseline_and_frequencies_are_what_they_should_be():
    texts = documentation_passages()
    parts = (texts.train_texts, texts.train_labels), (texts.test_texts, texts.test_labels)
    accuracies = text_class_scores(0.5, *parts)
    assert list(accuracies.baselines.values()) == pytest.approx([0.489, 0.467], abs=0.03)
    assert accuracies.trivial["most frequent class"] == pytest.approx(0.228, abs=0.03)
    bits = text_bit_scores(2.3, documentation_text(held_out=False), documentation_text(held_out=True))
    assert list(bits.baselines) == ["5-gram", "LZMA behind the training text"]
    assert list(bits.baselines.values()) == pytest.approx([2.13, 1.96], abs=0.02)
    assert bits.trivial["frequencies"] == pytest.approx(4.65, abs=0.02)
    scores = summary_scores({"this model": ["the red cat"], "lead-1": ["the cat"]}, ["the cat"])
    assert scores is not None
    assert (scores.score, scores.baselines) == (pytest.approx(0.8), {"lead-1": 1.0})


@pytest.mark.slow
def test_dates_are_translated_exactly(run_python, tmp_path):
    case = {
        "recipe": "translation",
        "strategy": "none",
        "global_batch_size": 64,
        "options": {},
        "use": ["translate", ["Saturday, 5 December 2015", "31.1.1999"]],
    }
    child = run_python(PROGRAM, tmp_path, json.dumps([case]), timeout_seconds=550)
    assert json.loads((tmp_path / "0" / "translations.json").read_text())["exact_match"] >= 0.99
    assert json.loads(child.stdout.splitlines()[-1])[0]["used"][1] == "1999-01-31"
