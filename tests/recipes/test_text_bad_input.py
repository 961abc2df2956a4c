"""Bad texts, given to `tfaccel train`: status 2, one clear line, and no folder for the run."""

import json

import pytest

CLASSIFY, WRITE, TRANSLATE, SUMMARIZE = "text_classification", "text_generation", "translation", "summarization"
CASES = (
    (CLASSIFY, "latin.csv", "latin.csv is not written in utf-8: byte 0xe9 cannot be read. It is in line 2."),
    (CLASSIFY, "column.csv", "has no column 'text'. Did you mean 'txt'?"),
    (CLASSIFY, "commas.csv", "line 2: it has 3 fields, but the header has 2."),
    (CLASSIFY, "small.csv", "A batch takes 32 examples, but there are 8 to train on."),
    (CLASSIFY, "one_class.csv", "must have at least two classes. Received one, 'a'."),
    (CLASSIFY, "empty_class", "empty_class/b holds no .txt file."),
    (CLASSIFY, "empty_file", "empty_file/b/1.txt holds no text."),
    (CLASSIFY, "nowhere", "There is no folder or file nowhere"),
    (WRITE, "latin.csv", "is not written in utf-8: byte 0xe9 cannot be read. It is in line 2."),
    (WRITE, "empty.txt", "empty.txt holds no text."),
    (WRITE, "short.txt", "has 5 characters; it needs at least 2580"),
    (WRITE, "small.txt", "A batch takes 32 examples, but there are 18 to train on."),
    (WRITE, "empty_class", "Expected a text file. Received the folder empty_class."),
    (WRITE, "nowhere", "There is no file nowhere."),
    (TRANSLATE, "shorter", "are not aligned: line 3 of shorter/source.txt has no line in shorter/target.txt"),
    (TRANSLATE, "hole", "are not aligned: line 2 of hole/source.txt is empty, but that of hole/target.txt is not."),
    (TRANSLATE, "same", "A batch takes 64 examples, but there are 2 to train on."),
    (TRANSLATE, "latin", "latin/source.txt is not written in utf-8: byte 0xe9"),
    (TRANSLATE, "empty_class", "There is no file empty_class/source.txt."),
    (TRANSLATE, "nowhere", "must be a folder with source.txt and target.txt. Received: nowhere."),
    (SUMMARIZE, "latin.csv", "byte 0xe9 cannot be read. It is in line 2."),
    (SUMMARIZE, "summary.csv", "has no column 'summary'. Did you mean 'sumary'?"),
    (SUMMARIZE, "summaries.csv", "A batch takes 16 examples, but there are 9 to train on."),
    (SUMMARIZE, "empty.txt", "A table must be a file that ends in .csv, .tsv, .parquet, .pq. Received: empty.txt."),
    (SUMMARIZE, "nowhere", "There is no file nowhere."),
)
PROGRAM = """
import contextlib, io, json, os, sys
from tfaccel.scripts.main import main

ends = []
for recipe, data in json.loads(sys.argv[1]):
    flags = [f"--recipe={recipe}", f"--data_dir={data}", "--run_dir=runs/run", "--epochs=1"]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        status = main(["tfaccel", "train", *flags])
    ends.append([status, out.getvalue(), err.getvalue(), os.path.exists("runs")])
print(json.dumps(ends))
sys.exit("tensorflow was imported" if "tensorflow" in sys.modules else 0)
"""


@pytest.fixture(scope="module")
def ends(run_python, tmp_path_factory):
    """How the command ended for each case, by recipe and data: all of them in one process."""
    folder = tmp_path_factory.mktemp("bad")
    files = {
        "latin.csv": "text,label\ncaf\xe9,a\n",
        "column.csv": "txt,label\na,b\n",
        "commas.csv": "text,label\none, two,a\n",
        "summary.csv": "document,sumary\na,b\n",
        "empty.txt": "\n",
        "short.txt": "short",
        "small.txt": "over again " * 254,
        "small.csv": "text,label\n" + "".join(f"word {n},{'ab'[n % 2]}\n" for n in range(10)),
        "one_class.csv": "text,label\n" + "".join(f"word {n},a\n" for n in range(100)),
        "summaries.csv": "document,summary\n" + "".join(f"word {n},{n}\n" for n in range(10)),
        "empty_class/a/1.txt": "one",
        "empty_class/b/1.csv": "one",
        "empty_file/a/1.txt": "one",
        "empty_file/b/1.txt": "",
        "shorter/source.txt": "a\nb\nc\n",
        "shorter/target.txt": "A\nB\n",
        "hole/source.txt": "a\n\nc\n",
        "hole/target.txt": "A\nB\nC\n",
        "same/source.txt": "a\nb\nc\n",
        "same/target.txt": "A\nB\nC\n",
        "latin/source.txt": "a\n\xe9\n",
        "latin/target.txt": "A\nB\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode("latin-1"))
    cases = [(recipe, data) for recipe, data, _ in CASES]
    child = run_python(PROGRAM, json.dumps(cases), cwd=folder, fresh=True)
    return dict(zip(cases, json.loads(child.stdout), strict=True))


@pytest.mark.parametrize(("recipe", "data", "message"), CASES)
def test_bad_texts_get_one_line_and_leave_nothing(ends, recipe, data, message):
    status, out, err, is_left = ends[recipe, data]
    assert (status, out, is_left) == (2, "", False)
    assert err.startswith("tfaccel train: ") and err.count("\n") == 1
    assert message in err
