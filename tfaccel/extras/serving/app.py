"""The server's addresses: TensorFlow Serving's REST protocol, health and metrics.

Source: https://www.tensorflow.org/tfx/serving/api_rest
"""

from __future__ import annotations

import re
from typing import Any

from tfaccel.exporting.saved_model_files import is_version
from tfaccel.extras.serving.json_text import write_json
from tfaccel.extras.serving.messages import Answer, BodyRoom, Request, Send, error_answer
from tfaccel.extras.serving.metrics import CONTENT_TYPE, Metrics
from tfaccel.extras.serving.model_api import ModelApi
from tfaccel.extras.serving.models import Models
from tfaccel.extras.serving.request_error import RequestError

_ADDRESS = re.compile(
    r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>[^/:]+)|/labels/(?P<label>[^/:]+))?"
    r"(?::(?P<verb>predict|classify|regress)|/(?P<metadata>metadata))?",
    re.IGNORECASE,
)
_COUNTS = ("/metrics", "/monitoring/prometheus/metrics")
_OTHERS = {"/healthz", "/readyz", *_COUNTS}
_READING = ("GET", "HEAD")


class App:
    """The ASGI application.

    Args:
        models: the served models.
        metrics: counts requests.
        room: what the bodies of all requests share.
    """

    def __init__(self, models: Models, metrics: Metrics, room: BodyRoom) -> None:
        self._models, self._metrics, self._room = models, metrics, room

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        """Answers one request."""
        request = Request(scope["method"], scope["path"], dict(scope["headers"]), receive, self._room)
        try:
            answer = await self._answer(request)
        except RequestError as error:
            answer = error_answer(error)
        await answer.send(request, send)

    async def _answer(self, request: Request) -> Answer:
        if request.path in _OTHERS:
            _check_method(request, _READING)
            return self._other(request.path)
        found = _ADDRESS.fullmatch(request.path)
        if found is None:
            raise _malformed(request, 404)
        verb = found["verb"]
        _check_method(request, ("POST",) if verb else _READING)
        api = self._models.api(found["name"])
        method = verb.lower() if verb else "metadata" if found["metadata"] else "status"
        return await api.counted(method, _of_version(api, method, found, request))

    def _other(self, path: str) -> Answer:
        if path == "/healthz":
            return Answer(b'{"status":"alive"}')
        if path == "/readyz":
            ready = self._models.is_ready
            return Answer(write_json({"ready": ready}), 200 if ready else 503)
        return Answer(self._metrics.text(), media_type=CONTENT_TYPE)


async def _of_version(api: ModelApi, method: str, found: re.Match[str], request: Request) -> Answer:
    return await api.answer(method, _version(found, api), request)


def _version(found: re.Match[str], api: ModelApi) -> int | None:
    """The version in a URL; None if there is none."""
    if found["label"] is not None:
        return api.versions.labelled(found["label"])
    if found["version"] is None:
        return None
    if not is_version(found["version"]):
        raise RequestError(400, f"A version is a whole number. Received: {found['version']!r:.60}.")
    return int(found["version"])


def _check_method(request: Request, allowed: tuple[str, ...]) -> None:
    if request.method not in allowed:
        raise _malformed(request, 405, {"Allow": ", ".join(allowed)})


def _malformed(request: Request, status: int, headers: dict[str, str] | None = None) -> RequestError:
    return RequestError(status, f"Malformed request: {request.method} {request.path}", headers)
