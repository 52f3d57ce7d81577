"""A progress line for work that takes long."""

import sys
import time

_TERMINAL_SECONDS = 0.2
_FILE_SECONDS = 10.0


class Progress:
    """Prints what is done to stderr: one line, updated in place on a terminal, else a line every
    ten seconds."""

    def __init__(self, what: str):
        self._what = what
        self._terminal = sys.stderr.isatty()
        self._start = self._shown = time.monotonic()
        self._dirty = False

    def show(self, text: str) -> None:
        now = time.monotonic()
        if now - self._shown < (_TERMINAL_SECONDS if self._terminal else _FILE_SECONDS):
            return
        self._shown = now
        self._dirty = self._terminal
        begin, end = ("\r\x1b[K", "") if self._terminal else ("", "\n")
        print(f"{begin}{self._what}: {text}", end=end, file=sys.stderr, flush=True)

    def seconds(self) -> float:
        return max(1e-9, time.monotonic() - self._start)

    def clear(self) -> None:
        """Removes the line from a terminal."""
        if self._dirty:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._dirty = False
