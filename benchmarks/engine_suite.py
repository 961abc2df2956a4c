"""The engine's benchmark: `tfaccel.fit` compared with a hand-written loop and with `Model.fit`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import tensorflow as tf

from tfaccel.benchmarks import engine_tasks
from tfaccel.benchmarks.comparison import PARTS, step_time_ratio, tail_share, throughput_ratio
from tfaccel.benchmarks.engine_tasks import Task
from tfaccel.benchmarks.figure import Figure
from tfaccel.benchmarks.kernel_tasks import KERNEL_TASKS
from tfaccel.benchmarks.measurement import Measurement, Program, measure_interleaved
from tfaccel.benchmarks.report import Report
from tfaccel.benchmarks.suite_options import SuiteOptions
from tfaccel.benchmarks.training_programs import FitProgram, HandWrittenLoop, TrainedModel
from tfaccel.training.fit import plan_of_model

# Approximate length of the epochs whose end is measured.
EPOCH_SECONDS = (0.7, 2.2)


@dataclass(frozen=True)
class Findings:
    """Raw times of one comparison, and the figures derived from them."""

    measurements: dict[str, tuple[Measurement, ...]]
    figures: tuple[Figure, ...]


def run_engine_suite(figures: Iterable[str], options: SuiteOptions) -> Report:
    """Measures the named figures (keys of `ENGINE_FIGURES`), one after the other, and reports them."""
    found = [ENGINE_FIGURES[name](name, options) for name in figures]
    measurements = {name: times for findings in found for name, times in findings.measurements.items()}
    derived = tuple(figure for findings in found for figure in findings.figures)
    return Report(suite="engine", machine=options.machine(), measurements=measurements, figures=derived)


def mlp_loop(name: str, options: SuiteOptions) -> Findings:
    """`tfaccel.fit` and a hand-written loop, on the same batches in the same order."""
    task = engine_tasks.mlp(steps_per_epoch=2000, num_epochs=2).shortened(options.scale)
    starts = _equal_starts(task)
    programs: list[Program] = [
        HandWrittenLoop(task, next(starts)),
        FitProgram("tfaccel.fit(numpy)", task, next(starts), is_tfaccel=True, shuffle=False),
        FitProgram("tfaccel.fit(tf.data)", task, next(starts), is_tfaccel=True, dataset=task.dataset()),
    ]
    hand, *ours = times = _measure(name, programs, options)
    figures = [step_time_ratio(name, of=own, to=hand, part=part, at_most=1.05) for own in ours for part in PARTS]
    return Findings({name: times}, tuple(figures))


def mlp_fit(name: str, options: SuiteOptions) -> Findings:
    """`tfaccel.fit` and `Model.fit` with defaults, silent and with a discarded progress bar."""
    task = engine_tasks.mlp(steps_per_epoch=1500).shortened(options.scale)
    starts = _equal_starts(task)
    programs: list[Program] = [
        FitProgram(f"{fit}(verbose={verbose})", task, next(starts), is_tfaccel=fit != "Model.fit", verbose=verbose)
        for verbose in (0, 1)
        for fit in ("tfaccel.fit", "Model.fit")
    ]
    ours, keras, ours_talking, keras_talking = times = _measure(name, programs, options)
    figures = [
        throughput_ratio(name, of=own, to=other, part=part, at_least=2.5)
        for own, other in ((ours, keras), (ours_talking, keras_talking))
        for part in PARTS
    ]
    return Findings({name: times}, tuple(figures))


def never_slower(task: Task) -> Callable[[str, SuiteOptions], Findings]:
    """`tfaccel.fit` and `Model.fit` with defaults, for a compute-heavy model."""

    def measure(name: str, options: SuiteOptions) -> Findings:
        shortened = task.shortened(options.scale)
        starts = _equal_starts(shortened)
        programs: list[Program] = [
            FitProgram("tfaccel.fit", shortened, next(starts), is_tfaccel=True),
            FitProgram("Model.fit", shortened, next(starts), is_tfaccel=False),
        ]
        ours, keras = times = _measure(name, programs, options)
        figures = [throughput_ratio(name, of=ours, to=keras, part=part, at_least=0.98) for part in PARTS]
        return Findings({name: times}, tuple(figures))

    return measure


def fused_kernels(task: Task, at_least: float) -> Callable[[str, SuiteOptions], Findings]:
    """`tfaccel.fit` with fused kernels and with Keras's own operations."""

    def measure(name: str, options: SuiteOptions) -> Findings:
        shortened = task.shortened(options.scale)
        starts = _equal_starts(shortened)
        programs: list[Program] = [
            FitProgram("fused kernels", shortened, next(starts), is_tfaccel=True),
            FitProgram("exact kernels", shortened, next(starts), is_tfaccel=True, exact_kernels=True),
        ]
        return _steps_alone(name, programs, options, at_least)

    return measure


