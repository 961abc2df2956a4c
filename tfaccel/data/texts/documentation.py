"""CPython's documentation, which ships with every Python as `pydoc_data.topics`: passages and entries of its topics.

Some topics contain others ("compound" contains "if", "while" ...). A paragraph is assigned to the shortest topic that
contains it, so topics share no text, and neither do the training and the test part, which are split by topic.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

# Chapter group -> topics. Topics after the bar are held out for testing: about a fifth of each group's text.
_GROUPS = {
    "statements": "assert assignment async augassign break class compound continue else for function global if nonlocal"
    " pass raise try while yield | del import return with",
    "expressions": "atom-identifiers atom-literals attribute-references await binary bitwise comparisons conversions"
    " dict in lists operator-summary power subscriptions unary | booleans calls exprlists lambda shifting slicings",
    "data model": "callable-types customization objects specialnames types numeric-types | attribute-access"
    " context-managers sequence-types",
    "library": "bltin-code-objects bltin-null-object bltin-type-objects debugger formatstrings specialattrs"
    " string-methods typesfunctions typesmethods typesseq typesseq-mutable | bltin-ellipsis-object truth typesmapping"
    " typesmodules",
    "names and literals": "dynamic-features execmodel floating id-classes integers naming numbers strings | exceptions"
    " identifiers imaginary",
}
GROUP_NAMES = tuple(_GROUPS)
_MIN_PASSAGE_WORDS = 30
_MIN_REST_WORDS = 12

_HEADING = re.compile(r"^[^\n]+\n([*=\-~^\"])\1{2,}\s*$")

_END = re.compile(r"(?<=[a-z0-9)\"\]*’»”])[.:!?](?=\s|$)")


@dataclass(frozen=True, kw_only=True)
class Topic:
    """One topic of the documentation.

    Args:
        name: the name that `help()` takes.
        group: its chapter group, one of `GROUP_NAMES`.
        is_held_out: whether it is held out for testing.
        paragraphs: its paragraphs, without those of a shorter topic.
    """

    name: str
    group: str
    is_held_out: bool
    paragraphs: tuple[str, ...]

    def passages(self) -> tuple[str, ...]:
        """Its text in passages of slightly more than 30 words, without headings; the remainder is dropped."""
        found, words = [], []
        for paragraph in self.paragraphs:
            if _HEADING.match(paragraph):
                continue
            words += paragraph.split()
            if len(words) >= _MIN_PASSAGE_WORDS:
                found.append(" ".join(words))
                words = []
        return tuple(found)

    def entries(self) -> tuple[tuple[str, str], ...]:
        """Its entries (sections, and the definitions in them) as pairs: the text after the first sentence, and that
        sentence. Entries with little other text are dropped."""
        return _without_first_sentence(self._entry_texts())

    def prose(self) -> tuple[tuple[str, str], ...]:
        """Its paragraphs other than headings, grammar and code, as pairs like those of `entries`."""
        texts = (
            text for text in self.paragraphs if not _HEADING.match(text) and "::=" not in text and ">>>" not in text
        )
        return _without_first_sentence(texts)

    def _entry_texts(self) -> Iterator[str]:
        """The text from each heading or definition (a line whose text is indented below it) to the next one."""
        entry: list[str] = []
        for paragraph, following in zip(self.paragraphs, [*self.paragraphs[1:], ""], strict=False):
            indent, next_indent = _indent(paragraph), _indent(following)
            is_definition = next_indent > indent and not paragraph.rstrip().endswith((":", ".", ","))
            if _HEADING.match(paragraph) or is_definition:
                yield "\n".join(entry)
                entry = []
            elif "::=" not in paragraph and ">>>" not in paragraph:
                entry.append(paragraph)
        yield "\n".join(entry)


@functools.cache
def documentation_topics() -> tuple[Topic, ...]:
    """The topics in name order; the names are the same in Python 3.11 to 3.13.

    Example:
        >>> [topic.group for topic in documentation_topics() if topic.name in ("lambda", "while")]
        ['expressions', 'statements']
    """
    from pydoc_data.topics import topics

    groups = {
        name: (group, is_held_out)
        for group, listed in _GROUPS.items()
        for part, is_held_out in zip(listed.split(" | "), (False, True), strict=True)
        for name in part.split()
        if name in topics
    }
    taken: set[str] = set()
    found = []
    for name in sorted(groups, key=lambda name: (len(topics[name]), name)):
        kept = []
        for paragraph in re.split(r"\n\s*\n", topics[name].strip("\n")):
            # Headings have other underlines in topics that contain others.
            key = paragraph.split("\n")[0] if _HEADING.match(paragraph) else " ".join(paragraph.split())
            if key and key not in taken:
                taken.add(key)
                kept.append(paragraph)
        group, is_held_out = groups[name]
        found.append(Topic(name=name, group=group, is_held_out=is_held_out, paragraphs=tuple(kept)))
    return tuple(sorted(found, key=lambda topic: topic.name))


def documentation_text(*, held_out: bool) -> str:
    """The concatenated text of the training topics, or of those held out.

    Example:
        >>> len(documentation_text(held_out=False)) > 3 * len(documentation_text(held_out=True))
        True
    """
    return joined_text(topic for topic in documentation_topics() if topic.is_held_out == held_out)


def joined_text(topics: Iterable[Topic]) -> str:
    """The concatenated text of topics."""
    return "\n\n\n".join("\n\n".join(topic.paragraphs) for topic in topics) + "\n"


def _indent(paragraph: str) -> int:
    return len(paragraph) - len(paragraph.lstrip(" "))


def _without_first_sentence(texts: Iterable[str]) -> tuple[tuple[str, str], ...]:
    pairs = map(first_sentence, texts)
    return tuple((rest, first) for first, rest in pairs if len(rest.split()) >= _MIN_REST_WORDS)


def first_sentence(text: str) -> tuple[str, str]:
    """The first sentence of a text, ending in a period, colon, exclamation or question mark, and the rest.

    Example:
        >>> first_sentence("It is 3.5 long. It is wide.")
        ('It is 3.5 long.', 'It is wide.')
    """
    text = " ".join(text.split())
    end = _END.search(text)
    return (text, "") if end is None else (text[: end.end()], text[end.end() :].strip())
