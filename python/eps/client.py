"""The calls of the Scheduler service (proto/eps/v1/scheduler.proto)."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Optional, Union

import grpc

from eps.errors import EpsError, NotFoundError, StateError, UnavailableError, error_of
from eps.job import Desired, Event, EventKind, Job, job_of
from eps.v1 import scheduler_pb2, scheduler_pb2_grpc

_CALL_SECONDS = 10.0
# A watch is opened again after so long: then a server that vanished without a word is noticed.
_WATCH_SECONDS = 60.0
_PAUSE_SECONDS = 0.2
_MOST_UPDATES = 100  # of one job that others change all the time


def _credentials(folder: str) -> grpc.ChannelCredentials:
    """Reads a certificate, its key and its authority."""
    texts = []
    for name in ("ca.crt", "tls.key", "tls.crt"):
        with open(os.path.join(folder, name), "rb") as file:
            texts.append(file.read())
    return grpc.ssl_channel_credentials(*texts)


class Client:
    """The board of jobs at the lead of some servers.

    Calls block, have a deadline, and may be repeated: each has its effect once. While the lead is
    away, they are repeated for `patience` seconds and then raise UnavailableError. Thread-safe.
    """

    def __init__(self, servers: Union[str, Sequence[str], None] = None,
                 patience: float = 60.0, security_dir: Optional[str] = None) -> None:
        """Takes the addresses of the servers, the lead first: "a:50151,b:50151", or a list of
        them, or what EPS_SERVERS says. Connects with the first call.

        `security_dir` is the folder of a certificate (tls.key, tls.crt, ca.crt) of the role
        scheduler, admin or viewer, for servers with TLS; by default what EPS_SECURITY__DIR says,
        else the connection is plaintext. OSError if a file is missing."""
        if servers is None:
            servers = os.environ.get("EPS_SERVERS", "")
        addresses = servers.split(",") if isinstance(servers, str) else list(servers)
        self._lead = addresses[0].strip() if addresses else ""
        if not self._lead:
            raise ValueError('servers: expected "host:port,host:port", the lead first, or the '
                             "variable EPS_SERVERS")
        self._patience = patience
        if security_dir is None:
            security_dir = os.environ.get("EPS_SECURITY__DIR", "")
        options = [("grpc.initial_reconnect_backoff_ms", 200),
                   ("grpc.max_reconnect_backoff_ms", 1000)]
        if security_dir:
            self._channel = grpc.secure_channel(self._lead, _credentials(security_dir), options)
        else:
            self._channel = grpc.insecure_channel(self._lead, options)
        self._stub = scheduler_pb2_grpc.SchedulerStub(self._channel)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()

    def close(self) -> None:
        """Ends all calls. Idempotent."""
        self._channel.close()

    def submit(self, name: str, config: Union[str, Mapping[str, Any]], *,
               labels: Optional[Mapping[str, str]] = None, paused: bool = False) -> Job:
        """Adds a job; returns it, or the same job if it is there already.

        `name` is a DNS label. `config` is YAML, or the sections as a mapping:
        {"training": {"steps": 100}}. InvalidError names a bad field; ConflictError if another job
        has the name.
        """
        if not isinstance(config, str):
            config = json.dumps(config, indent=1) + "\n"  # which is YAML, too
        desired = scheduler_pb2.DESIRED_PAUSE if paused else scheduler_pb2.DESIRED_RUN
        return job_of(self._call(self._stub.SubmitJob, scheduler_pb2.SubmitJobRequest(
            name=name, config=config, labels=dict(labels or {}), desired=desired)).job)

    def jobs(self) -> list[Job]:
        """Returns all jobs, by name."""
        return [job_of(job) for job in self._list("").jobs]

    def get(self, name: str) -> Job:
        """Returns a job. NotFoundError if there is none of this name."""
        for job in self._list(name).jobs:
            if job.name == name:
                return job_of(job)
        raise NotFoundError(grpc.StatusCode.NOT_FOUND,
                            f'server {self._lead}: there is no job "{name}" on the board')

    def pause(self, name: str) -> Job:
        """Wants the job to stop after its next step, with a checkpoint."""
        return self._update(name, Desired.PAUSE)

    def resume(self, name: str) -> Job:
        """Wants the job to go on: also one that failed with 69, 70, 74 or 75."""
        return self._update(name, Desired.RUN)

    def cancel(self, name: str) -> Job:
        """Wants the job to end, for ever."""
        return self._update(name, Desired.CANCEL)

    def scale(self, name: str, workers: int) -> Job:
        """Has that many workers compute the job; the others wait. 0: all, as they ask for parts.

        Returns at once. The parts are dealt again after the step; the bits stay the same.
        """
        return self._update(name, workers=workers)

    def drain_worker(self, name: str, worker: str) -> None:
        """Has a worker finish its step, give back its parts and end.

        `worker` is its name, as `eps status` shows it.
        """
        self._call(self._stub.DrainWorker, scheduler_pb2.DrainWorkerRequest(
            name=name, worker_nonce=int(worker, 16)))

    def drain_server(self) -> None:
        """Has the first of this client's servers end as SIGTERM would."""
        self._call(self._stub.DrainServer, scheduler_pb2.DrainServerRequest())

    def checkpoint(self, name: str, timeout: Optional[float] = None) -> Job:
        """Has a running job write a checkpoint after its next step, and waits for it.

        The job's `checkpoint` names it. StateError if the job does not run, or ends without it.
        """
        wanted: int = self._call(self._stub.CheckpointJob, scheduler_pb2.CheckpointJobRequest(
            name=name)).job.checkpoint_wanted
        job = self.wait(name, timeout, until=lambda now: now.checkpoint_step >= wanted)
        if job.checkpoint_step < wanted:
            raise StateError(grpc.StatusCode.FAILED_PRECONDITION, f'server {self._lead}: job '
                             f'"{name}" has ended without a checkpoint of step {wanted}')
        return job

    def remove(self, name: str) -> None:
        """Takes a job that has ended off the board. StateError if it has not ended."""
        self._call(self._stub.RemoveJob, scheduler_pb2.RemoveJobRequest(name=name))

    def watch(self, name: str = "") -> Iterator[Event]:
        """Yields each job as it is, and then each of its changes, in order.

        With a name, only that job, until it has ended or was removed; NotFoundError if it is not
        there. Goes on over restarts of the lead, unless it is away for longer than `patience`.
        Changes that happened meanwhile may come as one.
        """
        if name:
            self.get(name)
        return self._watch(name, None)

    def wait(self, name: str, timeout: Optional[float] = None,
             until: Optional[Callable[[Job], bool]] = None) -> Job:
        """Waits until the job has ended, or `until` returns true of it; returns it.

        TimeoutError after `timeout` seconds; NotFoundError if the job is removed meanwhile.
        """
        self.get(name)
        deadline = None if timeout is None else time.monotonic() + timeout
        for event in self._watch(name, deadline):
            if event.kind is EventKind.REMOVED:
                break
            if event.job.ended or (until is not None and until(event.job)):
                return event.job
        raise NotFoundError(grpc.StatusCode.NOT_FOUND,
                            f'server {self._lead}: job "{name}" was removed')

    def _call(self, method: Any, request: Any) -> Any:
        """Makes a call, and repeats it while the server is away."""
        request.request_id = uuid.uuid4().hex
        deadline = time.monotonic() + self._patience
        while True:
            left = deadline - time.monotonic()
            try:
                return method(request, timeout=max(0.1, min(_CALL_SECONDS, left)))
            except grpc.RpcError as failed:
                error = error_of(failed, self._lead)
            if not isinstance(error, UnavailableError) or time.monotonic() >= deadline:
                raise error
            time.sleep(_PAUSE_SECONDS)

    def _list(self, name: str) -> Any:
        return self._call(self._stub.ListJobs, scheduler_pb2.ListJobsRequest(name=name))

    def _update(self, name: str, desired: Optional[Desired] = None,
                workers: Optional[int] = None) -> Job:
        for _ in range(_MOST_UPDATES):
            generation = self.get(name).generation
            try:
                return job_of(self._call(self._stub.UpdateJob, scheduler_pb2.UpdateJobRequest(
                    name=name, expected_generation=generation, workers=workers,
                    desired=desired.value if desired is not None else None)).job)
            except EpsError as error:
                if error.code is not grpc.StatusCode.ABORTED:
                    raise
        raise UnavailableError(grpc.StatusCode.ABORTED, f'server {self._lead}: job "{name}" was '
                               f"changed {_MOST_UPDATES} times by others")

    def _watch(self, name: str, deadline: Optional[float]) -> Iterator[Event]:
        """As watch; TimeoutError at `deadline` (of time.monotonic)."""
        known: dict[str, Job] = {}  # by name, as of the last event
        while True:
            listed = self._list(name)
            there = {message.name: job_of(message) for message in listed.jobs
                     if not name or message.name == name}
            events = [Event(EventKind.REMOVED, job) for job in known.values()
                      if job.name not in there or there[job.name].uid != job.uid]
            # Revisions of a board that was that starts over begin again.
            events += [Event(EventKind.PUT, job) for job in there.values()
                       if known.get(job.name) != job]
            for event in events:
                yield event
                if name and (event.kind is EventKind.REMOVED or event.job.ended):
                    return
            known = there
            revision = listed.revision
            for message in self._stream(listed.board, revision, name, deadline):
                kind = message.kind
                if kind == scheduler_pb2.JobEvent.KIND_REMOVED:
                    job = known.pop(message.job.name, None)
                    if job is None:
                        continue
                    event = Event(EventKind.REMOVED, job)
                else:
                    event = Event(EventKind.PROGRESS
                                  if kind == scheduler_pb2.JobEvent.KIND_PROGRESS
                                  else EventKind.PUT, job_of(message.job))
                    known[event.job.name] = event.job
                yield event
                if name and (event.kind is EventKind.REMOVED or event.job.ended):
                    return

    def _stream(self, board: int, revision: int, name: str,
                deadline: Optional[float]) -> Iterator[Any]:
        """Yields the messages after a revision, until the board has to be listed again."""
        heard = time.monotonic()
        while True:
            seconds = _WATCH_SECONDS
            if deadline is not None:
                seconds = min(seconds, deadline - time.monotonic())
                if seconds <= 0:
                    raise TimeoutError(f'server {self._lead}: job "{name}" has not come so far')
            call = self._stub.WatchJobs(scheduler_pb2.WatchJobsRequest(
                request_id=uuid.uuid4().hex, board=board, from_revision=revision, name=name),
                timeout=seconds)
            try:
                for message in call:
                    heard = time.monotonic()
                    revision = max(revision, message.revision)
                    if message.kind != scheduler_pb2.JobEvent.KIND_BOOKMARK:
                        yield message
            except grpc.RpcError as failed:
                error = error_of(failed, self._lead)
                if error.code in (grpc.StatusCode.OUT_OF_RANGE,
                                  grpc.StatusCode.RESOURCE_EXHAUSTED):
                    return
                away = isinstance(error, UnavailableError)
                if not away or time.monotonic() - heard > self._patience:
                    raise error from None
                if error.code is grpc.StatusCode.UNAVAILABLE:
                    time.sleep(_PAUSE_SECONDS)
            finally:
                call.cancel()
