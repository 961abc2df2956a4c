"""The errors that tfaccel raises for users. Each message says what was received, what was expected, how to fix it."""


class TfaccelError(Exception):
    """Base of all errors meant for users; commands print it on one line and end with status 2."""


class PlanError(TfaccelError, ValueError):
    """A plan that cannot run: an impossible combination, or one that this machine or process cannot provide."""


class HardwareError(TfaccelError, ValueError):
    """A hardware description that cannot be read, or a device that is not there."""


class DataError(TfaccelError, ValueError):
    """Data that cannot be read or used for training."""


class CoupledRowsError(TfaccelError, ValueError):
    """A model under several replicas that couples the rows of a batch; the message names the component that does."""


class RunDirError(TfaccelError, ValueError):
    """A run directory that cannot be used, for example because it holds another run."""


class WorkloadError(TfaccelError, ValueError):
    """A recipe or workload that does not exist or does not fit what is asked of it."""


class CompressionError(TfaccelError, ValueError):
    """A model that cannot be made smaller as asked; the message names the layer, method or data that is in the way."""


class ExportError(TfaccelError, ValueError):
    """A model that cannot be loaded or written; the message names the file, layer or signature that is in the way."""


class ServeError(TfaccelError, ValueError):
    """A server that cannot start as asked."""


class SearchError(TfaccelError, ValueError):
    """A search of hyperparameters that cannot begin or go on."""


class NonFiniteLossError(TfaccelError, ArithmeticError):
    """The loss became NaN or infinite; the message names the step."""


class VersionError(TfaccelError, RuntimeError):
    """An installed library lacks a part that tfaccel needs; the message names versions that have it."""
