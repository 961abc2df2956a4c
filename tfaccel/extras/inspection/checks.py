"""Checks of every kind of data: duplicates, leaks between the parts, class balance, memory."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import psutil

from tfaccel.data.images.class_balance import are_unequal, balanced_weights
from tfaccel.extras.inspection.findings import Examples, Finding

_FEW_EXAMPLES = 10  # of a class


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


def memory(num_bytes: int) -> tuple[int, list[Finding]]:
    """The free memory in bytes, and a finding if a dataset of this size takes more than half of it."""
    free = int(psutil.virtual_memory().available)
    if num_bytes <= free / 2:
        return free, []
    text = f"it takes {num_bytes / 2**30:.1f} GiB of the {free / 2**30:.1f} GiB that are free"
    return free, [Finding("memory", "the whole set", text, "Read it from disk batch by batch.")]


def part_sizes(examples: Examples) -> dict[str, int]:
    """Part -> number of examples, the training part first."""
    return {part: int(np.sum(examples.parts == part)) for part in ("train", "test") if np.any(examples.parts == part)}
