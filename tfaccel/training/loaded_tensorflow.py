"""Whether a TensorFlow that is loaded already can run a plan: some settings are read only when it is loaded."""

import sys

from tfaccel.planning.plan import Plan
from tfaccel.planning.plan_environment import environment_of


def why_not_with_loaded_tensorflow(plan: Plan) -> str | None:
    """Why the plan needs another process; None if TensorFlow is not loaded, or was loaded as the plan needs it."""
    if "tensorflow" not in sys.modules or plan.onednn is None:
        return None
    from tfaccel.training.private.private_tensorflow import uses_onednn

    if uses_onednn() == plan.onednn:
        return None
    [(name, value)] = environment_of(plan).items()
    return (
        f"The plan needs oneDNN {'on' if plan.onednn else 'off'}, but TensorFlow is loaded already, without that. "
        f"Set the environment variable {name}={value} before Python starts, or use onednn=None."
    )
