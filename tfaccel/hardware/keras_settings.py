"""The backend of Keras, and whether tf.keras is the old Keras 2, without importing either."""

import json
from pathlib import Path

from tfaccel.hardware.machine import Machine


def keras_backend(machine: Machine) -> tuple[str, str]:
    """Keras's backend and its source: "KERAS_BACKEND", the path of keras.json, or "default".

    Keras reads the environment first, then `keras.json` in KERAS_HOME or ~/.keras; it ignores a malformed file.
    """
    from_environ = machine.environ.get("KERAS_BACKEND")
    if from_environ:
        return from_environ, "KERAS_BACKEND"
    path = Path(machine.environ.get("KERAS_HOME") or machine.home / ".keras") / "keras.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "tensorflow", "default"
    backend = config.get("backend") if isinstance(config, dict) else None
    return (backend, str(path)) if isinstance(backend, str) and backend else ("tensorflow", "default")


def uses_legacy_keras(machine: Machine) -> bool:
    """Whether TF_USE_LEGACY_KERAS makes `tf.keras` the old Keras 2."""
    return machine.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")
