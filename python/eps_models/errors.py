"""The errors of the export tool, each with the exit code that docs/reference/cli.md gives it."""

import importlib.util
import sys

USAGE = 64
UNSUPPORTED = 65
MISSING = 66
INTERNAL = 70
INTERRUPTED = 130


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


def require_packages() -> None:
    """Ends this process with MISSING and one line if it lacks a package. Call it before an import
    that needs one."""
    absent = [name for name in ("torch", "transformers", "safetensors")
              if importlib.util.find_spec(name) is None]
    if absent:
        print(f"eps model: {sys.executable} has no {' and no '.join(absent)}; "
              f"third_party/install/setup_models.sh installs a Python that has them, and "
              f"EPS_PYTHON names another one", file=sys.stderr)
        sys.exit(MISSING)
