"""The environment variables that a plan needs before TensorFlow is loaded, since TensorFlow reads them only then."""

from tfaccel.planning.plan import Plan


def environment_of(plan: Plan) -> dict[str, str]:
    """Name -> value of each variable that the plan sets.

    Example:
        >>> environment_of(Plan(strategy="none", devices=("CPU:0",), global_batch_size=8, onednn=True))
        {'TF_ENABLE_ONEDNN_OPTS': '1'}
    """
    return {} if plan.onednn is None else {"TF_ENABLE_ONEDNN_OPTS": str(int(plan.onednn))}
