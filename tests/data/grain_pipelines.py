"""Grain pipelines of 50 rows in batches of 8, for tests."""

import grain
import numpy as np

BATCH = 8
_generator = np.random.default_rng(0)
X = _generator.normal(size=(50, 4)).astype("float32")
Y = (X @ _generator.normal(size=(4, 1))).astype("float32")


class Rows:
    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return X[index], Y[index]


class NamedRows(Rows):
    """A `DataLoader` refuses a state if its source has another `repr`, which by default differs in each process."""

    def __repr__(self):
        return "NamedRows()"


class WithoutState(grain.IterDataset):
    """An `IterDataset` of a user whose iterator cannot be saved."""

    def __iter__(self):
        return WithoutStateIterator()


class WithoutStateIterator(grain.DatasetIterator):
    def __init__(self):
        super().__init__()
        self.batches = iter(rows().batch(BATCH))

    def __next__(self):
        return next(self.batches)

    def get_state(self):
        raise RuntimeError("This iterator has no state.")

    def set_state(self, state):
        raise RuntimeError("This iterator has no state.")


def rows():
    return grain.MapDataset.source(NamedRows())


def window_shuffled(dataset):
    return grain.experimental.WindowShuffleIterDataset(dataset.to_iter_dataset(), window_size=20, seed=5)


def loader(source=None, num_epochs=1):
    return grain.DataLoader(
        data_source=source or NamedRows(),
        sampler=grain.samplers.IndexSampler(50, shuffle=True, seed=1, num_epochs=num_epochs),
        operations=[grain.transforms.Batch(BATCH)],
    )


def weighted(x, y):
    return x, y, np.abs(x).mean(axis=1)


PIPELINES = {
    "map": lambda: rows().seed(3).shuffle().batch(BATCH),
    "map, repeated": lambda: rows().seed(3).shuffle().repeat(2).batch(BATCH),
    "map, weighted": lambda: rows().batch(BATCH).map(lambda batch: weighted(*batch)),
    "iter": lambda: window_shuffled(rows().seed(3).shuffle().repeat(2)).batch(BATCH),
    "iter, random": lambda: (
        rows()
        .seed(3)
        .to_iter_dataset()
        .random_map(lambda row, rng: (row[0] + rng.normal(size=4).astype("float32"), row[1]))
        .batch(BATCH)
    ),
    "loader": loader,
}
READ_AGAIN = {
    "unnamed source": lambda: loader(Rows()),
    "without state": WithoutState,
}
INFINITE = {
    "map": lambda: rows().seed(3).shuffle().repeat().batch(BATCH),
    "iter": lambda: window_shuffled(rows().seed(3).shuffle().repeat()).batch(BATCH),
    "loader": lambda: loader(num_epochs=None),
}
REFUSED = {
    "no batches": (lambda: grain.MapDataset.range(10), "must be at least rank 1. Received: 0 of rank 0. Map its elem"),
    "rows": (lambda: rows().map(lambda row: (row[0], float(row[1][0]))), "does not yield batches of numbers: "),
    "texts": (lambda: grain.MapDataset.source(["a", "b"]).batch(2), "Invalid dtype: str32. Map its elements to"),
    "empty": (lambda: rows()[:0].to_iter_dataset().batch(BATCH), "The Grain pipeline is empty."),
    "iterator": (lambda: iter(rows().batch(BATCH)), "x is a generator or an iterator (PrefetchDatasetIterator), which"),
    **{f"infinite {name}": (make, "The Grain pipeline is infinite. Pass one") for name, make in INFINITE.items()},
}
