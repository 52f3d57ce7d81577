"""The errors of `eps data`, each with the exit code that docs/reference/cli.md gives it."""

USAGE = 64
INVALID = 65
MISSING = 66
DOES_NOT_FIT = 71


class DataError(Exception):
    """Says what is wrong, in which file and place, and what to change."""

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code = code

    def __reduce__(self):
        return DataError, (self.code, str(self))  # processes hand it to their parent


class BadRow(DataError):
    """A record of the input that cannot become a document: --bad-rows=skip leaves it out."""

    def __init__(self, place: str, message: str):
        super().__init__(INVALID, f"{place}: {message}")
        self.place = place
        self.reason = message

    def __reduce__(self):
        return BadRow, (self.place, self.reason)


def usage(message: str) -> DataError:
    """Returns the error of a call that asks for something impossible."""
    return DataError(USAGE, message)


def invalid(message: str) -> DataError:
    """Returns the error of a file whose content is wrong."""
    return DataError(INVALID, message)


def lost_process() -> DataError:
    """Returns the error of a process that ended in the middle of its work."""
    return DataError(DOES_NOT_FIT, "a process was ended from outside, perhaps for lack of memory; "
                                   "give fewer --processes")


def missing(message: str) -> DataError:
    """Returns the error of a file or package that is not there."""
    return DataError(MISSING, message)
