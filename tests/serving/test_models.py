"""Several models from one configuration file, which may change while they are served."""

import gc
import json
import re
import shutil
import weakref

import pytest
from running_server import build, wait_for

from tfaccel.errors import ServeError
from tfaccel.extras.serving.messages import RequestError
from tfaccel.extras.serving.metrics import Metrics
from tfaccel.extras.serving.model_config import ModelConfig, VersionPolicy, read_model_configs
from tfaccel.extras.serving.models import Models
from tfaccel.extras.serving.options import ServeOptions

ONE = """model_config_list: {
  config: { name: "one", base_path: "one", model_platform: "tensorflow",
            model_version_policy { specific { versions: 1 versions: 3 } }
            version_labels { key: 'stable' value: 1 } version_labels { key: 'new_1' value: 3 } },
  %s
}"""


@pytest.fixture
def folder(tmp_path):
    """A folder with two models' versions, which hold no model."""
    for name in ("one/1", "one/3", "two/7"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "saved_model.pb").write_bytes(b"")
    return tmp_path


def test_text_and_json_are_read(folder):
    (folder / "text").write_text(ONE % "config { name: 'two' base_path: 'two' model_version_policy { all {} } }")
    one = ModelConfig("one", folder / "one", VersionPolicy(versions=frozenset({1, 3})), {"stable": 1, "new_1": 3})
    assert read_model_configs(folder / "text") == [one, ModelConfig("two", folder / "two")]
    config = {"name": "two", "base_path": str(folder / "two"), "model_version_policy": {"latest": {"num_versions": 2}}}
    (folder / "json").write_text(json.dumps({"model_config_list": {"config": [config]}}))
    assert read_model_configs(folder / "json") == [ModelConfig("two", folder / "two", VersionPolicy(latest=2))]
    (folder / "newest").write_text("model_config_list { config { name: 'two' base_path: 'two' } }")
    assert read_model_configs(folder / "newest")[0].policy == VersionPolicy(latest=1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("improperly formatted file", 'is no list of models: 1:1 : Message type "tfaccel.serving_config.ModelServer'),
        ("", "names no model. Give each model one config with a name and base_path."),
        (ONE % "config { name: 'one' base_path: 'one' }", "names the model 'one' twice"),
        (ONE % "config { name: 'a/b' base_path: 'one' }", "model 'a/b': a name must have letters, digits"),
        (ONE % "config { name: 'two' base_path: 'none' }", "base_path must be a folder of versions. Received: 'none'."),
        (
            ONE % "config { name: 'two' base_path: 'two' model_platform: 'torch' }",
            "model_platform must be 'tensorflow'",
        ),
        (ONE % "config { name: 'two' base_path: 'two' logging_config {} }", 'has no field named "logging_config"'),
        (ONE % "config { name: 'two' base_path: 'two' version_labels { key: 'a-b' value: 7 } }", "Received: 'a-b'."),
        (ONE.replace("value: 3", "value: 2") % "", "label 'new_1' is version 2, which its policy does not serve."),
        (ONE.replace("versions: 1 versions: 3", "") % "", "the policy `specific` must name versions"),
        ('{"model_config_list": {"config": 3}}', "is no list of models"),
    ],
)
def test_fault_in_a_file_is_named(folder, text, message):
    (folder / "config").write_text(text)
    with pytest.raises(ServeError, match=re.escape(message)):
        read_model_configs(folder / "config")


def test_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ServeError, match=r"Cannot read .*nowhere \(--model_config_file\)"):
        read_model_configs(tmp_path / "nowhere")


def test_models_come_and_go_with_the_file(tmp_path, logical_devices, caplog):
    for name, bias in (("one/1", 0.0), ("one/3", 3.0), ("two/7", 7.0)):
        build(tmp_path / name, bias=bias)
    file, metrics = tmp_path / "config", Metrics()
    file.write_text(ONE % "")
    models = Models(read_model_configs(file), ServeOptions(poll_seconds=0.1), metrics)
    models.start(loaded=lambda versions: None, failed=pytest.fail)
    models.follow(file, 0.1)
    try:
        wait_for(lambda: models.is_ready)
        one = models.apis["one"].versions
        assert (one.available, one.labelled("stable"), one.labelled("new_1")) == ([1, 3], 1, 3)
        text = ONE.replace("versions: 1 ", "").replace("'stable' value: 1", "'stable' value: 3")
        file.write_text(text % "config { name: 'two' base_path: 'two' }")
        wait_for(lambda: "two" in models.apis and models.is_ready and one.available == [3])
        assert (models.apis["one"].versions, one.labelled("stable")) == (one, 3)
        with pytest.raises(RequestError, match=r"Unrecognized servable version label: old\. Labels: new_1, stable\."):
            one.labelled("old")
        file.write_text("broken")
        wait_for(lambda: "is no list of models" in caplog.text)
        assert set(models.apis) == {"one", "two"}
        gone = weakref.ref(one.get(3))
        one = None
        gc.disable()
        file.write_text("model_config_list { config { name: 'two' base_path: 'two' } }")
        wait_for(lambda: set(models.apis) == {"two"})
        wait_for(lambda: gone() is None)
        gauges = re.compile('^tfaccel_versions{model="one"', re.MULTILINE)
        wait_for(lambda: not gauges.search(metrics.text().decode()))  # it ends what it was asked before
        shutil.rmtree(tmp_path / "one")
        assert models.is_ready
    finally:
        gc.enable()
        models.close()
