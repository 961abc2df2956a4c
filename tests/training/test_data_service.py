"""tf.data service workers prepare the batches of an epoch as they are without them, also if one is killed."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tfaccel import Plan, Workload
from tfaccel.errors import DataError, PlanError, WorkloadError
from tfaccel.processes.local_cluster import run_local_cluster

PROGRAM = str(Path(__file__).with_name("data_service_program.py"))
PLAN = {"strategy": "none", "devices": ("CPU:0",), "global_batch_size": 4}


def found_by(run_python, *arguments):
    code = f"import sys; sys.path.insert(0, {str(Path(PROGRAM).parent)!r}); import data_service_program as program; "
    done = run_python(f"{code}program.main(*sys.argv[1:])", *map(str, arguments))
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_killed_and_resumed_runs_end_as_without_data_workers(run_python, tmp_path):
    found = found_by(run_python, tmp_path, "without", "killed", "resumed")
    assert found["killed"] == found["without"]
    assert found["resumed"] == found["without"]
    killed = "was killed by SIGKILL (often: out of memory), and is started again (1 of 3)"
    for name in ("Data worker 0 of 2", "Data worker 1 of 2", "The dispatcher of the data workers"):
        assert any(text.startswith(f"{name} {killed}") for text in found["warnings"]), found["warnings"]
    assert found["left"] == []


@pytest.mark.slow
def test_a_run_ends_with_one_line_if_a_data_worker_cannot_live(run_python, tmp_path):
    found = found_by(run_python, tmp_path, "without", "resumed without", "given up")
    assert found["resumed without"] == found["without"]
    assert found["given up"].startswith(
        "Data worker 0 of 1 was killed by SIGKILL (often: out of memory), as after each of 3 restarts: the training "
        "batches cannot be prepared. Train without data_service to see whether the data are the reason"
    )
    assert found["left"] == []


@pytest.mark.slow
def test_each_of_two_training_workers_has_data_workers_of_its_own(tmp_path):
    command = [sys.executable, PROGRAM, str(tmp_path), "two workers", "two workers without"]
    workers = run_local_cluster(command, num_workers=2, time_limit_seconds=400)
    found = [json.loads(worker.stdout.splitlines()[-1]) for worker in workers]
    assert found[0]["two workers"] == found[0]["two workers without"] == found[1]["two workers"]
    assert found[0]["left"] == found[1]["left"] == []


@pytest.mark.slow
def test_no_process_outlives_a_killed_run():
    code = (
        "import json, time\n"
        "from tfaccel.extras.data_service.data_servers import DataServers\n"
        "servers = DataServers(2)\n"
        "servers.wait()\n"
        "print(json.dumps([servers.services, servers.process_ids]), flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as run:
        services, processes = json.loads(run.stdout.readline())
        listening = subprocess.run(["ss", "-ltn"], capture_output=True, text=True, check=True).stdout
        run.kill()
    for service in services:
        port = service.rpartition(":")[2]
        (line,) = [line for line in listening.splitlines() if re.search(rf":{port}\s", line)]
        assert "127.0.0.1" in line
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{process}").exists() for process in processes.values()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [kind for kind, process in processes.items() if Path(f"/proc/{process}").exists()]


@pytest.fixture
def tf(logical_devices):
    import tensorflow

    return tensorflow


def make_source(train_data, data_service=1, **fields):
    """The source of a workload with data workers."""
    from types import SimpleNamespace

    from tfaccel.training.run.workload_source import WorkloadSource

    work = Workload("mine", object, dict, train_data, global_batch_size=4)
    alone = SimpleNamespace(num_workers=1, num_replicas=1, worker_index=0)
    return WorkloadSource(work, Plan(**PLAN, data_service=data_service, **fields), alone, seed=0)


def refused(dataset, message, data_service=1):
    """`train_data` that returns a dataset is refused before a process starts."""
    with pytest.raises((PlanError, WorkloadError), match=re.escape(message)):
        make_source(lambda size, *, seed, epoch: dataset, data_service)


def test_what_data_workers_cannot_repeat_is_refused_before_training(tf):
    tf.random.set_seed(None)  # a seed of the whole process, which an earlier test may have set, seeds shuffles too
    numbers = tf.data.Dataset.range(40).batch(4)
    cannot = "tf.data service workers cannot prepare train_data of workload 'mine': "
    python = f"{cannot}it runs Python code (tf.py_function, tf.numpy_function, from_generator, a PyDataset)"

    def doubled(x):
        return 2 * x

    for stateful in (True, False):
        function = lambda x, s=stateful: tf.numpy_function(doubled, [x], tf.int64, stateful=s)  # noqa: E731
        refused(numbers.map(function), python)
    refused(numbers.map(lambda x: tf.py_function(doubled, [x], tf.int64)), python)
    made = tf.data.Dataset.from_generator(lambda: iter([1]), output_signature=tf.TensorSpec([], tf.int32))
    refused(made.apply(tf.data.experimental.assert_cardinality(1)), python)
    variable = tf.Variable(3, dtype=tf.int64)
    refused(numbers.map(lambda x: x + variable), f"{cannot}ReadVariableOp reads or changes state of this process")
    refused(numbers.map(lambda x: tf.random.uniform([])), f"{cannot}RandomUniform draws random numbers that depend")
    refused(numbers.shuffle(9), f"{cannot}the dataset is shuffled without a seed: write `.shuffle(..., seed=NUMBER)`.")
    loose = numbers.map(doubled, num_parallel_calls=2, deterministic=False)
    refused(loose, f"{cannot}ParallelMapDatasetV2 is not deterministic. Leave out `deterministic=False`.")
    refused(numbers.filter(lambda x: True), "The number of batches of train_data of workload 'mine' is unknown")
    refused(numbers.repeat(), "train_data of workload 'mine' returned an infinite dataset.")
    refused(numbers, "takes no `every`, without which each of 2 data workers would prepare all batches.", 2)


def test_images_of_files_can_be_prepared(tf, tmp_path):
    """`decoded` must have no stateful operation, such as an assertion."""
    from PIL import Image

    from tfaccel.data.images.files import read_image_set
    from tfaccel.data.images.generative_data import ExampleData
    from tfaccel.data.images.image_data import ImageData
    from tfaccel.extras.data_service.data_service import check_sendable

    for name in ("cat", "dog"):
        for number, suffix in enumerate(("png", "jpg", "bmp", "gif", "png")):
            path = tmp_path / name / f"{number}.{suffix}"
            path.parent.mkdir(exist_ok=True)
            Image.fromarray(np.full((12, 10, 3), 40 * number, np.uint8)).save(path)
    images = read_image_set(tmp_path, image_size=8)
    for data in (ImageData(images), ExampleData(tmp_path, latent_size=2, image_size=8)):
        check_sendable(data.train_data(4, seed=0, epoch=0, every=(0, 1)), "photos", 1)


def test_large_arrays_are_refused(tf, monkeypatch):
    from tfaccel.extras.data_service import data_service

    monkeypatch.setattr(data_service, "MAX_BYTES", 1 << 20)
    rows = tf.data.Dataset.from_tensor_slices(np.zeros((1 << 19,), np.float32)).batch(4)
    refused(rows, "it holds 2 MiB of arrays, which would be sent to each worker in every epoch; at most 1 MiB are.")


def test_users_data_that_need_no_workers_or_depend_on_earlier_passes_are_refused(tf):
    from tfaccel.data.given_data import given_data

    with pytest.raises(PlanError, match="arrays in memory: each step takes its rows from them, and there is nothing"):
        make_source(given_data(np.zeros((8, 2)), np.zeros(8)))
    shuffled = tf.data.Dataset.range(40).shuffle(40, seed=1).batch(4)
    with pytest.raises(PlanError, match=r"The order of this tf\.data\.Dataset may depend on how often it was iterated"):
        make_source(given_data(shuffled.map(lambda x: (x, x))))


def test_a_cache_that_was_asked_for_is_refused(tf):
    from tfaccel.data.cache import CacheOptions
    from tfaccel.data.pipeline import Pipeline

    pipeline = Pipeline(lambda rows: rows, num_examples=8, cache=CacheOptions(place="memory"))
    with pytest.raises(DataError, match=r"to be cached \(place='memory'\), but a cache belongs to one process"):
        pipeline.train(4, seed=0, epoch=0, every=(0, 1))
    with pytest.raises(PlanError, match=r"`cache_data` keeps examples in the memory of the process that trains"):
        Plan(**PLAN, data_service=1, cache_data=True)


def test_wrong_numbers_of_data_workers():
    for wrong in (0, -1, "2", 1.5, True):
        with pytest.raises(PlanError, match="must be a whole number of at least 1, or None for no data workers"):
            Plan(**PLAN, data_service=wrong)
    with pytest.raises(PlanError, match="`data_service` must be at most 1024, or None for no data workers"):
        Plan(**PLAN, data_service=1025)
