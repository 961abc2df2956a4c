"""Workers begin with the chief's values of all variables, which they receive in few broadcasts."""

import json
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from tfaccel.processes.local_cluster import run_local_cluster

PROGRAM = Path(__file__).with_name("initial_values_program.py")


@pytest.mark.slow
def test_workers_begin_with_the_values_of_the_chief(logical_devices):
    import initial_values_program as program
    import tensorflow as tf

    workers = run_local_cluster([sys.executable, str(PROGRAM)], num_workers=2, time_limit_seconds=300)
    first_table = keras.initializers.RandomNormal(seed=1)((7, 3))
    wanted = program.values(program.build(0), tf.distribute.get_strategy())
    for worker in workers:
        at_once, in_packs, table, zeros, later = json.loads(worker.stdout.splitlines()[-1])
        for one, other, third in zip(wanted, at_once, in_packs, strict=True):
            np.testing.assert_array_equal(one, other)
            np.testing.assert_array_equal(one, third)
        np.testing.assert_array_equal(table, first_table)  # sent in several parts: a pack has 20 bytes
        assert zeros == [[0.0] * 3, [0.0] * 3, [0.0] * 4, [1.0] * 4]  # which are not sent where all workers have zeros
        assert later == 0.0
    assert len(wanted) == 9 * len(program.SHAPES)
