"""Imports point one way; nouns never import TensorFlow."""

import ast
from collections.abc import Iterable

import pytest
from source_tree import Source, aliases, dotted_name, imports, sources

# Package -> layer. An import may go to a lower layer, or sideways, but then not back again.
LAYERS = {
    "errors": 0,
    "files": 0,
    "keras_file": 0,
    "local_path": 0,
    "remote": 0,
    "known_names": 0,
    "argument_types": 0,
    "records": 0,
    "short_repr": 0,
    "graph_function": 0,
    "load_extra": 0,
    "tested_versions": 0,
    "hardware": 1,
    "processes": 1,
    "data": 2,
    "planning": 2,
    "costs": 2,
    "launching": 2,
    "measuring": 3,
    "models": 3,
    "layers": 4,
    "training": 3,
    "ops": 4,
    "tuning": 4,
    "compressing": 4,
    "exporting": 4,
    "reporting": 4,
    "html_report": 4,
    "extras": 4,
    "parity": 5,
    "estimates": 5,
    "optimizers": 5,
    "options": 5,
    "serving": 5,
    "benchmarks": 5,
    "recipes": 5,
    "scripts": 5,
    "__main__": 5,
}
# The package itself re-exports everything, so only the top may import names from it.
FACADE_LAYER = 5
LIGHT_NAMES = {"__version__"}

NOUN_PACKAGES = ("tfaccel.hardware", "tfaccel.planning")
NOUN_MODULES = {
    "tfaccel",
    "tfaccel.errors",
    "tfaccel.training.run.result",
    "tfaccel.training.run.performance",
    "tfaccel.costs.model_cost",
    "tfaccel.measuring.roofline",
    "tfaccel.benchmarks.measurement",
    "tfaccel.benchmarks.published_scaling",
    "tfaccel.measuring.memory_estimate",
    "tfaccel.measuring.batch_report",
    "tfaccel.benchmarks.report",
    "tfaccel.compressing.compress_result",
    "tfaccel.exporting.export_result",
    "tfaccel.extras.cluster.cluster_job",
    "tfaccel.extras.cluster.kubernetes_manifest",
    "tfaccel.extras.cluster.ray_worker",
    "tfaccel.extras.cluster.slurm_script",
    "tfaccel.launching.worker_group",
    "tfaccel.extras.serving.options",
    "tfaccel.compressing.variant",
    "tfaccel.compressing.methods",
    "tfaccel.tuning.learning_rate_report",
    "tfaccel.tuning.objective",
    "tfaccel.tuning.options",
    "tfaccel.tuning.search_processes",
}
HEAVY_LIBRARIES = {"tensorflow", "keras", "keras_tuner", "tf_keras", "tensorflow_model_optimization", "tensorboard"}
# Programs that run in a child process, which may crash; nothing imports them.
CHILD_PROGRAMS = {
    "tfaccel.hardware.doctor_probes",
    "tfaccel.launching.worker_program",
    "tfaccel.extras.estimates.interconnect_program",
    "tfaccel.compressing.tfmot.program",
    "tfaccel.processes.fork_server_program",
    "tfaccel.extras.tpu.jax_probes",
    "tfaccel.extras.tpu.step_probes",
    "tfaccel.tuning.chief_program",
    "tfaccel.benchmarks.gpu.halves",
    "tfaccel.benchmarks.gpu.keras_program",
    "tfaccel.benchmarks.gpu.step_program",
    "tfaccel.benchmarks.gpu.torch_program",
    "tfaccel.benchmarks.input_program",
    "tfaccel.benchmarks.keras_program",
    "tfaccel.benchmarks.plain_program",
    "tfaccel.benchmarks.memory_program",
    "tfaccel.benchmarks.sampler_program",
    "tfaccel.benchmarks.search_program",
    "tfaccel.benchmarks.torch_program",
    "tfaccel.training.train_program",
    "tfaccel.tuning.worker_program",
}


