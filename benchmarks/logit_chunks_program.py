"""Peak memory and seconds per step of a large vocabulary, with the logits whole or in chunks, in this process.

    python -m tfaccel.benchmarks.logit_chunks_program --chunks=16 --xla

16 texts of 256 tokens, a vocabulary of 32,000, an embedding, a dense layer of width 256 and `Dense(32000)`, with Adam
in float32. Prints JSON: `seconds`, the median of four calls of one step; `peak_bytes`, of the whole process; and
`before_bytes`, its peak before training.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time

import numpy as np
from absl import flags

_VOCABULARY, _WIDTH, _BATCH, _LENGTH, _STEPS = 32_000, 256, 16, 256, 4


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(arguments: list[str]) -> int:
    """Trains one step, then four in calls that are timed."""
    values = flags.FlagValues()
    flags.DEFINE_integer("chunks", 1, "the plan field logit_chunks", flag_values=values)
    flags.DEFINE_bool("xla", False, "whether XLA compiles the step", flag_values=values)
    values(arguments)
    import keras

    from tfaccel import fit
    from tfaccel.training.fit import plan_of_model

    tokens = keras.Input((_LENGTH,), dtype="int32")
    x = keras.layers.Dense(_WIDTH, "gelu")(keras.layers.Embedding(_VOCABULARY, _WIDTH)(tokens))
    model = keras.Model(tokens, keras.layers.Dense(_VOCABULARY)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=values.xla)
    plan = plan_of_model(model, batch_size=_BATCH, logit_chunks=values.chunks, steps_per_execution=1)
    batch = np.random.default_rng(0).integers(0, _VOCABULARY, (_BATCH, _LENGTH)).astype("int32")
    before, seconds = _peak_bytes(), []
    for _ in range(1 + _STEPS):
        start = time.perf_counter()
        history = fit(model, batch, np.roll(batch, -1, axis=1), verbose=0, plan=plan).history
        seconds.append(time.perf_counter() - start)
    found = {"seconds": statistics.median(seconds[1:]), "peak_bytes": _peak_bytes(), "before_bytes": before}
    sys.stdout.write(json.dumps({**found, "loss": history["loss"][-1]}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
