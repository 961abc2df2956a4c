"""Prints a script that completes commands, flags and their values in a shell: bash, zsh or fish.

    source <(tfaccel completion bash)                                       # in this shell
    tfaccel completion bash > ~/.local/share/bash-completion/completions/tfaccel
    tfaccel completion zsh > ~/.zfunc/_tfaccel                              # a folder of $fpath, before compinit
    tfaccel completion fish > ~/.config/fish/completions/tfaccel.fish

The script holds the commands and flags of the installed tfaccel: write it again after an upgrade. The flags that one
recipe or workload alone has are not completed; `tfaccel train --recipe=NAME --help` lists them.
"""

import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module

from absl import flags

from tfaccel.errors import TfaccelError
from tfaccel.known_names import did_you_mean
from tfaccel.planning.load_workload import list_recipes
from tfaccel.scripts.command import described_only, own_flags, run_command

SHELLS = ("bash", "zsh", "fish")
_MAX_TEXT = 70


@dataclass(frozen=True)
class Completed:
    """A flag as shells complete it: `values` are all it can take, if they are few; a switch takes none."""

    name: str
    text: str
    is_switch: bool
    values: tuple[str, ...]


@dataclass(frozen=True)
class Program:
    """A command as shells complete it: `words` may follow its name; `takes_files` if anything else may."""

    words: tuple[str, ...]
    takes_files: bool
    flags: tuple[Completed, ...]


def run(argv: list[str]) -> int:
    """Runs `tfaccel completion`; returns its exit status."""
    values, shells = flags.FlagValues(), list[str]()
    return run_command(
        lambda: _main(shells),
        argv,
        values,
        description=(__doc__ or "").strip(),
        positional=("|".join(SHELLS), shells),
    )


def _main(shells: list[str]) -> int:
    if len(shells) != 1 or shells[0] not in SHELLS:
        hint = did_you_mean(shells[0], SHELLS) if len(shells) == 1 else ""
        raise TfaccelError(f"Name one shell: {', '.join(SHELLS)}. Received: {' '.join(shells) or 'nothing'}.{hint}")
    write = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}[shells[0]]
    print(write(programs()))
    return 0


def programs() -> dict[str, Program]:
    """Each command, with what it takes; `benchmark gpu` is one of its own.

    Example:
        >>> "train" in programs()
        True
    """
    from tfaccel.scripts.benchmark import GPU_SUITE, SUITES
    from tfaccel.scripts.main import COMMANDS

    words = {"benchmark": SUITES, "completion": SHELLS}
    found = {}
    for name in [*COMMANDS, f"benchmark {GPU_SUITE}"]:
        command, *suite = name.split()
        program = import_module(f"tfaccel.scripts.{command.replace('-', '_')}")
        with described_only() as described:
            program.run([f"tfaccel {command}", *suite, "--help"])
        [(values, takes_words)] = described
        completed = sorted(map(_completed, own_flags(values)), key=lambda one: one.name)
        own = () if suite else words.get(command, ())
        help_flag = Completed("help", "show the flags", True, ())
        found[name] = Program(own, takes_words and not own, (*completed, help_flag))
    return found


def _completed(flag: flags.Flag) -> Completed:
    values = tuple(getattr(flag.parser, "enum_values", ()))
    if flag.name == "recipe":
        values = tuple(entry.name for entry in list_recipes())
    text = textwrap.shorten(flag.help or "", _MAX_TEXT, placeholder=" …")
    return Completed(flag.name, text, bool(flag.boolean), values)


_BASH = """\
# Completes the commands and flags of tfaccel in bash.
_tfaccel() {
    local current=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} flag="" prefix="" choices="" word
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W "COMMANDS" -- "$current"))
        return
    fi
    for word in "${COMP_WORDS[@]:2:COMP_CWORD-2}"; do
        [[ $word != -- ]] || return 0 # another command follows
    done
    ((COMP_CWORD > 2)) && case "$command ${COMP_WORDS[2]}" in
    SUITES) command+=" ${COMP_WORDS[2]}" ;;
    esac
    # bash splits words at `=`, unless it was told not to.
    if [[ $current == --*=* ]]; then
        flag=${current%%=*} prefix=${current%%=*}= current=${current#*=}
    elif [[ $current == = ]]; then
        flag=${COMP_WORDS[COMP_CWORD-1]} current=""
    elif [[ ${COMP_WORDS[COMP_CWORD-1]} == = ]]; then
        flag=${COMP_WORDS[COMP_CWORD-2]}
    elif [[ $current != -* ]]; then
        flag=words
    fi
    case "$command $flag" in
CASES
    esac
    COMPREPLY=($(compgen -P "$prefix" -W "$choices" -- "$current"))
    [[ ${#COMPREPLY[@]} != 1 || ${COMPREPLY[0]} != *= ]] || compopt -o nospace 2>/dev/null
    return 0
}
complete -o bashdefault -o default -F _tfaccel tfaccel"""


