"""The public names change on purpose only."""

import tfaccel

PUBLIC_NAMES = [
    "ClusterError",
    "CompressResult",
    "CompressionError",
    "Count",
    "CoupledRowsError",
    "DataError",
    "DataPath",
    "Device",
    "ExportError",
    "ExportResult",
    "Fraction",
    "Hardware",
    "HardwareError",
    "ImageInput",
    "ModelConfig",
    "NonFiniteLossError",
    "Plan",
    "PlanError",
    "Run",
    "RunDirError",
    "Runtime",
    "SearchError",
    "SearchResult",
    "ServeError",
    "ServeOptions",
    "TableInput",
    "TextInput",
    "TfaccelError",
    "TrainResult",
    "TrainingOptions",
    "VersionError",
    "Workload",
    "WorkloadError",
    "__version__",
    "candidate_plans",
    "compress",
    "default_plan",
    "detect_hardware",
    "distill",
    "evaluate",
    "export",
    "fit",
    "load_run",
    "predict",
    "recipe",
    "search",
    "serve",
    "train",
]


def test_public_names_are_these():
    assert sorted(tfaccel.__all__) == PUBLIC_NAMES, "Changed on purpose? Change this list and CHANGELOG.md as well."
    assert dir(tfaccel) == PUBLIC_NAMES
