"""Maps a function over blocks with several processes; results come in the order of the blocks."""

import collections
import concurrent.futures.process
import ctypes
import multiprocessing
import os
import signal
from typing import Any, Callable, Iterable, Iterator

from eps_models.data import errors

_AHEAD = 4  # blocks that wait for each process
_PR_SET_PDEATHSIG = 1

_function: Callable[[Any], Any] | None = None  # what forked processes call


def usable_processors() -> int:
    return len(os.sched_getaffinity(0))


def ordered_map(function: Callable[[Any], Any], blocks: Iterable[Any],
                processes: int) -> Iterator[Any]:
    """Yields function(block) for each block in order. Reads only a few blocks ahead. `function`
    may be anything: processes are forked with it. Errors: those of the function, in its place;
    DOES_NOT_FIT if a process ends."""
    global _function  # pylint: disable=global-statement
    if processes == 1:
        yield from map(function, blocks)
        return
    _function = function
    pool = concurrent.futures.ProcessPoolExecutor(
        processes, mp_context=multiprocessing.get_context("fork"), initializer=_end_with_parent,
        initargs=(os.getpid(),))
    waiting: collections.deque = collections.deque()
    try:
        for block in blocks:
            waiting.append(pool.submit(_call, block))
            if len(waiting) >= _AHEAD * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except concurrent.futures.process.BrokenProcessPool as error:
        raise errors.lost_process() from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _call(block: Any) -> Any:
    return _function(block)


def _end_with_parent(parent: int) -> None:
    """Makes the kernel end this process with its parent, and Ctrl-C reach only the parent."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.getppid() != parent:
        os._exit(1)
