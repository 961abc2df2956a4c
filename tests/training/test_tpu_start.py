"""Starting a TPU, as far as it can be tested without one: the child, the resolver, and error messages."""

import json

import pytest

CODE = """
import json, sys, types
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import tensorflow as tf
from made_up_machine import add_package, make_machine
from tfaccel import Plan
from tfaccel.hardware.doctor import ProbeResult
from tfaccel.hardware.machine import Machine
from tfaccel.training.workers.strategies import TpuLibrary, tpu_strategy

folder = Path(sys.argv[2])
plan = Plan(strategy="tpu", devices=("TPU:0", "TPU:1"), tpu="local", global_batch_size=16)
with_wheel = make_machine(folder, site_folders=(add_package(folder, "tensorflow-tpu", "2.20.0"),))
found, asked = {}, []

class MadeUp(TpuLibrary):
    tried = ProbeResult(ok=True, data={"num_devices": 2})
    error = None
    num_cores = 2

    def try_start(self, tpu):
        asked.append(["child", tpu])
        return self.tried

    def start(self, tpu):
        asked.append(["parent", tpu])
        if self.error:
            raise self.error
        return types.SimpleNamespace(num_replicas_in_sync=self.num_cores)

def outcome(plan=plan, machine=with_wheel, **attributes):
    library = MadeUp(machine)
    vars(library).update(attributes)
    asked.clear()
    try:
        strategy = tpu_strategy(plan, library)
    except Exception as error:
        return [f"{type(error).__name__}: {error}", list(asked)]
    return [strategy.num_replicas_in_sync, list(asked)]

found["starts"] = outcome()
address = Plan(strategy="tpu", devices=("TPU:0", "TPU:1"), tpu="grpc://10.0.0.2:8470", global_batch_size=16)
found["address"] = outcome(address)
found["no wheel"] = outcome(machine=make_machine(folder / "other"))
died = ProbeResult(ok=False, cause="its process was killed by SIGABRT", output="F0 x.inc:12] gone\\n")
found["aborts"] = outcome(tried=died)
found["hangs"] = outcome(tried=ProbeResult(ok=False, cause="no answer within 300 seconds (ended it)", has_hung=True))
found["parent fails"] = outcome(error=tf.errors.NotFoundError(None, None, "No OpKernel"))
found["other cores"] = outcome(num_cores=8)

# The real child and the real parent, with a TensorFlow that has no TPU.
found["real child"] = outcome(tried=TpuLibrary(Machine.here()).try_start("local"))
resolvers = []
class Resolver:
    def __init__(self, **arguments):
        resolvers.append(arguments)
    def master(self):
        return ""
tf.distribute.cluster_resolver.TPUClusterResolver = Resolver
started = []
tf.config.experimental_connect_to_cluster = lambda resolver: started.append("connected")
tf.tpu.experimental.initialize_tpu_system = lambda resolver: started.append("initialized")
tf.distribute.TPUStrategy = lambda resolver: started.append("strategy")
for name in ("local", "my-slice"):
    TpuLibrary(with_wheel).start(name)
found["resolver"] = [resolvers, started[:3]]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(run_python, tmp_path_factory, pytestconfig):
    tests = pytestconfig.rootpath / "tests"
    return json.loads(run_python(CODE, str(tests), str(tmp_path_factory.mktemp("tpu"))).stdout.splitlines()[-1])


def test_a_child_goes_first_then_this_process(found):
    assert found["starts"] == [2, [["child", "local"], ["parent", "local"]]]
    assert found["address"] == [2, [["child", "grpc://10.0.0.2:8470"], ["parent", "grpc://10.0.0.2:8470"]]]


def test_the_resolver_is_given_the_name_itself(found):
    assert found["resolver"] == [[{"tpu": "local"}, {"tpu": "my-slice"}], ["connected", "initialized", "strategy"]]


def test_without_the_wheel_nothing_is_started(found):
    message, asked = found["no wheel"]
    assert asked == []
    assert message.startswith("PlanError: TensorFlow drives TPUs only through the package tensorflow-tpu")
    assert "pip install 'tensorflow-tpu>=2.20,<2.21' 'libtpu<0.0.32'" in message


@pytest.mark.parametrize(
    ("case", "cause"),
    [
        (
            "aborts",
            "its process was killed by SIGABRT; its last words: F0 x.inc:12] gone.",
        ),
        ("hangs", "no answer within 300 seconds (ended it)."),
        ("real child", "NotFoundError: "),
    ],
)
def test_what_kills_the_child_spares_this_process(found, case, cause):
    message, asked = found[case]
    assert message.startswith(f"PlanError: The TPU 'local' cannot be used: {cause}")
    assert message.endswith("Run `tfaccel doctor`, or choose --strategy=none --devices=CPU:0.")
    assert asked == [["child", "local"]]


def test_an_error_of_this_process_is_told(found):
    message, asked = found["parent fails"]
    assert "The TPU 'local' cannot be used: No OpKernel" in message
    assert asked == [["child", "local"], ["parent", "local"]]


def test_another_number_of_cores_is_refused(found):
    message, _ = found["other cores"]
    assert message.startswith("PlanError: The plan has 2 replicas, but the TPU 'local' has 8 cores.")
    assert "with 8 devices" in message
