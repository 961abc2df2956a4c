"""The models of a server, which can be added and removed while it runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tfaccel.errors import ServeError
from tfaccel.extras.serving.metrics import Metrics
from tfaccel.extras.serving.model_api import ModelApi
from tfaccel.extras.serving.model_config import ModelConfig, read_model_configs
from tfaccel.extras.serving.options import ServeOptions
from tfaccel.extras.serving.request_error import RequestError
from tfaccel.extras.serving.servable import Servable
from tfaccel.extras.serving.versions import Versions

logger = logging.getLogger("tfaccel")

Loaded = Callable[[Versions], None]
Failed = Callable[[BaseException], None]


class Models:
    """Models by name.

    Args:
        configs: the initial models.
        options: the server's limits.
        metrics: counts their batches.

    Attributes:
        apis: name -> the model's API.
    """

    def __init__(self, configs: Sequence[ModelConfig], options: ServeOptions, metrics: Metrics) -> None:
        self._options, self._metrics = options, metrics
        self.apis: dict[str, ModelApi] = {config.name: self._api(config) for config in configs}
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def api(self, name: str) -> ModelApi:
        """The API of a model.

        Raises:
            RequestError: 404, if there is no model of this name.
        """
        if name not in self.apis:
            served = ", ".join(sorted(self.apis))
            raise RequestError(404, f"Servable not found for request: Latest({name}). Served here: {served}.")
        return self.apis[name]

    def start(self, *, loaded: Loaded, failed: Failed) -> None:
        """Starts to load all models, each in its own thread, which then watches for new versions.

        Args:
            loaded: called in a model's thread when its first versions are served.
            failed: called there with the error if none can be.
        """
        for api in self.apis.values():
            self._watch(api.versions, loaded, failed)

    def follow(self, file: Path, poll_seconds: float) -> None:
        """Starts a thread that applies a configuration file again whenever it changes."""
        self._thread = threading.Thread(target=self._follow, args=(file, poll_seconds), daemon=True)
        self._thread.start()

    def configure(self, configs: Sequence[ModelConfig]) -> None:
        """Serves exactly these models: loads new ones, unloads others, and updates the settings of the rest."""
        before, apis = self.apis, {}
        for config in configs:
            api = before.get(config.name)
            if api is not None and api.versions.folder == config.folder:
                api.versions.configure(config.policy, config.labels)
            else:
                api = self._api(config)
                self._watch(api.versions, _say, partial(_warn, config.name))
            apis[config.name] = api
        self.apis = apis
        for name, api in before.items():
            if apis.get(name) is not api:
                api.close()
                logger.info("%s is no longer served", name)
                if name not in apis:
                    self._metrics.forget(name)

    @property
    def is_ready(self) -> bool:
        """Whether each model has loaded its versions."""
        return all(api.versions.is_ready for api in self.apis.values())

    def close(self) -> None:
        """Answers the waiting requests, and ends all threads."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        for api in self.apis.values():
            api.close()

    def _api(self, config: ModelConfig) -> ModelApi:
        options, observe = self._options, self._metrics.batches(config.name)

        def load(folder: Path, version: int) -> Servable:
            return Servable(
                folder,
                version,
                max_batch_size=options.max_batch_size,
                observe=observe,
                allow_file_operations=options.allow_file_operations,
            )

        versions = Versions(config.name, config.folder, load, policy=config.policy, labels=config.labels)
        return ModelApi(versions, options, self._metrics)

    def _watch(self, versions: Versions, loaded: Loaded, failed: Failed) -> None:
        versions.watch(self._options.poll_seconds, loaded=partial(loaded, versions), failed=failed)

    def _follow(self, file: Path, poll_seconds: float) -> None:
        known = _content(file)
        while not self._stopped.wait(poll_seconds):
            found = _content(file)
            if found == known:
                continue
            known = found
            try:
                self.configure(read_model_configs(file))
                logger.info("%s was reloaded", file)
            except ServeError as error:  # The current models stay.
                logger.warning("%s", error)


def _content(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError:
        return None


def _say(versions: Versions) -> None:
    logger.info("%s is served", versions.name)


def _warn(name: str, error: BaseException) -> None:
    logger.warning("%s cannot be served: %s", name, error)