def get_package(module: str) -> str:
    """tfaccel.training.fit is in training; tfaccel itself in "" (the facade)."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def target_package(name: str) -> str | None:
    """The package an imported name belongs to; "" for the facade, None for other libraries."""
    if name.split(".")[0] != "tfaccel":
        return None
    package = get_package(name)
    if package in LIGHT_NAMES:
        return None
    return package if package in LAYERS else ""


def layer(package: str) -> int:
    return LAYERS[package] if package else FACADE_LAYER


def upward_imports(source: Source) -> list[str]:
    own = get_package(source.module)
    if own not in LAYERS:  # tfaccel/__init__.py loads the public names when they are first used.
        return [] if own == "" else [f"{source.path}: package {own!r} has no layer; add it to LAYERS"]
    return [
        f"{source.path}:{found.line}: {own} imports {found.name}, which is above it"
        for found in imports(source)
        if (target := target_package(found.name)) is not None and layer(target) > layer(own)
        if not (found.name == "tfaccel" and facade_uses(source) <= LIGHT_NAMES)
    ]


def facade_uses(source: Source) -> set[str]:
    """The names a file takes from the package itself: {"fit"} for `import tfaccel` and `tfaccel.fit`."""
    names = aliases(source)
    used = [dotted_name(node, names) for node in source.nodes if isinstance(node, ast.Attribute)]
    return {name.split(".")[1] for name in used if name.startswith("tfaccel.")}


def sideways_cycles(all_sources: Iterable[Source]) -> list[str]:
    """Pairs of packages that import each other."""
    edges = {
        (get_package(source.module), target)
        for source in all_sources
        for found in imports(source)
        if (target := target_package(found.name)) and get_package(source.module) in LAYERS
    }
    return [f"{a} and {b} import each other" for a, b in sorted(edges) if a < b and (b, a) in edges]


def heavy_imports(source: Source) -> list[str]:
    """TensorFlow or Keras imported by a noun, anywhere in the file."""
    is_noun = source.module in NOUN_MODULES or source.module.startswith(tuple(f"{p}." for p in NOUN_PACKAGES))
    if source.module in CHILD_PROGRAMS or not (is_noun or source.module in NOUN_PACKAGES):
        return []
    return [
        f"{source.path}:{found.line}: imports {found.name}"
        for found in imports(source)
        if found.name.split(".")[0] in HEAVY_LIBRARIES
    ]


def imports_of_child_programs(source: Source) -> list[str]:
    """Programs for child processes imported into a process that is none."""
    if source.module in CHILD_PROGRAMS:
        return []
    names = [(found.line, name) for found in imports(source) for name in (found.name, found.name.rpartition(".")[0])]
    return [f"{source.path}:{line}: imports {name}" for line, name in names if name in CHILD_PROGRAMS]


def own_children(source: Source) -> list[str]:
    """Child processes that are started elsewhere than in tfaccel.processes."""
    if source.module.startswith("tfaccel.processes."):
        return []
    return [
        f"{source.path}:{found.line}: imports subprocess"
        for found in imports(source)
        if found.name.split(".")[0] == "subprocess"
    ]


RULES = [upward_imports, heavy_imports, imports_of_child_programs, own_children]


@pytest.mark.parametrize("find", RULES, ids=lambda find: find.__name__)
def test_sources_keep_the_rule(find):
    assert [problem for source in sources() for problem in find(source)] == []


def test_packages_do_not_import_each_other():
    assert sideways_cycles(sources()) == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("tfaccel/hardware/gpu.py", "from tfaccel.planning.plan import Plan"),
        ("tfaccel/hardware/gpu.py", "from tfaccel import planning"),
        ("tfaccel/planning/plan.py", "def f():\n    import tfaccel.training.fit"),
        ("tfaccel/training/fit.py", "from ..reporting import table"),
        ("tfaccel/training/fit.py", "from tfaccel import Plan"),
        ("tfaccel/training/fit.py", "import tfaccel\ntfaccel.train"),
        ("tfaccel/training/fit.py", "import tfaccel as t\nt.train"),
        ("tfaccel/training/fit.py", "import_module('tfaccel.recipes.digits')"),
        ("tfaccel/tuning/search.py", "from tfaccel.scripts import train"),
        ("tfaccel/data/pipeline.py", "from tfaccel.measuring import measure"),
        ("tfaccel/errors.py", "from tfaccel.hardware.hardware import Hardware"),
        ("tfaccel/newcomer/thing.py", ""),
    ],
)
def test_upward_import_is_found(path, text):
    assert upward_imports(Source(path, text))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (
            "tfaccel/training/fit.py",
            "from tfaccel.planning.plan import Plan\nfrom .step import Step\nimport tensorflow",
        ),
        ("tfaccel/training/train.py", "from tfaccel import __version__, errors"),
        ("tfaccel/training/train.py", "import tfaccel\ntfaccel.__version__"),
        ("tfaccel/planning/plan.py", "if TYPE_CHECKING:\n    from tfaccel.training.run.result import TrainResult"),
        ("recipes/digits.py", "import tfaccel\nfrom tfaccel import train"),
        ("scripts/train.py", "from tfaccel.scripts.command import run_command\nfrom tfaccel.recipes import digits"),
    ],
)
def test_downward_import_is_allowed(path, text):
    assert upward_imports(Source(path, text)) == []


def test_packages_that_import_each_other_are_found():
    there = Source("tfaccel/training/fit.py", "from tfaccel.measuring.measure import measure")
    back = Source("tfaccel/measuring/measure.py", "from tfaccel.training.fit import fit")
    assert sideways_cycles([there, back]) == ["measuring and training import each other"]
    assert sideways_cycles([there]) == []


@pytest.mark.parametrize("text", ["import tensorflow as tf", "def f():\n    from keras import layers"])
@pytest.mark.parametrize(
    "path",
    ["tfaccel/hardware/cpu.py", "tfaccel/planning/plan.py", "tfaccel/training/run/result.py", "tfaccel/__init__.py"],
)
def test_heavy_import_of_a_noun_is_found(path, text):
    assert heavy_imports(Source(path, text))


@pytest.mark.parametrize("name", sorted(CHILD_PROGRAMS))
def test_import_of_a_child_program_is_found(name):
    package, _, module = name.rpartition(".")
    assert imports_of_child_programs(Source("tfaccel/hardware/doctor.py", f"from {package} import {module}"))
    assert imports_of_child_programs(Source("tfaccel/hardware/doctor.py", f"def f():\n    from {name} import thing"))
    assert name in {source.module for source in sources()}


def test_heavy_import_elsewhere_or_for_types_is_allowed():
    assert heavy_imports(Source("tfaccel/training/fit.py", "import tensorflow")) == []
    assert heavy_imports(Source("tfaccel/planning/workload.py", "if TYPE_CHECKING:\n    import keras")) == []


def test_a_child_of_its_own_is_found():
    for text in ("import subprocess", "def f():\n    from subprocess import run"):
        assert own_children(Source("tfaccel/data/images.py", text))
        assert own_children(Source("tfaccel/processes/child.py", text)) == []


def test_noun_modules_exist():
    existing = {source.module for source in sources()}
    layers_present = {module for module in NOUN_MODULES if module.rsplit(".", 1)[0] in existing}
    assert sorted(layers_present - existing) == []


def test_nouns_load_without_tensorflow(run_python):
    nouns = [s.module for s in sources() if s.module in NOUN_MODULES or s.module.startswith(NOUN_PACKAGES)]
    nouns = [module for module in nouns if module not in CHILD_PROGRAMS]
    assert len(nouns) > 5
    code = """
import importlib, sys
heavy, *names = sys.argv[1:]
for name in names:
    importlib.import_module(name)
    loaded = sorted(set(heavy.split()) & set(sys.modules))
    if loaded:
        sys.exit(f"importing {name} loads {loaded}")
"""
    run_python(code, " ".join(HEAVY_LIBRARIES), *nouns, fresh=True)
