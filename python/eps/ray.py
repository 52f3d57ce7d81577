"""Workers of EPS on a Ray cluster: one actor keeps each of them running (docs/guides/ray.md).

    workers = eps.ray.run_workers(2, servers="hostA:50151,hostB:50151", data="/data/text.epsd")
    workers.wait()

Needs the package `ray`, which `pip install "eps-client[ray]"` brings, and on each node `eps` and
`eps-worker`.
"""

from __future__ import annotations

import collections
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional, Union

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

_NO_INPUT = 66
# Codes after which the same command may do better (docs/reference/cli.md): a process was away, an
# internal error, I/O, fenced, stopped. So may a process that was killed.
_PASSING = frozenset({69, 70, 74, 75, 128 + signal.SIGINT, 128 + signal.SIGTERM})
_LAST_LINES = 20
_PAUSE_SECONDS = 1.0


class WorkerError(RuntimeError):
    """A worker has ended with a code that another try would repeat."""

    def __init__(self, rank: int, code: int, stderr: str) -> None:
        super().__init__(f"worker {rank} ended with exit code {code}; its last lines:\n{stderr}")
        self.rank = rank
        self.code = code
        self.stderr = stderr


class _End(NamedTuple):
    code: int
    stderr: str


class _Keeper:
    """The actor of one worker: runs its process, and starts it again when it dies.

    When the actor itself is killed, Ray sends SIGTERM to the process.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = list(command)
        self._environment = {**os.environ, **environment}
        self._lock = threading.Lock()
        self._stopped = False
        self._process: Optional[subprocess.Popen[str]] = None

    def run(self) -> _End:
        """Returns how the worker has ended for good."""
        if shutil.which(self._command[0]) is None:
            return _End(_NO_INPUT, f"{self._command[0]}: no such program on {os.uname().nodename}; "
                        "install EPS there, or give `command`")
        while True:
            with self._lock:
                if self._stopped:
                    return _End(0, "")
                self._process = subprocess.Popen(
                    self._command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                    errors="replace", env=self._environment)
            end = self._follow(self._process)
            if self._stopped or (end.code >= 0 and end.code not in _PASSING):
                return end
            print(f"eps.ray: the worker ended with {end.code}; it starts again", file=sys.stderr)
            time.sleep(_PAUSE_SECONDS)

    def stop(self) -> None:
        """Sends SIGTERM to the process, once. Idempotent."""
        with self._lock:
            if not self._stopped and self._process is not None:
                self._process.terminate()
            self._stopped = True

    def _follow(self, process: subprocess.Popen[str]) -> _End:
        last: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
        assert process.stderr is not None
        for line in process.stderr:
            sys.stderr.write(line)
            last.append(line)
        return _End(process.wait(), "".join(last))


class Workers:
    """Running workers; run_workers makes it. They end with the script that started them."""

    def __init__(self, group: Any, keepers: Sequence[Any]) -> None:
        self._group = group
        self._keepers = list(keepers)
        self._runs = [keeper.run.remote() for keeper in self._keepers]

    def wait(self, timeout: Optional[float] = None) -> None:
        """Returns once every worker has ended with 0, or after stop().

        WorkerError if one has ended with a code that another try would repeat; the others get
        SIGTERM then. TimeoutError after `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        waiting = self._runs
        while waiting:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ended, waiting = ray.wait(waiting, timeout=left)
            if not ended:
                raise TimeoutError(f"{len(waiting)} of {len(self._runs)} workers still run")
            for run in ended:
                end = ray.get(run)
                if end.code not in (0, 128 + signal.SIGTERM):
                    remove_placement_group(self._group)
                    raise WorkerError(self._runs.index(run), end.code, end.stderr)
        remove_placement_group(self._group)

    def stop(self, timeout: float = 60.0) -> None:
        """Sends SIGTERM to every worker, which then finishes its step, and waits for their ends.

        After `timeout` seconds a worker that still runs is killed. Idempotent.
        """
        deadline = time.monotonic() + timeout
        waiting = self._runs
        while waiting and time.monotonic() < deadline:
            # Again and again, since an actor that starts again does not know that it was stopped.
            for keeper in self._keepers:
                keeper.stop.remote()
            waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_PAUSE_SECONDS)[1]
        remove_placement_group(self._group)


def run_workers(count: int, *, servers: Union[str, Sequence[str]],
                data: Union[str, Sequence[str]] = (), command: Sequence[str] = ("eps", "worker"),
                arguments: Sequence[str] = (), cpus: int = 1, gpus: float = 0) -> Workers:
    """Starts `count` workers on the Ray cluster, and returns at once.

    `servers` and `data` are those of `eps worker`; `arguments` are further ones, such as
    "--worker.stay". Each worker has `cpus` threads and `gpus` devices of a node in one placement
    group. A worker that dies is started again, and so is its actor, on another node if its own is
    lost. Connects to Ray by ray.init() unless that was done.
    """
    if count < 1:
        raise ValueError(f"count: expected at least 1, got {count}")
    listed = servers if isinstance(servers, str) else ",".join(servers)
    files = [data] if isinstance(data, str) else list(data)
    line = [*command, f"--servers={listed}", *(f"--data={file}" for file in files), *arguments]
    if not ray.is_initialized():
        ray.init()
    group = placement_group([{"CPU": cpus, **({"GPU": gpus} if gpus else {})}] * count)
    keeper = ray.remote(_Keeper)
    return Workers(group, [
        keeper.options(
            num_cpus=cpus, num_gpus=gpus, max_restarts=-1, max_task_retries=-1, max_concurrency=2,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=rank),
        ).remote(line, {"RANK": str(rank), "WORLD_SIZE": str(count),
                        "EPS_WORKER__THREADS": str(cpus)})
        for rank in range(count)])
