"""Jobs and events as values."""

from __future__ import annotations

import dataclasses
import datetime
import enum
from collections.abc import Mapping
from typing import Optional

from eps.v1 import scheduler_pb2


class Phase(enum.Enum):
    """Where a job is. The values are those of eps.v1.JobPhase."""

    QUEUED = 1
    STARTING = 2
    RUNNING = 3
    PAUSED = 4
    SUCCEEDED = 5
    FAILED = 6
    CANCELLED = 7

    @property
    def ended(self) -> bool:
        return self in (Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED)


class Desired(enum.Enum):
    """What somebody wants of a job. The values are those of eps.v1.Desired."""

    RUN = 1
    PAUSE = 2
    CANCEL = 3


@dataclasses.dataclass(frozen=True)
class Job:
    """A job on the board, as it was at one moment."""

    name: str
    uid: int  # a job that takes the name later has another one
    phase: Phase
    desired: Desired
    reason: str  # why it is in this phase, if that is not plain
    step: int
    steps: int  # 0 until a driver has started it
    loss: float
    checkpoint: str  # the folder of the last checkpoint, as its driver sees it; "" if there is none
    checkpoint_step: int
    checkpoint_wanted: int  # the last wish: a checkpoint of this step or a later one; 0: none
    workers_wanted: int  # how many workers compute it; 0: each takes the parts that it asks for
    exit_code: Optional[int]  # None until it has ended
    error: str
    driver: str  # the host of its driver; "" if it has none
    owner: str
    labels: Mapping[str, str]
    config: str
    generation: int  # grows with each change of `desired` and `workers_wanted`
    revision: int  # of the board, at the job's last durable change
    created: datetime.datetime  # by the clock of the lead

    @property
    def ended(self) -> bool:
        return self.phase.ended


class EventKind(enum.Enum):
    """PUT: the job is as it says. PROGRESS: its step moved. REMOVED: it left the board."""

    PUT = 1
    REMOVED = 2
    PROGRESS = 3


@dataclasses.dataclass(frozen=True)
class Event:
    """A change of a job. Of a job that was removed, `job` is the last that was known."""

    kind: EventKind
    job: Job


def job_of(message: scheduler_pb2.Job) -> Job:
    """Returns the job of a message."""
    phase = Phase(message.phase)
    return Job(
        name=message.name, uid=message.uid, phase=phase, desired=Desired(message.desired),
        reason=message.reason, step=message.progress.step, steps=message.progress.steps,
        loss=message.progress.loss, checkpoint=message.progress.checkpoint,
        checkpoint_step=message.progress.checkpoint_step,
        checkpoint_wanted=message.checkpoint_wanted,
        workers_wanted=message.workers_wanted,
        exit_code=message.result.exit_code if phase.ended else None, error=message.result.text,
        driver=message.driver.host if message.driver.driver_nonce else "", owner=message.owner,
        labels=dict(message.labels), config=message.config, generation=message.generation,
        revision=message.revision,
        created=datetime.datetime.fromtimestamp(message.created_ms / 1000, datetime.timezone.utc))
