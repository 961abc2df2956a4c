"""A Slurm cluster of one node, this machine, with its own controller, ports and folder; it needs no root."""

import getpass
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from tfaccel.processes.local_cluster import free_ports

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel")
MISSING = [name for name in PROGRAMS if shutil.which(name) is None]
CONFIGURATION = """
ClusterName=tfaccel
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={controller_port}
SlurmdPort={node_port}
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/node.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


class SlurmCluster:
    """A running cluster; as a context manager, ends it on exit.

    Attributes:
        configuration: its file, for SLURM_CONF.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._daemons = []
        self.configuration = folder / "slurm.conf"
        self._environment = {**os.environ, "SLURM_CONF": str(self.configuration)}
        host = socket.gethostname().split(".")[0]
        controller_port, node_port = free_ports(2)
        for name in ("state", "spool"):
            (folder / name).mkdir(parents=True)
        values = {"folder": folder, "host": host, "user": getpass.getuser()}
        text = CONFIGURATION.format(controller_port=controller_port, node_port=node_port, **values)
        self.configuration.write_text(text)
        self._host = host

    def __enter__(self) -> "SlurmCluster":
        try:
            self._start("slurmctld", "-D")
            self._start("slurmd", "-D", "-N", self._host)
            self._wait(lambda: "idle" in self._ask("sinfo", "--noheader", "--format=%T"), "has no idle node")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            daemon.wait(60)

    def submit(self, script: Path) -> int:
        """Submits a batch script, whose output goes to its folder; returns the job's number."""
        return int(self._ask("sbatch", "--parsable", script.name, cwd=script.parent))

    def wait_for(self, job: int, *states: str, seconds: float = 120) -> dict[str, str]:
        """Waits until a job is in one of these states; returns what Slurm knows of it."""
        self._wait(lambda: self.job(job)["JobState"] in states, f"has not brought job {job} to {states}", seconds)
        return self.job(job)

    def job(self, job: int) -> dict[str, str]:
        words = self._ask("scontrol", "show", "job", str(job)).split()
        return dict(word.partition("=")[::2] for word in words)

    def wait_until_requeued(self, job: int) -> None:
        """Waits until a job that has run is back in the queue."""
        self._wait(lambda: self._is_requeued(self.job(job)), f"has not requeued job {job}", 120)

    @staticmethod
    def _is_requeued(job: dict[str, str]) -> bool:
        return job["JobState"] == "PENDING" and job["Restarts"] != "0"

    def start_now(self, job: int) -> None:
        """Starts a requeued job without the two minutes that Slurm makes it wait, but later than in the same second."""
        time.sleep(3)
        self._ask("scontrol", "update", f"JobId={job}", "StartTime=now")

    def cancel(self, job: int) -> None:
        """Cancels a job, as its user does."""
        self._ask("scancel", str(job))

    def signal(self, job: int, name: str) -> None:
        """Sends a signal to the workers, as before a time limit or a preemption."""
        self._ask("scancel", f"--signal={name}", str(job))

    def _start(self, *command: str) -> None:
        with (self._folder / f"{command[0]}.log").open("wb") as log:
            self._daemons.append(subprocess.Popen(command, env=self._environment, stdout=log, stderr=log))

    def _ask(self, *command: str, cwd: Path | None = None) -> str:
        done = subprocess.run(
            command, env=self._environment, cwd=cwd, capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout

    def _wait(self, condition, fault: str, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                logs = "\n".join(path.read_text()[-3000:] for path in self._folder.glob("*.log"))
                raise TimeoutError(f"Slurm {fault}:\n{self._ask('squeue')}\n{logs}")
            time.sleep(0.2)
