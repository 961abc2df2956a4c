"""The table in docs/guides/data.md: what `Model.fit`, `tfaccel.fit` and `tfaccel.train` take, row by row."""

import sys
from importlib.util import find_spec

import datasets
import grain
import keras
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import tensorflow as tf
import tqdm

import tfaccel
from tfaccel.errors import TfaccelError

pytestmark = [
    pytest.mark.usefixtures("logical_devices"),
    pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning"),
]
tqdm.tqdm.monitor_interval = 0  # its thread would outlive the tests
generator = np.random.default_rng(0)
X = generator.normal(size=(48, 4)).astype("float32")
Y = (X @ generator.normal(size=(4, 1))).astype("float32")
ARRAYS, GENERATED = {"batch_size": 8}, {"steps_per_epoch": 6}
NUM_EPOCHS = 2


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return X[8 * index :][:8], Y[8 * index :][:8]


class Rows:
    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return X[index], Y[index]


def table():
    return datasets.Dataset.from_dict({"x": X, "y": Y})


def loader():
    sampler = grain.samplers.SequentialSampler(len(X), grain.sharding.NoSharding())
    return grain.DataLoader(data_source=Rows(), sampler=sampler, operations=[grain.transforms.Batch(8)])


def torch_loader():
    import torch
    from torch.utils import data

    return data.DataLoader(data.TensorDataset(torch.tensor(X), torch.tensor(Y)), batch_size=8)


def batches():
    for _ in range(NUM_EPOCHS):
        for index in range(6):
            yield X[8 * index :][:8], Y[8 * index :][:8]


# Kind -> the data, arguments of `fit`, and how each of Model.fit, tfaccel.fit and tfaccel.train receives them.
YES = ""
KINDS = {
    "arrays": (lambda: (X, Y), ARRAYS, YES, YES, YES),
    "tensors": (lambda: (tf.constant(X), tf.constant(Y)), ARRAYS, YES, YES, YES),
    "data frame": (lambda: (pd.DataFrame(X), pd.Series(Y[:, 0])), ARRAYS, YES, YES, YES),
    "data frame of pandas's own dtypes": (
        lambda: (pd.DataFrame(X).astype("Float32"), Y),
        ARRAYS,
        "Invalid dtype: Float32",
        "Column 0 of `x` has the dtype Float32, which Keras does not take",
        "holds objects that are not numbers",
    ),
    "sparse matrix": (lambda: (scipy.sparse.csr_matrix(X), Y), ARRAYS, YES, YES, "Received: csr_matrix."),
    "lists of numbers": (
        lambda: (X.tolist(), Y.tolist()),
        ARRAYS,
        "Unrecognized",
        "numpy.array(x)",
        "Write np.array(x)",
    ),
    "tf.data": (lambda: (tf.data.Dataset.from_tensor_slices((X, Y)).batch(8),), {}, YES, YES, YES),
    "PyDataset": (lambda: (Batches(),), {}, YES, YES, YES),
    "grain.MapDataset": (lambda: (grain.MapDataset.source(Rows()).batch(8),), {}, YES, YES, YES),
    "grain.IterDataset": (lambda: (grain.MapDataset.source(Rows()).to_iter_dataset().batch(8),), {}, YES, YES, YES),
    "grain.DataLoader": (lambda: (loader(),), {}, YES, YES, YES),
    "torch DataLoader": (lambda: (torch_loader(),), {}, YES, YES, "Pass the tensors of its dataset, or"),
    "Hugging Face Dataset": (
        lambda: (table(),),
        {},
        "Unrecognized data type",
        'Pass columns of x.with_format("numpy")[:]',
        'Pass columns of x.with_format("numpy")[:]',
    ),
    "Hugging Face columns": (lambda: tuple(table().with_format("numpy")[:].values()), ARRAYS, YES, YES, YES),
    "Hugging Face to_tf_dataset": (
        lambda: (table().to_tf_dataset(batch_size=8, columns="x", label_cols="y"),),
        {},
        YES,
        YES,
        YES,
    ),
    "generator": (lambda: (batches(),), GENERATED, YES, YES, "which can be iterated over only once"),
}


def by_keras(model, *data, **options):
    return model.fit(*data, **options)


def by_train(folder, name):
    def train(model, *data, **options):
        options.pop("steps_per_epoch", None)
        if "to_tf_dataset" in name:
            options["batch_size"] = 8  # which its dataset does not tell
        return tfaccel.train(model, *data, run_dir=folder, strategy="none", **options)

    return train


def outcome(train, make, options):
    """The losses, or the message."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    try:
        history = train(model, *make(), epochs=NUM_EPOCHS, shuffle=False, verbose=0, **options)
    except (TfaccelError, ValueError) as error:
        return str(error)
    return getattr(history, "history", history)["loss"]


@pytest.mark.parametrize("name", KINDS)
def test_each_row_of_the_table(name, tmp_path):
    if name.startswith("torch") and find_spec("torch") is None:
        pytest.skip("needs PyTorch")
    make, options, *received = KINDS[name]
    for train, expected in zip((by_keras, tfaccel.fit, by_train(tmp_path, name)), received, strict=True):
        found = outcome(train, make, options)
        if expected:
            assert expected in found
        else:
            reference = outcome(by_keras, KINDS["arrays"][0], ARRAYS)
            # Keras counts a step too many at the end of a Grain pipeline, which plain gradient descent does not see.
            np.testing.assert_allclose(found, reference, rtol=1e-5)


def test_data_of_other_libraries_are_recognized_without_importing_them(run_python):
    code = "import sys, tfaccel.data.given_data\nassert not {'grain', 'torch', 'datasets'} & set(sys.modules)"
    run_python(code)
    assert "grain" in sys.modules
