"""The errors of the client. Each text is the server's: what was expected and found, and of what."""

from __future__ import annotations

import grpc


class EpsError(Exception):
    """An error of a call. `code` is that of gRPC."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class InvalidError(EpsError, ValueError):
    """A field of the request is wrong; the text names it."""


class NotFoundError(EpsError, LookupError):
    """There is no job of this name."""


class ConflictError(EpsError):
    """Another job has this name; the text has the first difference."""


class StateError(EpsError):
    """The job, or this server, is in no state for the call: the job has ended, say."""


class FullError(EpsError):
    """The board has no room for more jobs."""


class UnavailableError(EpsError, ConnectionError):
    """The server did not answer in time. Repeat the call: it has its effect once."""


_KINDS = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.ALREADY_EXISTS: ConflictError,
    grpc.StatusCode.FAILED_PRECONDITION: StateError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: FullError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: UnavailableError,
}


def error_of(failed: grpc.RpcError, server: str) -> EpsError:
    """Returns the error of a failed call to `server`."""
    code: grpc.StatusCode = failed.code()
    return _KINDS.get(code, EpsError)(code, f"server {server}: {failed.details()}")
