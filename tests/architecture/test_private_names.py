"""What is private of other packages is named in the files `private_*.py` alone; nothing else replaces parts of it."""

import json

import pytest
from private_names import (
    PRIVATE_NAMES_OF_CLASSES,
    classes,
    defined_names,
    foreign_bases,
    is_quarantine,
    names_in_class,
    names_of_others,
    names_of_package,
    private_modules,
    private_names,
    replaced_parts,
)
from source_tree import Source, sources

FILE, FILES = "tfaccel/training/step.py", "tfaccel/training/private/private_api.py"


def test_private_names_of_others_stand_in_few_files():
    of_package, of_others = names_of_package(), names_of_others()
    assert [problem for source in sources() for problem in private_names(source, of_package, of_others)] == []


def test_private_modules_are_used_in_few_files():
    assert [problem for source in sources() for problem in private_modules(source)] == []


def test_only_few_files_replace_parts_of_others():
    assert [problem for source in sources() for problem in replaced_parts(source)] == []


def test_derived_classes_touch_no_private_name_of_their_bases(run_python):
    known = classes(sources())
    bases = {dotted: foreign_bases(dotted, known) for dotted in known}
    peers = ("torch.",)  # what the benchmarks compare with need not be installed
    asked = sorted(base for base in set().union(*bases.values()) if not base.startswith(peers))
    answer = json.loads(run_python(PRIVATE_NAMES_OF_CLASSES, *asked).stdout)
    assert "_save_trial" in answer["keras_tuner.Oracle"]
    assert {"_losses", "_flatten_layers"} <= set(answer["keras.layers.Layer"])
    problems = []
    for dotted, (source, node) in known.items():
        private = {name for base in bases[dotted] for name in answer.get(base, ())}
        if not is_quarantine(source):
            problems += [f"{dotted} touches {name}" for name in sorted(names_in_class(node) & private)]
    assert problems == []


@pytest.mark.parametrize(
    "text",
    [
        "from keras.src.trainers import trainer",
        "import tensorflow.python.eager.context",
        "from tensorflow.python import eager",
        "from keras import src",
        "load('tensorflow.python.eager')",
        "import tensorflow as tf\ntf.python.ops",
        "import tensorflow as tf\ndef f(x):\n    return isinstance(x, tf.__internal__.EagerTensor)",
        "import tf_keras\ntf_keras.__internal__.enable_unsafe_deserialization()",
        "from keras import __internal__",
        "from tensorflow_model_optimization.python.core.sparsity.keras import prune_registry",
        "from importlib import import_module\nimport_module('keras_tuner.src.engine')",
    ],
)
def test_private_module_is_found(text):
    assert private_modules(Source(FILE, text))
    assert private_modules(Source(FILES, text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "optimizer._accumulated_gradients",
        "def f(model):\n    model.layers[0]._losses.clear()",
        "variable._value = 1",
        "del variable._value",
        "getattr(callback, '_should_trace', False)",
        "hasattr(callback, '_should_trace')",
        "setattr(loss, '_direction', 'up')",
        "vars(value)['_keras_mask']",
        "operator.attrgetter('_value')(variable)",
        "operator.attrgetter('optimizer._iterations')(model)",
        "private_part(model, 'optimizer._iterations')",
        "[getattr(extended, f'_{name}') for name in names]",
        "getattr(extended, '_' + name)",
        "getattr(extended, f'_collective_{name}')",
        "type(strategy).__name__ != '_DefaultDistributionStrategy'",
        "model.evaluate(x, _use_cached_eval_dataset=True)",
        "instance_attributes(layer, {'_moments': moments})",
        "from keras.losses import _private",
        "from keras._tf_keras import keras",
        "import keras._tf_keras.keras as keras",
        "import keras\nkeras._tf_keras",
        "class Saver(keras.Layer):\n    def call(self, x):\n        return self._never_defined_here",
        "class Own:\n    _value = 1\n\n    def of(self, variable):\n        return variable._value",
    ],
)
def test_private_name_is_found(text):
    assert private_names(Source(FILE, text), defined_names(Source(FILE, text)), {"_value"})
    assert private_names(Source(FILES, text), set(), {"_value"}) == []


@pytest.mark.parametrize(
    "text",
    [
        "import os\nos._exit(1)",
        "class Own:\n    def __init__(self, other):\n        self._own, self._same = 1, other._own",
        "class Own:\n    _own = 1\n    def f(self):\n        return getattr(self, '_own'), getattr(self, f'_{self}')",
        "class Own(Base):\n    def _hook(self):\n        return super()._hook()",
        "name.endswith('_loss') or name.removesuffix('_loss')",
        "f'{name}_loss' + '_bytes'",
        "from tfaccel.training.step import _own",
        "vars(model)['_tfaccel_engine']",
        "f(_own=1)\ndef f(*, _own): pass",
        "'A sentence with _name in it, and tf._name.'",
        "model.__class__.__name__, model.__dict__",
    ],
)
def test_own_name_is_allowed(text):
    assert private_names(Source(FILE, text), defined_names(Source(FILE, text)), {"_value"}) == []


def test_class_is_followed_to_those_of_others():
    base = Source("tfaccel/tuning/base.py", "import keras_tuner as kt\nclass Base(kt.Oracle): pass")
    text = "from tfaccel.tuning.base import Base\nclass Own(Base):\n    _a: int\n    _b = 1\n    def _c(self): self._d"
    known = classes([base, Source("tfaccel/tuning/own.py", text)])
    assert foreign_bases("tfaccel.tuning.own.Own", known) == {"keras_tuner.Oracle"}
    assert names_in_class(known["tfaccel.tuning.own.Own"][1]) == {"_a", "_b", "_c", "_d"}


@pytest.mark.parametrize(
    "text",
    [
        "import keras\nkeras.metrics.Mean.update_state = update",
        "from keras.metrics import Mean\nMean.update_state = update",
        "import keras\nMean = keras.metrics.Mean\nMean.update_state = update",
        "import keras\nfor keras.metrics.Mean.update_state in (1, 2): pass",
        "import keras\nkeras.losses.Loss.call, x = f, g",
        "import tensorflow as tf\ntf.GradientTape.gradient = gradient",
        "import tensorflow as tf\nsetattr(tf.GradientTape, 'gradient', gradient)",
        "import tensorflow as tf\ndelattr(tf.GradientTape, 'gradient')",
        "import keras\nvars(keras.losses)['mean'] = f",
        "import keras\nkeras.losses.__dict__['mean'] = f",
        "def f(model):\n    type(model).train_step = step",
        "def f(model):\n    setattr(type(model), 'train_step', step)",
        "def f(model):\n    model.__class__ = Other",
        "def f(model):\n    object.__setattr__(model, '__class__', Other)",
        "def f(model):\n    model.__class__.train_step = step",
    ],
)
def test_replaced_part_is_found(text):
    assert replaced_parts(Source(FILE, text))
    assert replaced_parts(Source(FILES, text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "import keras\nmodel = keras.Model()\nmodel.stop_training = True",
        "import tensorflow as tf\noptions = tf.data.Options()\noptions.deterministic = True",
        "def f(self):\n    self.value = 1\n    type(self).count = 2",
        "import sys\nsys.path += ['folder']",
        "vars(model)['_tfaccel_engine'] = engine",
        "from tfaccel.training import own\nown.value = 1",
        "object.__setattr__(self, 'devices', ())",
    ],
)
def test_own_change_is_allowed(text):
    assert replaced_parts(Source(FILE, text)) == []
