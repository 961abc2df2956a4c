"""Slurm's short forms: `node[01-03,7],login` for hosts and `2(x3),1` for tasks per node."""

import re


def expand_hosts(text: str) -> tuple[str, ...]:
    """The hosts that a Slurm host list names, in order.

    Example:
        >>> expand_hosts("gpu[08-10,12],big1")
        ('gpu08', 'gpu09', 'gpu10', 'gpu12', 'big1')
    """
    # Commas inside brackets do not part hosts.
    parts = re.findall(r"(?:\[[^\]]*\]|[^,\[])+", text)
    return tuple(host for part in parts for host in _expand_brackets(part.strip()) if host)


def expand_counts(text: str) -> tuple[int, ...]:
    """The numbers that Slurm's repeated form names, in order; empty where it is not understood.

    Example:
        >>> expand_counts("2(x3),1")
        (2, 2, 2, 1)
    """
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\(x(\d+)\))?\s*", part)
        if match is None:
            return ()
        counts += [int(match[1])] * int(match[2] or 1)
    return tuple(counts)


def _expand_brackets(text: str) -> list[str]:
    match = re.search(r"\[([^\]]*)\]", text)
    if match is None:
        return [text]
    before, after = text[: match.start()], _expand_brackets(text[match.end() :])
    hosts = []
    for item in match[1].split(","):
        first, _, last = item.strip().partition("-")
        is_range = first.isdigit() and last.isdigit()
        numbers = [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)] if is_range else [item.strip()]
        hosts += [f"{before}{number}{rest}" for number in numbers for rest in after]
    return hosts
