"""Measures tfaccel's speed, interleaved with what it is compared to, and checks each bound.

    tfaccel benchmark engine
    tfaccel benchmark engine --figures=mlp_loop,mlp_fit --repetitions=9 --out=engine.json
    tfaccel benchmark samplers --out=benchmarks/samplers.json
    tfaccel benchmark compress --out=benchmarks/compress.json
    tfaccel benchmark serve --figures=image_classification,soak
    tfaccel benchmark memory --repetitions=3 --out=benchmarks/memory.json
    tfaccel benchmark scaling --out=benchmarks/scaling.json
    tfaccel benchmark settings --recipes=gan,translation --seeds=3 --out=benchmarks/settings.json
    tfaccel benchmark choice --out=benchmarks/choice.json
    tfaccel benchmark peers --out=benchmarks/peers.json
    tfaccel benchmark speedrun --out=benchmarks/speedrun.json
    tfaccel benchmark optimizer_state --repetitions=3 --out=benchmarks/optimizer_state.json
    tfaccel benchmark faults --figures=killed_of_two,goodput --scale=0.3

Suites: `engine` (overhead of `tfaccel.fit` compared with a custom training loop and with `Model.fit`, and fused kernels
compared with Keras's operations; CPU only, about sixteen minutes on two cores), `recipes` (trains each recipe to its
stated result with `tfaccel.train`, with `Model.fit` and Keras's defaults, and with `Model.fit` and the recipe's
settings; one to ten minutes per recipe), `search` (`tfaccel search` with two workers, and plain Keras Tuner on the same
trials; ten minutes per repetition), `samplers` (30 trials of an MLP with Optuna's own loop and with `tfaccel.search`,
TPE and Bayesian; each repetition uses one seed and takes three minutes; needs the extra `optuna`), `compress` (the
image recipe in int8 and with 80 % sparsity: size, accuracy and latency compared with float32, two minutes; and the
fraction of int8's accuracy loss on a network with uneven channels that QAT recovers, half a minute per repetition),
`serve` (throughput with and without batching, and as a share of the model's own rate; latency at half of the maximum
load; a one-minute soak with a hot reload; and memory over a hundred reloads; half an hour), `memory` (the estimate of
`tfaccel estimate-memory` and the measured peak, on models of five families; half a minute per repetition of each),
`scaling` (predicted step times of two workers beside measured ones, each worker on one core, a minute and a half per
repetition; and predicted efficiencies beside published ones), `settings` (each recipe's settings and neighboring ones,
on held-out training data, never on test data; hours for all recipes), `choice` (for seven kinds of models: the plan
that `tfaccel find-fastest` chooses, the best plan of a full sweep of the same space, and `Model.fit` with its defaults,
in turn, and what choosing costs; and the input pipeline for JPEG images; about seven minutes per kind of model),
`peers` (the chosen plan, native PyTorch, and Keras on JAX, in turn; about six minutes per kind of model; needs `pip
install torch==2.14.1` and `pip install jax==0.10.2`, and leaves out what is not installed), `speedrun` (how long
Fashion-MNIST takes to 92, 93 and 94 % on its test images, from stock Keras change by change, and in PyTorch; ten hours
on two cores; each repetition uses one seed), `workers` (two workers of one core against one worker of one core and of
two, and against two logical replicas; how long workers take from launch to the first step; and, if Ray is installed,
speed and start under Ray; twenty-five minutes), `faults` (each row of the matrix of faults: how soon it is noticed, and
whether the run ends bit-equal to one that was not disturbed; and the goodput of a ten-minute job; an hour and a half),
`checkpoints` (how long a save blocks training, what regular checkpoints cost, and how long it takes to get back into an
epoch; three minutes per repetition), `optimizer_state` (weights, bytes of slots, and memory and step time of two
workers, with sharded slots and replicated ones; five minutes, and two per repetition), `stages` (pipeline stages on
logical CPUs: weights, memory and placement of four kinds of models, and the time of an epoch; six minutes), `tables`
(from a file to arrays to train on, with tfaccel and with pandas and scikit-learn; half a minute; needs pandas), `proof`
(what comparing the first step with one device's adds to the first call; six minutes per repetition) and `compilation`
(the first call with XLA, with its compiled programs on disk and without; a minute per repetition).
`gpu` is for machines with a GPU: see `tfaccel benchmark gpu --help`.
`settings`, `choice`, `peers` and `speedrun` write `--out` as they go, and a later call continues it.
Run nothing else during measurements. Exit status 1 if a bound is missed.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from absl import flags

from tfaccel.benchmarks.checkpoints_suite import CHECKPOINT_FIGURES, run_checkpoints_suite
from tfaccel.benchmarks.choice_suite import CHOICE_FIGURES, run_choice_suite
from tfaccel.benchmarks.compilation_suite import COMPILATION_FIGURES, run_compilation_suite
from tfaccel.benchmarks.faults_suite import FAULT_FIGURES, run_faults_suite
from tfaccel.benchmarks.optimizer_state_suite import OPTIMIZER_STATE_FIGURES, run_optimizer_state_suite
from tfaccel.benchmarks.peer_programs import peer_versions
from tfaccel.benchmarks.peers_suite import PEER_PACKAGES, PEERS_FIGURES, run_peers_suite
from tfaccel.benchmarks.proof_suite import PROOF_FIGURES, run_proof_suite
from tfaccel.benchmarks.report import Report
from tfaccel.benchmarks.sampler_suite import SAMPLER_FIGURES, run_sampler_suite
from tfaccel.benchmarks.scaling_suite import SCALING_FIGURES, run_scaling_suite
from tfaccel.benchmarks.search_suite import SEARCHES, run_search_suite
from tfaccel.benchmarks.serve_suite import SERVE_FIGURES, run_serve_suite
from tfaccel.benchmarks.speedrun_suite import FASHION_MNIST, SPEEDRUN_FIGURES, run_speedrun_suite
from tfaccel.benchmarks.stages_suite import STAGES_FIGURES, run_stages_suite
from tfaccel.benchmarks.suite_options import SuiteOptions
from tfaccel.benchmarks.tables_suite import TABLES_FIGURES, run_tables_suite
from tfaccel.benchmarks.workers_suite import WORKERS_FIGURES, run_workers_suite
from tfaccel.errors import TfaccelError
from tfaccel.known_names import did_you_mean
from tfaccel.planning.load_workload import list_recipes
from tfaccel.scripts import benchmark_gpu
from tfaccel.scripts.benchmark_table import print_report
from tfaccel.scripts.command import run_command, show_progress
from tfaccel.scripts.command_flags import Flag, command_flags
from tfaccel.scripts.settings_table import SETTINGS_FLAGS, print_settings, run_settings

GPU_SUITE = "gpu"
SUITES = (
    *("engine", "recipes", "search", "samplers", "compress", "serve", "memory", "scaling"),
    *("settings", "choice", "peers", "workers", "faults", "checkpoints", "optimizer_state", "stages", "tables"),
    *("proof", "compilation", "speedrun"),
    GPU_SUITE,
)
_RUNS = {
    "serve": run_serve_suite,
    "checkpoints": run_checkpoints_suite,
    "stages": run_stages_suite,
    "tables": run_tables_suite,
    "proof": run_proof_suite,
    "compilation": run_compilation_suite,
    "faults": run_faults_suite,
    "optimizer_state": run_optimizer_state_suite,
    "workers": run_workers_suite,
    "scaling": run_scaling_suite,
    "search": run_search_suite,
    "samplers": run_sampler_suite,
}
CONTINUED = ("choice", "peers", "speedrun")
MANY_REPETITIONS = 9  # the default of suites whose figures need more windows
_OF_MANY = ("choice", "peers")
ENGINE_FIGURE_NAMES = (
    *("mlp_loop", "mlp_fit", "cnn", "lstm", "transformer", "epoch_end", "one_replica_xla"),
    *("kernels_cnn", "kernels_cnn_bfloat16", "kernels_transformer_bfloat16", "kernels_mlp"),
    *("kernels_lstm", "kernels_gru"),
    *("kernel_batch_normalization", "kernel_layer_normalization", "kernel_gelu"),
    *("kernel_dense_bfloat16", "kernel_convolution_bfloat16", "kernel_einsum_dense", "kernel_attention"),
    *("kernel_attention_masked", "kernel_adam", "kernel_adam_embedding", "kernel_momentum"),
    *("rows_adagrad", "rows_sgd", "rows_adagrad_small", "rematerialization"),
)
MEMORY_FIGURE_NAMES = (
    *("mlp", "cnn", "transformer", "lstm", "embedding", "mlp_bfloat16", "cnn_bfloat16", "transformer_bfloat16"),
    "transformer_recomputed",
)
COMPRESS_FIGURE_NAMES = ("int8", "pruning", "qat")

_FLAGS: dict[str, Flag] = {
    "figures": (["all"], "figures to measure, or recipes for that suite; or all"),
    "out": (str, "also write the report, including raw times, to this JSON file"),
    "json": (False, "print the report as JSON"),
    "data": (str, "speedrun: a folder of IDX files, or an .npz file; Debian's dataset-fashion-mnist if not given"),
    **SETTINGS_FLAGS,
}


def benchmark_flags() -> flags.FlagValues:
    """The flags of the command, not parsed yet."""
    values = command_flags(_FLAGS)
    text = f"timed windows per program; {MANY_REPETITIONS} by default for choice and peers"
    flags.DEFINE_integer("repetitions", 5, text, lower_bound=1, upper_bound=10_000, flag_values=values)
    text = "factor for the number of steps per window; below 1 for quick tests, whose figures are not meaningful"
    flags.DEFINE_float("scale", 1.0, text, lower_bound=1e-6, upper_bound=100.0, flag_values=values)
    text = "settings: number of seeds, starting at 0, per setting"
    flags.DEFINE_integer("seeds", 5, text, lower_bound=1, upper_bound=1000, flag_values=values)
    return values


def run(argv: list[str]) -> int:
    """Runs the command; returns its exit status."""
    description, values = (__doc__ or "").strip(), benchmark_flags()
    suite = argv[1] if len(argv) > 1 and not argv[1].startswith("-") else None
    if suite == GPU_SUITE:  # a command of its own, with other flags
        return benchmark_gpu.run([f"{argv[0]} {suite}", *argv[2:]])
    if suite in SUITES:
        chosen: str = suite
        arguments = [f"{argv[0]} {suite}", *argv[2:]]
        return run_command(lambda: _main(chosen, values), arguments, values, description=description)
    if any(argument in ("-h", "--help", "-help", "--helpshort") for argument in argv[1:]):
        return run_command(lambda: 0, [f"{argv[0]} SUITE", "--help"], values, description=description)
    received = "Name a suite first." if suite is None else f"Unknown suite {suite!r}."
    hint = did_you_mean(suite or "", SUITES)
    print(f"{argv[0]}: {received}{hint} Suites: {', '.join(SUITES)}.", file=sys.stderr)
    return 2


def _main(suite: str, values: flags.FlagValues) -> int:
    check_flags(suite, values)
    if values.out is not None:
        check_writable(Path(values.out))
    if suite == "settings":
        return _choose_settings(values)
    names = chosen_figures(suite, values.figures)
    report = _measure(suite, names, values)
    data = report.to_json()
    if values.out is not None:
        write_json(Path(values.out), data)
    if values.json:
        print(json.dumps(data, indent=2))
    else:
        print_report(report)
    return 0 if report.met else 1


def check_flags(suite: str, values: flags.FlagValues) -> None:
    """Raises TfaccelError for a flag that the suite does not use."""
    of_settings, of_others = ("recipes", "seeds"), ("figures", "repetitions", "scale")
    own, other = (of_settings, of_others) if suite == "settings" else (of_others, of_settings)
    if suite == "speedrun":
        own = (*own, "data")
    else:
        other = (*other, "data")
    for name in other:
        if values[name].present:
            wanted = ", ".join(f"--{flag}" for flag in own)
            raise TfaccelError(f"--{name} is not for the suite {suite!r}, which takes {wanted}, --out and --json.")


def _choose_settings(values: flags.FlagValues) -> int:
    _use_cpu_only()
    data = run_settings(values.out, recipes=values.recipes, num_seeds=values.seeds)
    if values.json:
        print(json.dumps(data, indent=2))
    else:
        print_settings(data)
    return 0


def _use_cpu_only() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # bounds and stated results are for CPUs


def _measure(suite: str, names: list[str], values: flags.FlagValues) -> Report:
    _use_cpu_only()
    progress = partial(show_progress, "benchmark")
    many = suite in _OF_MANY and not values["repetitions"].present
    repetitions = MANY_REPETITIONS if many else values.repetitions
    options = SuiteOptions(repetitions=repetitions, scale=values.scale, progress=progress)
    try:
        if suite in CONTINUED:
            return _measure_in_parts(suite, names, values, options)
        if suite == "recipes":
            from tfaccel.benchmarks.recipe_suite import run_recipe_suite

            return run_recipe_suite(names, options)
        if suite == "compress":
            from tfaccel.benchmarks.compress_suite import run_compress_suite

            return run_compress_suite(names, options)
        if suite == "memory":
            from tfaccel.benchmarks.memory_suite import run_memory_suite

            return run_memory_suite(names, options)
        if suite in _RUNS:
            return _RUNS[suite](names, options)
        from tfaccel.benchmarks.engine_suite import run_engine_suite

        return run_engine_suite(names, options)
    finally:
        progress("")


def _measure_in_parts(suite: str, names: list[str], values: flags.FlagValues, options: SuiteOptions) -> Report:
    """Measures what `--out` does not contain yet, and writes it after each part."""
    path = None if values.out is None else Path(values.out)
    machine = options.machine()
    if suite == "peers":
        machine["versions"] |= peer_versions(*PEER_PACKAGES)
    if suite == "speedrun":
        machine["versions"] |= peer_versions("torch")
        machine["data"] = values.data or FASHION_MNIST
        del machine["repetitions"]  # further seeds may be added to a report
    done = {} if path is None else read_parts(path, suite, machine)

    def save(report: Report) -> None:
        if path is not None:
            write_json(path, report.to_json())

    if suite == "speedrun":
        return run_speedrun_suite(names, options, machine=machine, done=done, save=save)
    if suite == "choice":
        return run_choice_suite(names, options, done=done, save=save)
    return run_peers_suite(names, options, required=values.figures != ["all"], done=done, save=save)


def read_parts(path: Path, suite: str, machine: dict[str, Any]) -> dict[str, Any]:
    """The raw results in a report to continue; none if there is no file."""
    if not path.exists():
        return {}
    given = json.loads(json.dumps(machine))
    try:
        data = json.loads(path.read_text())
        if data["suite"] != suite:
            raise KeyError(suite)
        kept, raw = dict(data["machine"]), dict(data["raw"])
    except (ValueError, KeyError, TypeError):
        raise TfaccelError(f"--out: {path} is not a report of the suite {suite!r}. Name another file.") from None
    changed = [key for key in sorted({*given, *kept}) if given.get(key) != kept.get(key)]
    if changed:
        raise TfaccelError(
            f"--out: {path} was measured with another value of {', '.join(changed)}, so it cannot be continued: with "
            f"{changed[0]} = {kept.get(changed[0])}; now it is {given.get(changed[0])}. Name another file."
        )
    return raw


def chosen_figures(suite: str, names: list[str]) -> list[str]:
    """The figures (or recipes) to measure, each once; raises TfaccelError for one that does not exist."""
    by_suite = {
        "engine": ENGINE_FIGURE_NAMES,
        "search": tuple(SEARCHES),
        "samplers": SAMPLER_FIGURES,
        "compress": COMPRESS_FIGURE_NAMES,
        "memory": MEMORY_FIGURE_NAMES,
        "serve": SERVE_FIGURES,
        "scaling": SCALING_FIGURES,
        "choice": CHOICE_FIGURES,
        "peers": PEERS_FIGURES,
        "workers": WORKERS_FIGURES,
        "optimizer_state": OPTIMIZER_STATE_FIGURES,
        "faults": FAULT_FIGURES,
        "checkpoints": CHECKPOINT_FIGURES,
        "stages": STAGES_FIGURES,
        "tables": TABLES_FIGURES,
        "proof": PROOF_FIGURES,
        "compilation": COMPILATION_FIGURES,
        "speedrun": SPEEDRUN_FIGURES,
    }
    known = list(by_suite.get(suite) or (recipe.name for recipe in list_recipes()))
    if names == ["all"]:
        return known
    for name in names or [""]:
        if name not in known:
            raise TfaccelError(
                f"--figures: unknown figure {name!r}.{did_you_mean(name, known)} Figures: {', '.join(known)}."
            )
    return list(dict.fromkeys(names))


def check_writable(path: Path) -> None:
    """Raises TfaccelError for a file that cannot be written, before minutes of measuring."""
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise TfaccelError(f"--out: cannot write {path}. Name a file in an existing, writable folder.")


def write_json(path: Path, data: object) -> None:
    """Writes to a temporary name, then renames."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(data, indent=2) + "\n")
    temporary.replace(path)


if __name__ == "__main__":
    sys.exit(run(["benchmark", *sys.argv[1:]]))
