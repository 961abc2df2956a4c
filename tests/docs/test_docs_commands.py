"""The shell commands of README and docs: their flags exist; with --all they run.

A run is made short by flags behind those on the page: one epoch, two trials, the briefest measurements. Where a page
starts a server, its port is any that is free, and what the page asks of the server is asked of it.
"""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from configparser import ConfigParser
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from pages import ROOT, blocks, calls, pages

CHECKER = Path(__file__).parent / "commands_program.py"
SHELL = ("sh", "bash")
PAGES_WITH_RUNS = [page for page in pages() if any(block.runs for block in blocks(page, *SHELL))]
BASE_RUN = "tfaccel train --recipe=image_classification --run_dir=runs/digits"
SHORTER = {
    "train": "--epochs=1",
    "search": "--epochs=1 --max_trials=2",
    "compress": "--latency_seconds=0.1 --max_metric_drop=1.0",
}
# Stands for the command, and adds the flags that make a run short.
PROGRAM = """#!/usr/bin/env bash
case $1 in
{cases}
*) {start} ;;
esac
"""


@pytest.mark.slow
def test_commands_and_flags_are_there():
    lines = [words for page in pages() for block in blocks(page, *SHELL) for words in read_lines(block)]
    assert len(lines) > 60
    child = subprocess.run(
        [sys.executable, CHECKER], input=json.dumps(lines), capture_output=True, text=True, timeout=500, check=False
    )
    assert child.returncode == 0, child.stderr[-3000:]
    outcomes = [json.loads(line) for line in child.stdout.splitlines()]
    assert len(outcomes) == len(lines)
    assert [outcome for outcome in outcomes if outcome[1] != 0] == []


def read_lines(block):
    """The command lines of tfaccel in a block, as words behind `tfaccel`."""
    return [shlex.split(call)[1:] for call in calls(block, "tfaccel")]


def test_extras_that_pages_install_are_there():
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    named = {
        extra
        for text in pages().values()
        for extras in re.findall(r"(?:pip install|pip install -e) '(?:tfaccel|\.)\[([\w,-]+)\]'", text)
        for extra in extras.split(",")
    }
    assert {"gpu", "tune", "compress"} <= named <= set(setup["options.extras_require"])


def test_the_first_page_lists_every_extra():
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    install = pages()["docs/get_started.md"].split("## The first result")[0]
    listed = set(re.findall(r"`([\w-]+)`", install.split("Other extras:")[1].split("Check the")[0]))
    shown = {name for names in re.findall(r"\.\[([\w,-]+)\]'", install) for name in names.split(",")}
    assert listed | shown == set(setup["options.extras_require"])


def test_other_programs_stand_in_blocks_that_say_what_they_need():
    known = re.compile(r"tfaccel|pip|python \w+\.py|wait$|CLUSTER=|TF_CONFIG=")
    for page in pages():
        for block in blocks(page, *SHELL):
            text = block.code.replace("\\\n", " ")
            lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
            assert not block.runs or all(known.match(line) for line in lines), f"{page}:{block.line}"


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """A folder with what stands for `tfaccel`, `python` and `pip` on the pages."""
    folder = tmp_path_factory.mktemp("bin")
    start = f'exec {sys.executable} -m tfaccel.scripts.main "$@"'
    cases = [f"{name}) {start} {flags} ;;" for name, flags in SHORTER.items()]
    texts = {
        "tfaccel": PROGRAM.format(cases="\n".join(cases), start=start),
        "python": f'#!/usr/bin/env bash\nexec {sys.executable} "$@"\n',
        "pip": "#!/usr/bin/env bash\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def base_run(programs, tmp_path_factory):
    """The run that pages begin with where they do not make it themselves."""
    folder = tmp_path_factory.mktemp("base")
    run(BASE_RUN, programs, folder)
    return folder / "runs" / "digits"


def run(code, programs, folder):
    """Runs shell commands; they must succeed."""
    child = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code],
        cwd=folder, env=environment(programs), capture_output=True, text=True, timeout=540, check=False,
    )  # fmt: skip
    assert child.returncode == 0, f"{code}\nstatus {child.returncode}\n{child.stdout[-2000:]}\n{child.stderr[-4000:]}"


def environment(programs):
    return {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


def write_inputs(folder):
    """What pages call photos, customers.csv and reviews.csv."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for kind in ("cats", "dogs"):
        (folder / "photos" / kind).mkdir(parents=True)
        for number in range(40):
            Image.fromarray(rng.integers(0, 256, (8, 8), "uint8")).save(folder / "photos" / kind / f"{number}.png")
    rows = [f"{rng.normal():.3f},{'ab'[i % 2]},{'yes' if i % 3 else 'no'}" for i in range(120)]
    (folder / "customers.csv").write_text("\n".join(["income,region,stays", *rows]))
    reviews = [f"it was {'good' if i % 2 else 'bad'} number {i},{i % 2}" for i in range(40)]
    (folder / "reviews.csv").write_text("\n".join(["review,stars", *reviews]))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", PAGES_WITH_RUNS)
def test_commands_run(page, programs, request, tmp_path):
    write_inputs(tmp_path)
    if BASE_RUN not in pages()[page] and "runs/digits" in pages()[page]:
        shutil.copytree(request.getfixturevalue("base_run"), tmp_path / "runs" / "digits")
    with Servers(programs, tmp_path) as servers:
        for block in blocks(page, "python", *SHELL):
            if block.file:
                (tmp_path / block.file).write_text(block.code)
            elif block.title == "Needs the server above":
                (tmp_path / "client.py").write_text(block.code.replace("8501", str(servers.port)))
                run("python client.py", programs, tmp_path)
            elif block.language != "python" and block.runs:
                servers.stop()
                if calls(block, "tfaccel serve"):
                    servers.start(block.code)
                else:
                    run(with_free_ports(block.code), programs, tmp_path)


def with_free_ports(code):
    """The ports that a page chooses, replaced by others that nobody has."""
    return re.sub(r"localhost:\d+", lambda match: f"localhost:{free_port(match[0])}", code)


@cache
def free_port(name):
    """A port for each name, the same at every call."""
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        return listening.getsockname()[1]


class Servers:
    """What `tfaccel serve` on a page starts, one at a time, on ports that are free."""

    def __init__(self, programs, folder):
        self._environment, self._folder = environment(programs), folder
        self._process = None
        self.port = None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.stop()

    def start(self, code):
        """Starts the server of a block, and waits until it serves."""
        command = f"exec {re.sub('--grpc_port=[0-9]+', '--grpc_port=0', code.strip())} --port=0"
        self._process = subprocess.Popen(
            ["bash", "-c", command], cwd=self._folder, env=self._environment, stdout=subprocess.PIPE, text=True
        )
        line = self._process.stdout.readline()
        assert line.startswith("Serving "), f"{command} did not serve"
        self.port = int(re.search(r"http://[\w.]+:(\d+)", line)[1])

    def stop(self):
        """Ends the server, if there is one, as an operator does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.communicate(timeout=120)
            assert self._process.returncode == 0
            self._process = None