def bash_script(found: dict[str, Program]) -> str:
    """The script for bash."""
    cases = [f'    "{name} {place}") choices="{words}" ;;' for name, place, words in _bash_choices(found)]
    text = _BASH.replace("COMMANDS", " ".join(_commands(found))).replace("CASES", "\n".join(cases))
    return text.replace("SUITES", " | ".join(f'"{name}"' for name in found if " " in name))


def _bash_choices(found: dict[str, Program]) -> Iterator[tuple[str, str, str]]:
    """Command, what stands before the cursor ("" for a flag's beginning), and what may follow."""
    for name, program in found.items():
        yield name, "", " ".join(f"--{one.name}{'' if one.is_switch else '='}" for one in program.flags)
        if program.words:
            yield name, "words", " ".join(program.words)
        for one in program.flags:
            if one.values:
                yield name, f"--{one.name}", " ".join(one.values)


_ZSH = """\
#compdef tfaccel
# Completes the commands and flags of tfaccel in zsh.
_tfaccel() {
    local -a commands specs
    commands=(
COMMANDS
    )
    if ((CURRENT == 2)); then
        _describe command commands
        return
    fi
    local command=$words[2]
    if ((CURRENT > 3)); then
        case "$command $words[3]" in
        SUITES) command+=" $words[3]" ;;
        esac
    fi
    case $command in
CASES
    esac
    shift words
    ((CURRENT--))
    _arguments -S $specs
}
if [[ $funcstack[1] == _tfaccel ]]; then
    _tfaccel "$@"
else
    compdef _tfaccel tfaccel
fi"""


def zsh_script(found: dict[str, Program]) -> str:
    """The script for zsh."""
    commands = [f"        {_quoted(f'{name}:{text}')}" for name, text in _commands(found).items()]
    cases = []
    for name, program in found.items():
        rest = f"1:word:({' '.join(program.words)})" if program.words else "*:file:_files"
        specs = [*map(_zsh_spec, program.flags), _quoted(rest)]
        cases.append("\n            ".join([f'    "{name}")\n        specs=(', *specs]) + "\n        )\n        ;;")
    text = _ZSH.replace("COMMANDS", "\n".join(commands)).replace("CASES", "\n".join(cases))
    return text.replace("SUITES", " | ".join(f'"{name}"' for name in found if " " in name))


def _zsh_spec(one: Completed) -> str:
    text = one.text.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
    values = f"({' '.join(one.values)})" if one.values else "_files"
    return _quoted(f"--{one.name}[{text}]" if one.is_switch else f"--{one.name}=[{text}]:{one.name}:{values}")


_FISH = """\
# Completes the commands and flags of tfaccel in fish.
function __tfaccel_is --argument-names name
    set -l words (commandline -opc)
    if contains -- -- $words # another command follows
        return 1
    end
    switch "$words[2..3]"
        case SUITES
            test "$words[2..3]" = $name
        case '*'
            test "$words[2]" = $name
    end
end"""


def fish_script(found: dict[str, Program]) -> str:
    """The script for fish."""
    lines = [_FISH.replace("SUITES", " ".join(_quoted(name) for name in found if " " in name))]
    for name, text in _commands(found).items():
        lines.append(f"complete -c tfaccel -n __fish_use_subcommand -f -a {name} -d {_quoted(text)}")
    for name, program in found.items():
        start = f"complete -c tfaccel -n '__tfaccel_is \"{name}\"'"
        if program.words:
            lines.append(f"{start} -f -a {_quoted(' '.join(program.words))}")
        elif not program.takes_files:
            lines.append(f"{start} -f")
        for one in program.flags:
            taken = f" -x -a {_quoted(' '.join(one.values))}" if one.values else " -r -F"
            lines.append(f"{start} -l {one.name}{'' if one.is_switch else taken} -d {_quoted(one.text)}")
    return "\n".join(lines)


def _commands(found: dict[str, Program]) -> dict[str, str]:
    """The commands, with what they do."""
    from tfaccel.scripts.main import COMMANDS

    return {name: COMMANDS[name] for name in found if name in COMMANDS}


def _quoted(text: str) -> str:
    """A text in single quotes, for zsh and fish; a quote in it is taken out of them."""
    return "'" + text.replace("'", "'\\''") + "'"


if __name__ == "__main__":
    sys.exit(run(["completion", *sys.argv[1:]]))