def rematerialization(task: Task, at_least: float) -> Callable[[str, SuiteOptions], Findings]:
    """`tfaccel.fit` with activations recomputed in the backward pass, and with all of them kept."""

    def measure(name: str, options: SuiteOptions) -> Findings:
        shortened = task.shortened(options.scale)
        starts = _equal_starts(shortened)
        programs: list[Program] = []
        for label, recomputes in (("recomputed", True), ("kept", False)):
            start = next(starts)
            plan = plan_of_model(start.model, batch_size=task.global_batch_size, rematerialization=recomputes)
            programs.append(FitProgram(label, shortened, start, is_tfaccel=True, plan=plan))
        return _steps_alone(name, programs, options, at_least)

    return measure


def row_updates(task: Task, at_least: float) -> Callable[[str, SuiteOptions], Findings]:
    """`tfaccel.fit`, which updates only the rows of a table that a batch looks up, and `Model.fit`."""

    def measure(name: str, options: SuiteOptions) -> Findings:
        shortened = task.shortened(options.scale)
        starts = _equal_starts(shortened)
        start = next(starts)
        plan = plan_of_model(start.model, batch_size=task.global_batch_size, embedding_updates="rows")
        programs: list[Program] = [
            FitProgram("tfaccel.fit(rows)", shortened, start, is_tfaccel=True, plan=plan),
            FitProgram("Model.fit", shortened, next(starts), is_tfaccel=False),
        ]
        return _steps_alone(name, programs, options, at_least)

    return measure


def epoch_end(name: str, options: SuiteOptions) -> Findings:
    """The time after the last batch of an epoch, and that of `Model.fit` for comparison."""
    step_seconds = _wide_mlp_step_seconds(options)
    measurements, figures = {}, []
    for seconds in EPOCH_SECONDS:
        task = engine_tasks.wide_mlp(steps_per_epoch=round(seconds / step_seconds), num_epochs=2)
        task = task.shortened(options.scale)
        starts = _equal_starts(task)
        programs: list[Program] = [
            FitProgram(f"{fit}({kind})", task, next(starts), is_tfaccel=fit != "Model.fit", dataset=data)
            for kind, data in (("numpy", None), ("tf.data", task.mapped_dataset()))
            for fit in ("tfaccel.fit", "Model.fit")
        ]
        times = _measure(f"{name} {seconds} s", programs, options)
        measurements[f"{name} {seconds} s"] = times
        for ours, keras in (times[:2], times[2:]):
            figures.append(tail_share(name, of=ours, beside=keras, at_most=0.01))
            figures.append(tail_share(name, of=keras))
    return Findings(measurements, tuple(figures))


