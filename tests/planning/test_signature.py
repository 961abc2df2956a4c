"""Signatures of functions: the same in every process, and another one wherever something else may be computed."""

import functools
import sys

import pytest

from tfaccel.planning.reference import get_signature

SOURCE = """
import argparse, dataclasses, functools
import my_helpers

WIDTH = 8
NAMES = {"b", "a", "c"}
ARGUMENTS = argparse.Namespace(depth=2, run_dir="here")

def first():
    return WIDTH

def second():
    return WIDTH

def by_default(width=8):
    return width

def enclosing(width):
    def build():
        return [lambda: width in {"x", "y"}, NAMES]
    return build

def by_argument():
    return ARGUMENTS.depth

def by_helper():
    return my_helpers.make()

@functools.cache
def cached():
    return ARGUMENTS.depth

class Build:
    def __init__(self, width):
        self.width = width

    def __call__(self):
        return self.width

    def method(self):
        return self.width

@dataclasses.dataclass
class Config:
    width: int = 8

    def build(self):
        return self.width

CONFIG = Config()

def with_config(config=CONFIG):
    return by_config(config)

def by_config(config):
    return config.width

def by_global_config():
    return by_config(CONFIG)

def enclosing_config(config):
    return lambda: config.build()
"""


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A function that imports the module anew, perhaps changed."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def make(*change, helpers="def make(): return 1\n"):
        (tmp_path / "my_signed.py").write_text(SOURCE.replace(*change) if change else SOURCE)
        (tmp_path / "my_helpers.py").write_text(helpers)
        for name in ("my_signed", "my_helpers"):
            sys.modules.pop(name, None)
        import my_signed

        return my_signed

    yield make
    for name in ("my_signed", "my_helpers"):
        sys.modules.pop(name, None)


def test_functions_of_one_file_differ(made):
    module = made()
    functions = [module.first, module.second, module.by_default, module.enclosing(8), module.enclosing(9), module.Build]
    functions += [module.Build(8), module.Build(9), module.Build(8).method, module.Build(9).method]
    functions += [functools.partial(module.by_default, width) for width in (8, 9)]
    assert len({get_signature(one) for one in functions}) == len(functions)


def test_what_a_function_does_not_use_changes_nothing(made):
    before = made()
    kept = get_signature(before.by_argument), get_signature(before.Build(8)), get_signature(before.enclosing(8))
    module = made()
    module.ARGUMENTS.run_dir, module.WIDTH = "elsewhere", 9
    module.Build.calls_of_all = 5
    found = get_signature(module.by_argument), get_signature(module.Build(8)), get_signature(module.enclosing(8))
    assert found == kept


def test_objects_count_by_the_attributes_that_any_of_the_code_reads(made):
    module = made()
    of_values = {
        "partial": lambda width: functools.partial(module.by_config, module.Config(width)),
        "method": lambda width: module.Config(width).build,
        "closure": lambda width: module.enclosing_config(module.Config(width)),
    }
    for name, make in of_values.items():
        assert get_signature(make(8)) == get_signature(make(8)), name
        assert get_signature(make(8)) != get_signature(make(9)), name
    kept = get_signature(module.with_config), get_signature(module.by_global_config)
    module.CONFIG.width = 9
    assert not {get_signature(module.with_config), get_signature(module.by_global_config)} & {*kept}


@pytest.mark.parametrize("name", ["by_argument", "cached"])
def test_attributes_that_a_function_reads(made, name):
    module = made()
    kept = get_signature(getattr(module, name))
    module.ARGUMENTS.depth = 3
    assert get_signature(getattr(module, name)) != kept


def test_global_variables_defaults_and_sources(made):
    kept = {name: get_signature(getattr(made(), name)) for name in ("first", "by_default", "by_helper")}
    module = made()
    module.WIDTH = 9
    assert get_signature(module.first) != kept["first"]
    module.by_default.__defaults__ = (9,)
    assert get_signature(module.by_default) != kept["by_default"]
    assert get_signature(made("return WIDTH", "return 1 + WIDTH").by_default) != kept["by_default"]
    assert get_signature(made(helpers="def make(): return 2\n").by_helper) != kept["by_helper"]
    assert get_signature(made().by_helper) == kept["by_helper"]


def test_absl_flags_that_a_function_reads(monkeypatch):
    from absl import flags

    values = flags.FlagValues()
    flags.DEFINE_integer("width", 8, "", flag_values=values)
    flags.DEFINE_string("run_dir", "here", "", flag_values=values)

    def build():
        return values.width

    kept = get_signature(build)
    values(["program", "--run_dir=elsewhere"])
    assert get_signature(build) == kept
    values(["program", "--width=9"])
    assert get_signature(build) != kept


def test_models_by_config_and_class(logical_devices):
    import keras

    from tfaccel.planning.own_model import RebuiltModel

    def model(width, activation="relu"):
        layers = [keras.Input((4,), name="x"), keras.layers.Dense(width, activation, name="hidden")]
        made = keras.Sequential(layers, name="mine")
        made.compile("sgd", "mse")
        return made

    variants = [model(8), model(9), model(8, "tanh")]
    assert len({get_signature(RebuiltModel(one)) for one in variants}) == 3
    assert get_signature(RebuiltModel(model(8))) == get_signature(RebuiltModel(variants[0]))
    assert len({get_signature(lambda one=one: one) for one in variants}) == 3


def test_models_are_the_same_whatever_keras_has_counted(logical_devices):
    import keras

    def model(*, skips=True):
        inputs = keras.Input((4,))
        x = keras.layers.Dense(4)(inputs)
        y = keras.layers.Dense(4)(x)
        return keras.Model(inputs, keras.layers.Add()([x if skips else y, y]))

    assert get_signature(model()) == get_signature(model())
    assert get_signature(model()) != get_signature(model(skips=False))


def test_every_process_gives_the_same(made, run_python, tmp_path):
    made()
    imports = "import my_signed; from tfaccel.planning.reference import get_signature"
    code = f"{imports}; print(get_signature(my_signed.enclosing(8)))"
    outputs = {
        run_python(code, env={"PYTHONPATH": str(tmp_path), "PYTHONHASHSEED": seed}, fresh=True).stdout for seed in "123"
    }
    assert outputs == {get_signature(made().enclosing(8)) + "\n"}
