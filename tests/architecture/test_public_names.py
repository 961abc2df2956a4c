"""The public names change on purpose only."""

import operator

import pytest

import tfaccel

PUBLIC_NAMES = [
    "BatchReport",
    "CheckResult",
    "CompressResult",
    "ExportResult",
    "Hardware",
    "LearningRateReport",
    "Plan",
    "Report",
    "Resume",
    "Run",
    "Runtime",
    "SearchResult",
    "TfaccelError",
    "TrainResult",
    "Workload",
    "__version__",
    "candidate_plans",
    "check",
    "compress",
    "default_plan",
    "detect_hardware",
    "distill",
    "evaluate",
    "export",
    "find_batch_size",
    "find_fastest",
    "find_learning_rate",
    "fit",
    "load_run",
    "notebook_launch",
    "predict",
    "recipe",
    "report",
    "search",
    "serve",
    "train",
]


def test_public_names_are_these():
    assert sorted(tfaccel.__all__) == PUBLIC_NAMES, "Changed on purpose? Change this list and CHANGELOG.md as well."
    assert dir(tfaccel) == PUBLIC_NAMES


def test_packages_that_messages_name_are_found(run_python):
    """A message says `use tfaccel.ops.all_gather_rows`, which must work after `import tfaccel` alone."""
    code = "import tfaccel; print(tfaccel.ops.all_gather_rows.__name__, tfaccel.layers.Sampling.__name__)"
    assert run_python(code, fresh=True).stdout.split()[-2:] == ["all_gather_rows", "Sampling"]


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("PlanError", "tfaccel.errors.PlanError"),
        ("MeasureOptions", "tfaccel.options.MeasureOptions"),
        ("roofline", "tfaccel.estimates.roofline"),
        ("ServeOptions", "tfaccel.serving.ServeOptions"),
        ("Lars", "tfaccel.optimizers.Lars"),
        ("write_report", "tfaccel.report"),
        ("cost_of", "tfaccel.estimates.get_cost"),
        ("estimates.cost_of", "tfaccel.estimates.get_cost"),
    ],
)
def test_names_that_moved_still_work_and_say_where_they_are(before, now):
    with pytest.warns(DeprecationWarning, match=rf"^tfaccel.{before} is now {now}; use that name.$"):
        found = operator.attrgetter(before)(tfaccel)
    assert found is operator.attrgetter(now.removeprefix("tfaccel."))(tfaccel)


def test_there_are_few_public_names():
    assert len(tfaccel.__all__) <= 36
