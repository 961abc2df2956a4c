"""Which models and versions are served, and the configuration file that names them, in TensorFlow Serving's format.

The messages have the fields and numbers of TensorFlow Serving's own, under names of their own, so that both can be
imported together. Source: https://www.tensorflow.org/tfx/serving/serving_config
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory, text_format

from tfaccel.errors import ServeError, in_one_line
from tfaccel.exporting.load_model import url_name
from tfaccel.exporting.saved_model_files import GRAPH_FILE, holds_model, no_saved_model, version_folders
from tfaccel.local_path import local_path
from tfaccel.short_repr import noun

_PACKAGE = "tfaccel.serving_config"
_PLATFORM = "tensorflow"


@noun(kw_only=False)
class VersionPolicy:
    """Which versions of a model are served.

    Args:
        latest: number of newest versions; 0 for all.
        versions: if not empty, exactly these.

    Example:
        >>> VersionPolicy(latest=1)
        VersionPolicy(latest=1)
    """

    latest: int = 0
    versions: frozenset[int] = frozenset()


@noun(kw_only=False, error=ServeError)
class ModelConfig:
    """One served model.

    Args:
        name: the model's name in requests.
        folder: holds its versions, or is one of them; or a LiteRT file.
        policy: which versions are served.
        labels: version labels.
    """

    name: str
    folder: Path
    policy: VersionPolicy = field(default_factory=VersionPolicy)
    labels: Mapping[str, int] = field(default_factory=dict)


def read_model_configs(file: Path) -> list[ModelConfig]:
    """The models in a file with a `model_config_list`: protocol buffer text, or JSON of the same fields.

    A model without a policy is served with its newest version, as in TensorFlow Serving.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ServeError(f"Cannot read {file} (--model_config_file): {error}.") from error
    message = _server_config()()
    try:
        if text.lstrip().startswith("{"):
            json_format.Parse(text, message)
        else:
            text_format.Parse(text, message)
    except (json_format.ParseError, text_format.ParseError) as error:
        raise ServeError(
            f"{file} (--model_config_file) is no list of models: {in_one_line(error)}. Write "
            'model_config_list { config { name: "NAME" base_path: "FOLDER" } }.'
        ) from error
    found = [_checked(config, file) for config in message.model_config_list.config]
    names = [config.name for config in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if not found or twice is not None:
        fault = "names no model" if twice is None else f"names the model {twice!r} twice"
        raise ServeError(f"{file} (--model_config_file) {fault}. Give each model one config with a name and base_path.")
    return found


def _checked(config: Any, file: Path) -> ModelConfig:
    place = f"{file} (--model_config_file): model {config.name!r}"
    if not config.name or url_name(config.name) != config.name:
        raise ServeError(f"{place}: a name must have letters, digits, '-', '_' and '.' only.")
    if config.model_platform not in ("", _PLATFORM):
        raise ServeError(f"{place}: model_platform must be {_PLATFORM!r}. Received: {config.model_platform!r}.")
    folder = file.parent / local_path(config.base_path, ServeError)
    if not config.base_path or not folder.is_dir():
        raise ServeError(f"{place}: base_path must be a folder of versions. Received: {config.base_path!r}.")
    if not (folder / GRAPH_FILE).is_file() and not any(map(holds_model, version_folders(folder).values())):
        raise ServeError(f"{place}: {no_saved_model(folder)}")
    policy, labels = _policy(config.model_version_policy, place), dict(config.version_labels)
    for label, version in labels.items():
        if not label or not label.replace("_", "").isalnum() or not label.isascii():
            raise ServeError(f"{place}: a version label must have letters, digits and '_' only. Received: {label!r}.")
        if policy.versions and version not in policy.versions:
            raise ServeError(f"{place}: label {label!r} is version {version}, which its policy does not serve.")
    return ModelConfig(config.name, folder, policy, labels)


def _policy(policy: Any, place: str) -> VersionPolicy:
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        return VersionPolicy()
    if choice == "specific":
        if not policy.specific.versions or min(policy.specific.versions) < 0:
            raise ServeError(f"{place}: the policy `specific` must name versions, from 0 on.")
        return VersionPolicy(versions=frozenset(policy.specific.versions))
    return VersionPolicy(latest=max(1, policy.latest.num_versions))


@functools.cache
def _server_config() -> Any:
    """The protobuf class of configuration files."""
    kinds = descriptor_pb2.FieldDescriptorProto
    text, number, message = kinds.TYPE_STRING, kinds.TYPE_INT64, kinds.TYPE_MESSAGE
    file = descriptor_pb2.FileDescriptorProto(name="tfaccel/serving_config.proto", package=_PACKAGE, syntax="proto3")
    latest, everything, specific = (file.message_type.add(name=name) for name in ("Latest", "All", "Specific"))
    _add(latest, "num_versions", 1, kinds.TYPE_UINT32)
    _add(specific, "versions", 1, number, repeated=True)
    policy = file.message_type.add(name="Policy")
    policy.oneof_decl.add(name="policy_choice")
    for place, choice in enumerate((latest, everything, specific)):
        _add(policy, choice.name.lower(), 100 + place, message, of=choice.name)
        policy.field[-1].oneof_index = 0
    config = file.message_type.add(name="ModelConfig")
    for name, place in (("name", 1), ("base_path", 2), ("model_platform", 4)):
        _add(config, name, place, text)
    _add(config, "model_version_policy", 7, message, of="Policy")
    entry = config.nested_type.add(name="VersionLabelsEntry")
    entry.options.map_entry = True
    _add(entry, "key", 1, text)
    _add(entry, "value", 2, number)
    _add(config, "version_labels", 8, message, of="ModelConfig.VersionLabelsEntry", repeated=True)
    _add(file.message_type.add(name="ModelConfigList"), "config", 1, message, of="ModelConfig", repeated=True)
    _add(file.message_type.add(name="ModelServerConfig"), "model_config_list", 1, message, of="ModelConfigList")
    pool = descriptor_pool.Default()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.ModelServerConfig"))


def _add(kind: Any, name: str, number: int, field_type: int, *, of: str = "", repeated: bool = False) -> None:
    labels = descriptor_pb2.FieldDescriptorProto
    label = labels.LABEL_REPEATED if repeated else labels.LABEL_OPTIONAL
    made = kind.field.add(name=name, number=number, type=field_type, label=label)
    if of:
        made.type_name = f".{_PACKAGE}.{of}"
