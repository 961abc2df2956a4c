"""Only the runtime changes global state: the environment, and TensorFlow's, Keras's and numpy's settings."""

import ast
import re

import pytest
from source_tree import Source, aliases, dotted_name, sources

# These are programs: the parity child splits the CPU of its own process, the fork server prepares those that it makes,
# and so does a notebook that forks workers; a worker that waits takes its variables when it begins.
# TensorFlow reads its log level when it is imported, which a quiet start does.
RUNTIME_FILES = {
    "tfaccel/training/runtime.py",
    "parity/child.py",
    "tfaccel/processes/fork_server_program.py",
    "tfaccel/processes/quiet_start.py",
    "tfaccel/launching/notebook_launch.py",
    "tfaccel/training/waiting_program.py",
}

SETTER = re.compile(
    r"keras\.(config|backend)\.(set_|enable_|disable_).*"
    r"|keras\.mixed_precision\.set_.*"
    r"|keras\.utils\.set_random_seed"
    r"|tensorflow\.(config|config\.experimental|config\.threading|config\.optimizer)\.(set_|enable_|run_functions_).*"
    r"|tensorflow\.random\.set_seed"
    r"|tensorflow\.distribute\.experimental_set_strategy"
    r"|(numpy\.random|random)\.seed"
    r"|os\.(putenv|unsetenv)"
    r"|os\.environ\.(update|setdefault|pop|popitem|clear|__setitem__|__delitem__)"
)


def global_changes(source: Source) -> list[str]:
    """Calls of global setters, and writes to os.environ."""
    if source.path in RUNTIME_FILES:
        return []
    names = aliases(source)
    found = []
    for node in source.nodes:
        changed = [target for target in written_targets(node) if dotted_name(target, names) == "os.environ"]
        called = dotted_name(node.func, names) if isinstance(node, ast.Call) else ""
        if changed:
            found.append(f"{source.path}:{node.lineno}: writes os.environ")
        if SETTER.fullmatch(called):
            found.append(f"{source.path}:{node.lineno}: calls {called}")
    return found


def written_targets(node: ast.AST) -> list[ast.AST]:
    """What a statement assigns to or deletes; for `a[b] = c` that is `a`."""
    targets: list[ast.AST] = []
    if isinstance(node, (ast.Assign, ast.Delete)):
        targets = list(node.targets)
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        targets = [node.target]
    targets = [part for target in targets for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
    return [target.value if isinstance(target, ast.Subscript) else target for target in targets]


def test_only_the_runtime_changes_global_state():
    assert [problem for source in sources() if source.in_library for problem in global_changes(source)] == []


@pytest.mark.parametrize(
    "text",
    [
        "import os\nos.environ['A'] = '1'",
        "import os as system\nsystem.environ['A'] += '1'",
        "from os import environ\ndel environ['A']",
        "import os\nos.environ.update(A='1')",
        "import os\ndef f():\n    os.environ.setdefault('A', '1')",
        "import os\nos.environ |= {'A': '1'}",
        "import os\nos.putenv('A', '1')",
        "import keras\nkeras.config.set_dtype_policy('float32')",
        "from keras import config\nconfig.set_floatx('float32')",
        "from keras.config import set_dtype_policy as choose\nchoose('float32')",
        "import tensorflow as tf\ntf.keras.mixed_precision.set_global_policy('float32')",
        "import tensorflow as tf\ntf.config.threading.set_intra_op_parallelism_threads(2)",
        "import tensorflow as tf\ntf.config.set_visible_devices([])",
        "import tensorflow as tf\ntf.config.experimental.set_memory_growth(gpu, True)",
        "import tensorflow as tf\ntf.config.experimental.enable_op_determinism()",
        "import tensorflow as tf\ntf.config.run_functions_eagerly(True)",
        "from tensorflow import random\nrandom.set_seed(1)",
        "import keras\nkeras.utils.set_random_seed(1)",
        "import numpy as np\nnp.random.seed(1)",
    ],
)
def test_change_is_found(text):
    assert len(global_changes(Source("tfaccel/training/fit.py", text))) == 1
    assert global_changes(Source("tfaccel/training/runtime.py", text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "import os\nprint(os.environ['A'], os.environ.get('B'))",
        "import os\nenvironment = dict(os.environ)\nenvironment['A'] = '1'",
        "import keras\nkeras.config.dtype_policy()",
        "import tensorflow as tf\ntf.config.list_physical_devices()",
        "import numpy as np\nnp.random.default_rng(1)",
    ],
)
def test_reading_is_allowed(text):
    assert global_changes(Source("tfaccel/training/fit.py", text)) == []