def one_replica_xla(name: str, options: SuiteOptions) -> Findings:
    """XLA under a `MirroredStrategy` of one replica, and XLA without a strategy."""
    task = engine_tasks.mlp(steps_per_epoch=6000, jit_compile=True).shortened(options.scale)
    plain = next(_equal_starts(task))
    mirrored = TrainedModel(task, plain.weights, tf.distribute.MirroredStrategy(["CPU:0"]))
    programs: list[Program] = [
        FitProgram("tfaccel.fit(one replica, XLA)", task, mirrored, is_tfaccel=True),
        FitProgram("tfaccel.fit(XLA)", task, plain, is_tfaccel=True),
    ]
    replica, alone = times = _measure(name, programs, options)
    figures = [throughput_ratio(name, of=replica, to=alone, part=part, at_least=0.95) for part in PARTS]
    return Findings({name: times}, tuple(figures))


ENGINE_FIGURES: dict[str, Callable[[str, SuiteOptions], Findings]] = {
    "mlp_loop": mlp_loop,
    "mlp_fit": mlp_fit,
    "cnn": never_slower(engine_tasks.cnn(steps_per_epoch=8)),
    "lstm": never_slower(engine_tasks.lstm(steps_per_epoch=24)),
    "transformer": never_slower(engine_tasks.transformer(steps_per_epoch=3)),
    "epoch_end": epoch_end,
    "one_replica_xla": one_replica_xla,
    "kernels_cnn": fused_kernels(engine_tasks.cnn(steps_per_epoch=8), 1.2),
    "kernels_cnn_bfloat16": fused_kernels(engine_tasks.cnn(steps_per_epoch=8, dtype_policy="mixed_bfloat16"), 1.45),
    "kernels_transformer_bfloat16": fused_kernels(
        engine_tasks.transformer(steps_per_epoch=3, dtype_policy="mixed_bfloat16"), 1.15
    ),
    "kernels_mlp": fused_kernels(engine_tasks.large_mlp(steps_per_epoch=40, optimizer="adamw"), 1.05),
    "kernels_lstm": fused_kernels(engine_tasks.lstm(steps_per_epoch=24), 1.2),
    "kernels_gru": fused_kernels(engine_tasks.gru(steps_per_epoch=24), 1.2),
    **{name: fused_kernels(task, 1.0) for name, task in KERNEL_TASKS.items()},
    "rows_adagrad": row_updates(engine_tasks.embedding_table(1_000_000, steps_per_epoch=20, optimizer="adagrad"), 10.0),
    "rows_sgd": row_updates(engine_tasks.embedding_table(1_000_000, steps_per_epoch=20, optimizer="sgd"), 4.0),
    "rows_adagrad_small": row_updates(
        engine_tasks.embedding_table(100_000, steps_per_epoch=100, optimizer="adagrad"), 2.5
    ),
    "rematerialization": rematerialization(engine_tasks.transformer(steps_per_epoch=3), 0.65),
}


def _equal_starts(task: Task) -> Iterator[TrainedModel]:
    """An endless stream of models with equal weights."""
    first = TrainedModel(task)
    yield first
    while True:
        yield TrainedModel(task, first.weights)


def _steps_alone(name: str, programs: list[Program], options: SuiteOptions, at_least: float) -> Findings:
    """The steps per second of the first of two programs, relative to the second."""
    first, second = times = _measure(name, programs, options)
    figure = throughput_ratio(name, of=first, to=second, part="steps alone", at_least=at_least)
    return Findings({name: times}, (figure,))


def _measure(name: str, programs: list[Program], options: SuiteOptions) -> tuple[Measurement, ...]:
    return measure_interleaved(
        programs, repetitions=options.repetitions, progress=lambda text: options.progress(f"{name}: {text}")
    )


def _wide_mlp_step_seconds(options: SuiteOptions) -> float:
    """The step time of the wide MLP on this machine, to choose the length of epochs."""
    task = engine_tasks.wide_mlp(steps_per_epoch=400).shortened(options.scale)
    program = FitProgram("tfaccel.fit", task, TrainedModel(task), is_tfaccel=True)
    program.warm_up()
    return min(program.run().steps_seconds for _ in range(3)) / task.num_steps
