"""Small data of a user's own for each text recipe; all of it can be learnt at once."""

from pathlib import Path

import numpy as np


def write_own_texts(folder: Path) -> None:
    generator = np.random.default_rng(0)
    colours, tools = ["red", "green", "blue", "white"], ["saw", "file", "drill", "axe"]
    rows = ["text,label"] + [
        f"the {' '.join(generator.choice(part, 3))} one,{name}"
        for _ in range(30)
        for name, part in (("colour", colours), ("tool", tools))
    ]
    (folder / "labels.csv").write_text("\n".join(rows))
    (folder / "text.txt").write_text("over and over again. " * 200)
    (folder / "long.txt").write_text("over and over again. " * 600)
    sources = [" ".join(generator.choice(list("abc"), 4)) for _ in range(200)]
    (folder / "source.txt").write_text("\n".join(sources))
    (folder / "target.txt").write_text("\n".join(text.replace(" ", "").upper() for text in sources))
    names = [f"name{number}" for number in range(80)]
    summaries = [f"{name} is here . the rest of it is old,{name}" for name in names]
    (folder / "summaries.csv").write_text("\n".join(["document,summary", *summaries]))
