"""`Finding` and `InspectionReport`, and the checks of every kind of data: copies, leaks, labels, memory, folders."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import psutil

from tfaccel.data.class_labels import are_unequal, balanced_weights
from tfaccel.data.folder_files import class_folders, counted, files_below, part_folders, unlisted
from tfaccel.data.tables.table import Table
from tfaccel.errors import DataError
from tfaccel.records import Record
from tfaccel.short_repr import noun

# Called from time to time with the current task, the amount done, and the total.
Progress = Callable[[str, int, int], None]

_FEW_EXAMPLES = 10  # of a class
_PARTS = ("train", "test")

_MAX_EXAMPLES = 10_000  # larger datasets are sampled
_NUM_FOLDS = 5
_MIN_CLASS_EXAMPLES = 10  # smaller classes cannot be learned
_CLEARLY = 0.5  # minimum lead of the likelier class over the given one
_MIN_KAPPA = 0.65  # minimum agreement with the labels, beyond chance, of a classifier that may doubt them
_TEMPERATURES = np.geomspace(0.3, 20.0, 60)
KIND = "probable label error"

Content = TypeVar("Content")


def no_progress(text: str, done: int, total: int) -> None:
    """Ignores all progress."""


@noun(kw_only=False)
class Finding:
    """One thing about a dataset that its user should know.

    Args:
        kind: "missing values", "duplicate", "leak", "constant column", "unreadable file", "probable label error" ...
        where: the column, row or file.
        text: what was found, with numbers.
        advice: what to do about it; "" if that depends.
    """

    kind: str
    where: str
    text: str
    advice: str = ""


@dataclass(frozen=True)
class Examples:
    """The names, parts, contents and labels of the examples of any dataset.

    Args:
        names: the name of each example, such as "row 3 of train.csv" or a path.
        parts: "train" or "test" for each.
        keys: a key for each, equal for equal contents; empty until contents are compared.
        labels: the class of each as a string, or None if it has none. None instead of an array if there are no classes.
    """

    names: tuple[str, ...]
    parts: np.ndarray
    keys: tuple[Any, ...] = ()
    labels: np.ndarray | None = None

    @classmethod
    def of_rows(cls, tables: Mapping[str, Table], labels: np.ndarray | None) -> Self:
        """The rows of tables, given by part, without keys."""
        rows = [(part, table.source, row) for part, table in tables.items() for row in range(1, table.num_rows + 1)]
        names = tuple(f"row {row} of {source}" for _, source, row in rows)
        return cls(names, np.array([part for part, _, _ in rows]), labels=labels)


@noun
class InspectionReport(Record):
    """The result of inspecting a dataset.

    Args:
        path: the file or folder.
        kind: "table", "images" or "texts".
        shape: a description of one example.
        num_examples: part -> number, the training part first.
        columns: column -> {"kind", "num_missing", "num_distinct", ...}; for tables.
        class_counts: class -> training examples.
        class_weights: class -> weight of its examples that gives all classes equal weight.
        num_bytes: size of all examples in memory during training.
        memory_bytes: free memory of this machine.
        findings: what the user should know.
    """

    _derived = ("fits_in_memory",)

    path: str
    kind: str
    shape: str
    num_examples: Mapping[str, int] = field(default_factory=dict, hash=False)
    columns: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    class_counts: Mapping[str, int] = field(default_factory=dict, hash=False)
    class_weights: Mapping[str, float] = field(default_factory=dict, hash=False)
    num_bytes: int = 0
    memory_bytes: int = 0
    findings: tuple[Finding, ...] = ()

    @property
    def fits_in_memory(self) -> bool:
        """Whether the examples take at most half of the free memory."""
        return self.num_bytes <= self.memory_bytes / 2


def copies(examples: Examples) -> list[Finding]:
    """Finds examples with the same content: in both parts (leaks), with different labels, or repeated in one part.

    Example:
        >>> parts, labels = np.array(["train", "train", "test"]), np.array(["cat", "cat", "cat"], dtype=object)
        >>> [finding.kind for finding in copies(Examples(("a", "b", "c"), parts, (1, 2, 2), labels))]
        ['leak']
    """
    groups: dict[object, list[int]] = defaultdict(list)
    for row, key in enumerate(examples.keys):
        groups[key].append(row)
    leaks, conflicts, duplicates = [], [], []
    for rows in groups.values():
        if len(rows) == 1:
            continue
        names = ", ".join(examples.names[row] for row in rows)
        labels = sorted({str(examples.labels[row]) for row in rows}) if examples.labels is not None else []
        if len(labels) > 1:
            text = f"the same content has the labels {', '.join(labels)}"
            conflicts.append(Finding("conflicting labels", names, text, "Fix the labels."))
        if len({str(examples.parts[row]) for row in rows}) > 1:
            text = "the same content is in the training and in the test part"
            leaks.append(Finding("leak", names, text, "Remove it from one part: the test is too easy."))
        elif len(labels) < 2:
            duplicates.append(Finding("duplicate", names, f"the same content {len(rows)} times", "Keep one of them."))
    return [*leaks, *conflicts, *duplicates]


def balance(examples: Examples) -> tuple[dict[str, int], dict[str, float], list[Finding]]:
    """Training examples of each class, the weights that balance the classes, and findings about the labels.

    Example:
        >>> labels = np.array(["cat"] * 30 + ["dog"] * 10, dtype=object)
        >>> examples = Examples(("",) * 40, np.array(["train"] * 40), tuple(range(40)), labels)
        >>> balance(examples)
        ({'cat': 30, 'dog': 10}, {'cat': 0.6666666666666666, 'dog': 2.0}, [])
    """
    if examples.labels is None:
        return {}, {}, []
    findings = []
    is_labelled = np.array([label is not None for label in examples.labels], dtype=bool)
    in_training = examples.parts == "train"
    names, counts = np.unique(examples.labels[is_labelled & in_training].astype(str), return_counts=True)
    unlabelled = int(np.sum(~is_labelled))
    if unlabelled:
        findings.append(Finding("missing label", f"{unlabelled} examples", "they have no label", "They are left out."))
    test_only = set(examples.labels[is_labelled & ~in_training].astype(str)) - set(names)
    findings += [
        Finding("unknown class", name, "it is in the test part only", "Add examples to train on.")
        for name in sorted(test_only)
    ]
    for name, count in zip(names, counts, strict=True):
        if count < _FEW_EXAMPLES:
            findings.append(Finding("small class", str(name), f"it has {count} examples to train on", "Add examples."))
    if len(names) == 1:
        text = f"all {counts[0]} examples to train on have the label {names[0]}"
        findings.append(
            Finding("one class", str(names[0]), text, "A classifier needs at least two: add other classes.")
        )
    if len(names) > 1 and are_unequal(counts):
        largest, smallest = names[counts.argmax()], names[counts.argmin()]
        text = f"{largest} has {counts.max() / counts.min():.1f} times the examples of {smallest}"
        findings.append(Finding("unequal classes", "labels", text, "Use the class weights."))
    weights = balanced_weights(counts) if len(names) else counts
    return (
        dict(zip(names.tolist(), counts.tolist(), strict=True)),
        dict(zip(names.tolist(), weights.tolist(), strict=True)),
        findings,
    )


def finished(
    report: InspectionReport,
    examples: Examples,
    *,
    labelled: Examples | None = None,
    doubt_labels: Callable[[], list[Finding]] | None = None,
    progress: Progress = no_progress,
) -> InspectionReport:
    """The report with what is checked of every kind of data.

    Args:
        report: what was found so far.
        examples: the examples.
        labelled: what has labels, if it is not the examples themselves.
        doubt_labels: checks the labels; None if there is none to check.
        progress: called with the current state.
    """
    progress("Copies and leaks", 0, 1)
    findings = [*report.findings, *copies(examples)]
    counts, weights, of_labels = balance(labelled or examples)
    findings += of_labels
    if doubt_labels is not None and examples.labels is not None:
        progress("Labels, by cross-validation", 0, 1)
        findings += doubt_labels()
    report = replace(
        report,
        num_examples={part: int(np.sum(examples.parts == part)) for part in _PARTS if np.any(examples.parts == part)},
        class_counts=counts,
        class_weights=weights,
        memory_bytes=int(psutil.virtual_memory().available),
    )
    if not report.fits_in_memory:
        text = f"it takes {report.num_bytes / 2**30:.1f} GiB of the {report.memory_bytes / 2**30:.1f} GiB that are free"
        findings.append(Finding("memory", "the whole set", text, "Read it from disk batch by batch."))
    return replace(report, findings=tuple(findings))


def probable_label_errors(classifier: Any, features: Any, examples: Examples) -> list[Finding]:
    r"""Examples whose label is doubted by a classifier trained on the other folds.

    The classifier's probabilities are first calibrated by temperature scaling: normalized powers $p^{1/T}$, with the T
    that maximizes the likelihood of the labels. With $\hat p_j(x)$ the cross-validated probability of class j, and
    $t_j$ its mean over the examples labeled j, the label i of an example is doubted if some $j \ne i$ has
    $\hat p_j(x) \ge t_j$ and $\hat p_j(x) - \hat p_i(x) \ge 0.5$. The clearest cases come first.

    A classifier that rarely agrees with the labels (Cohen's kappa below 0.65) doubts none, since most of its doubts
    would be its own errors. A finding reports this.

    Args:
        classifier: a scikit-learn classifier with `predict_proba`.
        features: of shape (num_examples, num_features), dense or sparse.
        examples: names and labels; examples without a label and classes with fewer than ten examples are skipped.

    Source: Northcutt et al., Confident learning, 2021, https://arxiv.org/abs/1911.00068

    Example:
        >>> from sklearn.linear_model import LogisticRegression
        >>> x, labels = np.repeat([[0.0], [9.0]], 20, axis=0), np.repeat(np.array(["a", "b"], dtype=object), 20)
        >>> labels[3] = "b"
        >>> names = tuple(f"row {row}" for row in range(1, 41))
        >>> examples = Examples(names, np.array(["train"] * 40), tuple(range(40)), labels)
        >>> [finding.where for finding in probable_label_errors(LogisticRegression(), x, examples)]
        ['row 4']
    """
    from sklearn.metrics import cohen_kappa_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    rows, labels = _usable_rows(examples)
    if not len(rows):
        return []
    folds = StratifiedKFold(_NUM_FOLDS, shuffle=True, random_state=0)
    probabilities = cross_val_predict(classifier, features[rows], labels, cv=folds, method="predict_proba")
    names = np.unique(labels)
    given = np.searchsorted(names, labels)
    guessed = probabilities.argmax(axis=1)
    if not cohen_kappa_score(given, guessed) >= _MIN_KAPPA:
        text = f"a simple classifier gives the label of {np.mean(guessed == given):.0%} of the examples only"
        return [Finding("labels not checked", "labels", text, "It cannot say which labels are wrong.")]
    probabilities = _calibrated(probabilities, given)
    own = probabilities[np.arange(len(rows)), given]
    thresholds = np.array([own[given == number].mean() for number in range(len(names))])
    others = np.where(probabilities >= thresholds, probabilities, 0.0)
    others[np.arange(len(rows)), given] = 0.0
    lead = others.max(axis=1) - own
    doubtful = np.flatnonzero(lead >= _CLEARLY)
    return [
        Finding(
            KIND,
            examples.names[rows[number]],
            f"it is labeled {labels[number]}, but looks like {names[others[number].argmax()]} "
            f"({100 * others[number].max():.0f} % against {100 * own[number]:.0f} %)",
            "Look at it.",
        )
        for number in doubtful[np.argsort(-lead[doubtful], kind="stable")]
    ]


def _calibrated(probabilities: np.ndarray, given: np.ndarray) -> np.ndarray:
    """The probabilities at the temperature that maximizes the likelihood of the labels."""
    logits = np.log(np.clip(probabilities, 1e-12, 1.0))
    best, least = probabilities, np.inf
    for temperature in _TEMPERATURES:
        scaled = np.exp((logits - logits.max(axis=1, keepdims=True)) / temperature)
        scaled /= scaled.sum(axis=1, keepdims=True)
        loss = -float(np.log(np.clip(scaled[np.arange(len(given)), given], 1e-12, 1.0)).mean())
        if loss < least:
            best, least = scaled, loss
    return best


def _usable_rows(examples: Examples) -> tuple[np.ndarray, np.ndarray]:
    """The rows to check, and their labels; empty if fewer than two classes have enough examples."""
    none = np.array([], dtype=np.int64), np.array([], dtype=str)
    if examples.labels is None:
        return none
    rows = np.array([row for row, label in enumerate(examples.labels) if label is not None], dtype=np.int64)
    if len(rows) > _MAX_EXAMPLES:
        rows = np.sort(np.random.default_rng(0).choice(rows, _MAX_EXAMPLES, replace=False))
    labels = examples.labels[rows].astype(str)
    names, counts = np.unique(labels, return_counts=True)
    is_usable = np.isin(labels, names[counts >= _MIN_CLASS_EXAMPLES])
    if np.sum(counts >= _MIN_CLASS_EXAMPLES) < 2:
        return none
    return rows[is_usable], labels[is_usable]


def read_labelled_files(
    folder: Path,
    suffixes: tuple[str, ...],
    read: Callable[[Path], Content | Finding],
    *,
    noun: str,
    every: int,
    progress: Progress,
) -> tuple[Examples, list[Content], list[Finding]]:
    """Reads the files with these suffixes in the class folders of `folder`, or of its `train` and `test`.

    Args:
        folder: the folder.
        suffixes: the endings of the files.
        read: returns the content of a file, or a finding if it cannot be read.
        noun: what the files are called in messages.
        every: files between two progress reports.
        progress: called with the noun, the number of files read, and the total.

    Returns:
        The readable files in name order, without keys; their contents; and the findings: unreadable files, files of
        other kinds, and class folders without files.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as name:
        ...     Path(name, "cat").mkdir()
        ...     _ = Path(name, "cat", "1.txt").write_text("purrs")
        ...     found = read_labelled_files(
        ...         Path(name), (".txt",), Path.read_text, noun="texts", every=1, progress=no_progress
        ...     )
        >>> found[0].labels.tolist(), found[1]
        (['cat'], ['purrs'])
    """
    files, findings = _list_files(folder, suffixes)
    contents, readable = [], []
    for row, (file, part, label) in enumerate(files):
        if row % every == 0:
            progress(noun.capitalize(), row, len(files))
        content = read(file)
        if isinstance(content, Finding):
            findings.append(content)
        else:
            contents.append(content)
            readable.append((str(file), part, label))
    if not contents:
        raise DataError(f"None of the {len(files)} {noun} in {folder} can be read; the first is {files[0][0]}.")
    names, parts, labels = zip(*readable, strict=True)
    return Examples(names, np.array(parts), labels=np.array(labels, dtype=object)), contents, findings


def _list_files(folder: Path, suffixes: tuple[str, ...]) -> tuple[list[tuple[Path, str, str]], list[Finding]]:
    """Each file with its part and its class; and findings about files of other kinds and empty folders."""
    parts = dict(zip(_PARTS, part_folders(folder), strict=False)) or {"train": folder}
    listed: list[tuple[Path, str, str]] = []
    findings = []
    for part, root in parts.items():
        loose = sorted(entry.name for entry in root.iterdir() if entry.is_file() and not entry.name.startswith("."))
        if loose:
            text = f"{len(loose)} files are in no class folder (first {loose[0]})"
            findings.append(Finding("other files", str(root), text, "They are not used."))
        for class_folder in class_folders(root):
            files = files_below(class_folder)
            found = [file for file in files if file.suffix.lower() in suffixes]
            others = [file for file in files if file.suffix.lower() not in suffixes]
            if others:
                first = others[0].relative_to(class_folder)
                text = f"{len(others)} files do not end in {', '.join(suffixes)}: {counted(others)} (first {first})"
                findings.append(Finding("other files", str(class_folder), text, "They are not used."))
            unseen = unlisted(class_folder, suffixes)
            if unseen:
                findings.append(Finding("other files", str(class_folder), f"it has {unseen}", "They are not used."))
            if not found:
                findings.append(Finding("empty class", str(class_folder), "it holds no file to use", "Remove it."))
            listed += [(file, part, class_folder.name) for file in found]
    if not listed:
        raise DataError(f"{folder} has no class folders with files that end in {', '.join(suffixes)}.")
    return listed, findings
