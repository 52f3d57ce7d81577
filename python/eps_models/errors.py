"""The errors of the export tool, each with the exit code that docs/reference/cli.md gives it."""

USAGE = 64
UNSUPPORTED = 65
MISSING = 66


class ExportError(Exception):
    """A model that cannot be exported.

    The message says what was found, names the operator, value or tensor, and says what to change.
    """

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code = code


def usage(message: str) -> ExportError:
    """Returns the error of a call that asks for something impossible."""
    return ExportError(USAGE, message)


def unsupported(message: str) -> ExportError:
    """Returns the error of a model that the program format cannot describe."""
    return ExportError(UNSUPPORTED, message)


def missing(message: str) -> ExportError:
    """Returns the error of a file or tensor that is not there."""
    return ExportError(MISSING, message)
