"""The client of an EPS board of jobs: submit jobs to parameter servers, and follow them."""

from eps.client import Client
from eps.errors import (ConflictError, EpsError, FullError, InvalidError, NotFoundError, StateError,
                        UnavailableError)
from eps.job import Desired, Event, EventKind, Job, Phase

__all__ = ["Client", "ConflictError", "Desired", "EpsError", "Event", "EventKind", "FullError",
           "InvalidError", "Job", "NotFoundError", "Phase", "StateError", "UnavailableError"]
__version__ = "0.1.0"
