"""`tfaccel completion` prints scripts that complete every command and flag, in the shells themselves."""

import json
import re
import shlex
import shutil
import subprocess

import pytest

from tfaccel.scripts.completion import SHELLS, programs
from tfaccel.scripts.main import COMMANDS, main

# What is typed up to the cursor -> what is offered.
COMPLETED = {
    "tfaccel tra": {"train"},
    "tfaccel find-f": {"find-fastest"},
    "tfaccel benchmark sam": {"samplers"},
    "tfaccel completion z": {"zsh"},
    "tfaccel train --res": {"--resume="},
    "tfaccel train --qui": {"--quiet"},
    "tfaccel train --resume=e": {"extend"},
    "tfaccel train --seed=1 --resume=": {"never", "auto", "must", "extend"},
    "tfaccel plan --recipe=tabular_c": {"tabular_classification"},
    "tfaccel env --no_such": set(),
    "tfaccel benchmark gpu --reh": {"--rehearse"},
    "tfaccel benchmark engine --reh": set(),
    "tfaccel benchmark engine --rep": {"--repetitions="},
    "tfaccel launch --num_workers=2 -- tfaccel train --res": set(),
}


@pytest.fixture(scope="module")
def scripts(run_python):
    """Shell -> its script; TensorFlow is not imported for it."""
    code = """
import contextlib, io, json, sys
from tfaccel.scripts.main import main
texts = {}
for shell in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["tfaccel", "completion", shell]) == 0
    texts[shell] = out.getvalue()
assert not {"tensorflow", "keras"} & set(sys.modules)
print(json.dumps(texts))
"""
    return json.loads(run_python(code, *SHELLS, fresh=True).stdout)


def answer(shell, script, *arguments):
    """What a shell prints for a script; a test is skipped where there is no such shell."""
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    child = subprocess.run([shell, *arguments], input=script, capture_output=True, text=True, timeout=60, check=False)
    assert (child.returncode, child.stderr) == (0, "")
    return child.stdout


def bash_words(line):
    """The words of a line as bash splits them for completion: `=` is a word of its own."""
    words = re.findall(r"=|[^\s=]+", line)
    return words if re.search(r"[^\s]$", line) else [*words, ""]


def test_bash_completes(scripts):
    calls = [
        f"COMP_WORDS=({shlex.join(bash_words(line))}) COMP_CWORD={len(bash_words(line)) - 1}; _tfaccel; "
        'echo "${COMPREPLY[@]}"'
        for line in COMPLETED
    ]
    offered = answer("bash", "\n".join([scripts["bash"], *calls]), "--norc").splitlines()
    assert dict(zip(COMPLETED, (set(line.split()) for line in offered), strict=True)) == COMPLETED


def test_bash_completes_words_that_are_not_split(scripts):
    call = 'COMP_WORDS=(tfaccel train --resume=a) COMP_CWORD=2; _tfaccel; echo "${COMPREPLY[@]}"'
    assert answer("bash", f"{scripts['bash']}\n{call}", "--norc") == "--resume=auto\n"


def test_fish_completes(scripts, tmp_path):
    (tmp_path / "tfaccel.fish").write_text(scripts["fish"])
    calls = [f"echo '>'; complete -C {shlex.quote(line)}" for line in COMPLETED]
    lines = ["cd $argv[1]; source tfaccel.fish", *calls]
    given = answer("fish", "", "--no-config", "-c", "\n".join(lines), str(tmp_path))
    offered = [{one.split("\t")[0] for one in part.split("\n") if one} for part in given.split(">\n")[1:]]
    wanted = {}
    for line, found in COMPLETED.items():
        flag, equals, _ = line.split()[-1].partition("=")
        wanted[line] = {f"{flag}={one}" if equals else one.rstrip("=") for one in found}
    assert dict(zip(COMPLETED, offered, strict=True)) == wanted


# Types each argument but the first and a tab into a zsh of its own, which then echoes what its line has become.
ZSH = r"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PS1=; fpath+=($1); autoload -Uz compinit; compinit -u -D; bindkey '^I' complete-word"
for line in "${@:2}"; do
    zpty -w -n shell "$line"$'\t\C-a'"echo 'line: "$'\C-e'"'"$'\n'
done
zpty -w shell exit
while zpty -r shell text; do print -rn -- "$text"; done
"""


def test_zsh_completes(scripts, tmp_path):
    (tmp_path / "_tfaccel").write_text(scripts["zsh"])
    wanted = {line: next(iter(found)) for line, found in COMPLETED.items() if len(found) == 1}
    assert len(wanted) > 8
    shown = answer("zsh", "", "-f", "-c", ZSH, "zsh", str(tmp_path), *wanted)
    received = re.findall(r"^line: (.*?)\r?$", shown, re.MULTILINE)
    assert received == [re.sub(r"[^ =]*$", found.rstrip("="), line, count=1) for line, found in wanted.items()]


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_flag_is_there(shell, scripts):
    found = programs()
    assert set(found) == {*COMMANDS, "benchmark gpu"}
    assert sum(len(one.flags) for one in found.values()) > 300
    words = set(re.findall(r"[\w-]+", scripts[shell]))
    marks = "" if shell == "fish" else "--"
    assert {f"{marks}{one.name}" for program in found.values() for one in program.flags} <= words
    assert set(COMMANDS) <= words


@pytest.mark.parametrize("name", ["train", "check", "recipes", "search", "completion"])
def test_flags_are_those_that_help_lists(name, capsys):
    assert main(["tfaccel", name, "--help"]) == 0
    listed = re.findall(r"^  --(\w+)$", capsys.readouterr().out, re.MULTILINE)
    assert sorted([*listed, "help"]) == sorted(one.name for one in programs()[name].flags)
