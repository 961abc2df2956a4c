"""The public names change on purpose only."""

import tfaccel

PUBLIC_NAMES = [
    "Count",
    "DataError",
    "DataPath",
    "Fraction",
    "Hardware",
    "Plan",
    "Runtime",
    "TrainResult",
    "TrainingOptions",
    "Workload",
    "WorkloadError",
    "__version__",
    "candidate_plans",
    "compress",
    "default_plan",
    "detect_hardware",
    "evaluate",
    "export",
    "fit",
    "predict",
    "recipe",
    "search",
    "train",
]


def test_public_names_are_these():
    assert sorted(tfaccel.__all__) == PUBLIC_NAMES, "Changed on purpose? Change this list and CHANGELOG.md as well."
    assert dir(tfaccel) == PUBLIC_NAMES
