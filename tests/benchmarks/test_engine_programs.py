"""What the engine's benchmark times is what it says: same batches, same steps, same start, true epoch borders."""

import pytest

CODE = """
import time
import numpy as np
import tfaccel
from tfaccel.benchmarks import engine_tasks
from tfaccel.benchmarks.engine_suite import ENGINE_FIGURES
from tfaccel.benchmarks.epoch_clock import EpochClock
from tfaccel.benchmarks.kernel_tasks import KERNEL_TASKS
from tfaccel.benchmarks.training_programs import FitProgram, HandWrittenLoop, TrainedModel
from tfaccel.scripts.benchmark import ENGINE_FIGURE_NAMES
from tfaccel.training.kernels.fused_kernels import LAYER_KERNELS
from tfaccel.training.kernels.optimizer_updates import fused_update

task = engine_tasks.mlp(steps_per_epoch=6, num_epochs=2)
weights = TrainedModel(task).weights
programs = [
    HandWrittenLoop(task, TrainedModel(task, weights)),
    FitProgram("ours", task, TrainedModel(task, weights), is_tfaccel=True, shuffle=False),
    FitProgram("ours, data", task, TrainedModel(task, weights), is_tfaccel=True, dataset=task.dataset()),
    FitProgram("ours, mapped", task, TrainedModel(task, weights), is_tfaccel=True, dataset=task.mapped_dataset()),
    FitProgram("Keras", task, TrainedModel(task, weights), is_tfaccel=False, shuffle=False),
]
losses = [program.warm_up() for program in programs]
np.testing.assert_allclose(losses, losses[0], rtol=1e-5)
assert 0.1 < losses[0] < 10.0, losses
for program in programs:
    for _ in range(2):  # every run starts anew
        window = program.run()
        np.testing.assert_allclose(window.loss, losses[0], rtol=1e-5, err_msg=program.name)
        assert len(window.epoch_seconds) == 2, program.name
        assert 0 < window.steps_seconds < sum(window.epoch_seconds) < window.wall_seconds, program.name

start = TrainedModel(task, weights)
start.reset()
try:
    start.check_steps(12)
except RuntimeError as error:
    assert "made 0 optimizer steps, expected 12" in str(error), error
else:
    raise SystemExit("a run without steps was taken for one")

clock = EpochClock()

def call():
    for _ in range(2):
        clock.epoch_begins()
        for _ in range(2):
            clock.batches_begin()
            time.sleep(0.02)
            clock.batches_end()
        time.sleep(0.05)
    return 0.5

window = clock.time(call)
assert all(tail >= 0.05 for tail in window.tail_seconds), window
assert window.steps_seconds >= 0.08, window
assert (len(window.epoch_seconds), window.loss) == (2, 0.5)

for task in (engine_tasks.cnn, engine_tasks.lstm, engine_tasks.transformer, engine_tasks.wide_mlp):
    small = task(steps_per_epoch=2, global_batch_size=2)
    x, y = small.arrays()
    assert small.compiled_model()(x[:2]).shape == (2, 10), small.name
    assert len(x) == len(y) == 4 and 0 <= y.min() <= y.max() < 10, small.name
for name, task in KERNEL_TASKS.items():  # each has its fused kernel in the step
    model = task.compiled_model()
    used = [kernel.__name__ for layer in model.layers for kernel in LAYER_KERNELS if kernel(layer)]
    wanted = "fused_" + name.removeprefix("kernel_").removesuffix("_masked").removesuffix("_bfloat16")
    is_update = name.startswith(("kernel_adam", "kernel_momentum")) and fused_update(model.optimizer)
    assert wanted in used or is_update, (name, used)
assert tuple(ENGINE_FIGURES) == ENGINE_FIGURE_NAMES
names = [layer.name for layer in engine_tasks.cnn(steps_per_epoch=2).build_model().layers]
assert sum(name.startswith("conv2d") for name in names) == 6, names
"""


@pytest.mark.slow
def test_programs_train_the_same(run_python):
    run_python(CODE)
