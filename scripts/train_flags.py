"""The flags of `tfaccel train` beyond those of the plan and of the workload's name."""

import inspect
import os
import sys
from importlib import import_module
from typing import Any

from absl import flags

from tfaccel.errors import PlanError, TfaccelError, WorkloadError
from tfaccel.planning.recipe_list import RECIPES_PACKAGE
from tfaccel.scripts.plan_flags import AUTO

# Flags that become arguments of the workload's function, where they are set: flag -> the kind of value, and its help.
_NUMBER, _COUNT, _TEXT = "a number", "a whole number of at least 1", "a text"
_WORKLOAD_OPTIONS = {
    "data_dir": (_TEXT, "the data to train on, or auto for the recipe's own"),
    "image_size": (_COUNT, "height and width to which images are brought, in pixels, or auto"),
    "optimizer": (_TEXT, "an optimizer of Keras by its name, or auto for the recipe's choice"),
    "learning_rate": (_NUMBER, "the highest learning rate, or auto for one that suits the optimizer"),
    "weight_decay": (_NUMBER, "as in Keras, multiplied by the learning rate at each step, or auto"),
    "clipnorm": (_NUMBER, "the largest norm of each weight's gradient, or auto for the recipe's choice"),
    "global_clipnorm": (_NUMBER, "the largest norm of all gradients together, or auto for the recipe's choice"),
}
_WORKLOAD_SWITCHES = {
    "ema": "train with a moving average of the weights, and end with it",
    "remat": "calculate inner values again in the backward pass: less memory, more time",
}
_RUN_OPTIONS = {
    "epochs": "passes over the training data, or auto for the recipe's choice",
    "checkpoint_interval": "optimizer steps between checkpoints, or auto for one each epoch",
}


def define_train_flags() -> None:
    """Defines the flags, once for the whole program."""
    texts = {name: text for name, (_, text) in _WORKLOAD_OPTIONS.items()} | _RUN_OPTIONS
    for name, text in texts.items():
        flags.DEFINE_string(name, AUTO, text, module_name=__name__, allow_override=True)
    for name, text in _WORKLOAD_SWITCHES.items():
        flags.DEFINE_bool(name, False, text, module_name=__name__, allow_override=True)
    own: dict[str, Any] = {"module_name": __name__, "allow_override": True}
    flags.DEFINE_string("run_dir", None, "a new folder for all that the run leaves", **own)
    flags.DEFINE_string("plan", None, "JSON file with the plan; flags that are set change it", **own)
    flags.DEFINE_integer("seed", 0, "decides initial weights, dropout and the order of the data", lower_bound=0, **own)
    help_text = "auto goes on from the newest checkpoint in --run_dir, if it holds this very run"
    flags.DEFINE_enum("resume", "never", ["never", "auto"], help_text, **own)
    flags.DEFINE_bool("json", False, "print the result as JSON, and all else on standard error", **own)
    flags.DEFINE_bool("quiet", False, "no plan and no progress; the result alone", **own)


def workload_options() -> dict[str, Any]:
    """The arguments of the workload's function that are set by flags.

    Raises:
        TfaccelError: for a value that is not of the flag's kind.
    """
    options: dict[str, Any] = {}
    for name, (kind, _) in _WORKLOAD_OPTIONS.items():
        text = str(flags.FLAGS[name].value)
        if text != AUTO:
            options[name] = _value(name, text, kind)
    for name in _WORKLOAD_SWITCHES:
        if flags.FLAGS[name].present:
            options[name] = flags.FLAGS[name].value
    return options


def run_option(name: str) -> int | None:
    """The value of --epochs or --checkpoint_interval; None for auto."""
    text = str(flags.FLAGS[name].value)
    return None if text == AUTO else _value(name, text, _COUNT)


def run_dir() -> str:
    """The value of --run_dir, which must be given."""
    path: str | None = flags.FLAGS["run_dir"].value
    if not path:
        raise TfaccelError("Give --run_dir=DIR, a new folder for all that the run leaves.")
    return path


def workload_parameters() -> dict[str, Any]:
    """Parameter -> default value of the function that --recipe or --workload names; empty where it cannot be loaded."""
    recipe, import_path = flags.FLAGS["recipe"].value, flags.FLAGS["workload"].value
    module, _, function = (f"{RECIPES_PACKAGE}.{recipe}:workload" if recipe else import_path or "").partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        signature = inspect.signature(getattr(import_module(module), function))
    except Exception:  # Loading the workload will say what is wrong.
        return {}
    return {name: parameter.default for name, parameter in signature.parameters.items()}


def chosen_epochs(parameters: dict[str, Any]) -> int:
    """The value of --epochs, or the default of the workload's own parameter `epochs`."""
    epochs = run_option("epochs")
    if epochs is None:
        epochs = parameters.get("epochs")
    if type(epochs) is not int:
        raise WorkloadError("This workload does not say how many epochs it needs. Give --epochs=NUMBER.")
    return epochs


def _value(name: str, text: str, kind: str) -> Any:
    convert = {_TEXT: str, _NUMBER: float, _COUNT: int}[kind]
    try:
        value = convert(text)
    except ValueError:
        value = None
    if value is None or (kind == _COUNT and value < 1):
        raise PlanError(f"--{name} must be {kind}, or auto. Received: --{name}={text}.")
    return value
