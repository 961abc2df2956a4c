"""Serves a model over HTTP and gRPC, with TensorFlow Serving's protocols.

tfaccel serve --run_dir=runs/digits
tfaccel serve --run_dir=runs/digits --grpc_port=8500      # gRPC too
tfaccel serve --model=runs/digits/compressed/model.tflite
tfaccel serve --model=digits --port=8501                  # a folder that `tfaccel export` wrote, or of versions
tfaccel serve --model_config_file=models.config           # several models, in TensorFlow Serving's format

POST /v1/models/NAME[/versions/N|/labels/LABEL]:predict, :classify and :regress; GET /v1/models/NAME[/versions/N],
.../metadata, /healthz, /readyz and /metrics. gRPC: PredictionService (Predict, Classify, Regress, MultiInference,
GetModelMetadata) and ModelService (GetModelStatus). A folder of versions, each with a SavedModel or a model.tflite, is
watched: a new version is served once it is complete and loaded, without dropping requests. On SIGTERM, the server
finishes pending requests and exits. Needs pip install 'tfaccel[serve]'.
"""

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from absl import flags

from tfaccel.compressing.litert.file import is_litert_file
from tfaccel.errors import ServeError, VersionError
from tfaccel.exporting.load_model import ModelPlace
from tfaccel.extras.serving.model_config import ModelConfig, VersionPolicy, read_model_configs
from tfaccel.extras.serving.options import ServeOptions
from tfaccel.processes.quiet_start import quiet_tensorflow
from tfaccel.scripts.command import run_command
from tfaccel.scripts.command_flags import Flag, command_flags, option_flags
from tfaccel.scripts.model_flags import MODEL_FLAGS, chosen_place, clean_end, shown_log

_OPTIONS = option_flags(
    ServeOptions,
    {
        "host": "address to listen on; 0.0.0.0 accepts other machines, without authentication",
        "port": "HTTP port; 0 for any free port",
        "grpc_port": "gRPC port, at the same address (0.0.0.0 includes IPv6); 0 for any free port; no gRPC by default. "
        "TensorFlow Serving uses 8500",
        "max_batch_size": "max rows per batch; 1 for no batching",
        "batch_wait_ms": "milliseconds that a request waits for others to share a batch with",
        "max_queue": "max requests that wait for the model; others get status 429 (gRPC: RESOURCE_EXHAUSTED)",
        "max_request_bytes": "max size of a request's body; larger ones get status 413 (gRPC: RESOURCE_EXHAUSTED)",
        "body_seconds": "max seconds to receive a request's body; slower ones get status 408",
        "head_seconds": "max seconds to receive a request's headers; slower ones get status 408",
        "allowed_origins": "origins of web pages that may send requests (CORS), as https://example.org; * for all",
        "poll_seconds": "seconds between checks of version folders and --model_config_file",
        "max_versions": "serve this many of the newest versions; 0 for all",
        "stop_seconds": "max seconds to finish pending requests after SIGTERM",
    },
)
_FLAGS: dict[str, Flag] = {
    **MODEL_FLAGS,
    "model_config_file": (str, "instead of --model: a file with a model_config_list, in TensorFlow Serving's format"),
    "allow_file_operations": (False, "serve SavedModels that may read and write files, if you trust them"),
    **_OPTIONS,
}
_PACKAGES = ("httptools", "orjson", "prometheus_client", "starlette", "uvicorn")
_GRPC_PACKAGES = ("grpc", "tensorflow_serving")


def run(argv: list[str]) -> int:
    """Runs the command; returns its exit status."""
    values = command_flags(_FLAGS)
    return run_command(lambda: _main(values), argv, values, description=(__doc__ or "").strip())


def _main(values: flags.FlagValues) -> int:
    needed = _PACKAGES if values.grpc_port is None else (*_PACKAGES, *_GRPC_PACKAGES)
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise VersionError(f"The server needs {', '.join(missing)}. Install: pip install 'tfaccel[serve]'")
    settings = {name: values[name].value for name in _OPTIONS} | {"allowed_origins": tuple(values.allowed_origins)}
    options = ServeOptions(**settings, allow_file_operations=values.allow_file_operations)
    from tfaccel.extras.serving.http_protocol import check_address

    check_address(options.host, options.port)
    if options.grpc_port is not None:
        check_address(options.host, options.grpc_port, flag="grpc_port")
    config_file = values.model_config_file
    if config_file is not None:
        return _serve_configured(Path(config_file), options, values)
    place = chosen_place(values)
    quiet_tensorflow()
    with shown_log(program="serve"), _served(place, values.modules) as path:
        from tfaccel.extras.serving.server import serve

        policy = VersionPolicy(latest=options.max_versions)
        serve([ModelConfig(place.name, path, policy)], options, on_ready=_say)
    return 0


def _serve_configured(file: Path, options: ServeOptions, values: flags.FlagValues) -> int:
    given = [name for name in ("run_dir", "model", "name") if values[name].value is not None]
    if given:
        raise ServeError(f"Give --model_config_file or --{given[0]}. Received: both.")
    quiet_tensorflow()
    configs = read_model_configs(file)
    with shown_log(program="serve"):
        from tfaccel.extras.serving.server import serve

        serve(configs, options, config_file=file, on_ready=_say)
    return 0


def _say(addresses: Any, versions: Any) -> None:
    numbers = ", ".join(map(str, versions.available))
    more = "" if addresses.grpc is None else f", and with gRPC at {addresses.grpc}"
    url = f"{addresses.url}/v1/models/{versions.name}"
    print(f"Serving {versions.name} (version {numbers}) at {url}{more}", flush=True)


@contextlib.contextmanager
def _served(place: ModelPlace, modules: Sequence[str]) -> Iterator[Path]:
    """The folder or LiteRT file to serve; a `.keras` file is converted to a temporary SavedModel."""
    if place.path.is_dir() or is_litert_file(place.path):
        yield place.path
        return
    from tfaccel.exporting.export import write_served_copy

    with clean_end(), tempfile.TemporaryDirectory(prefix="tfaccel-serve-") as folder:
        write_served_copy(place, Path(folder), modules=modules)
        yield Path(folder)


if __name__ == "__main__":
    sys.exit(run(["serve", *sys.argv[1:]]))
