"""The programs of EPS, an eager parameter server, as commands of a Python environment.

The commands `eps` and `eps-worker` replace themselves with the programs in bin/."""

import importlib.util
import os
import sys

__version__ = "@VERSION@"
_FOLDER = os.path.dirname(os.path.abspath(__file__))


def _run(program):
    torch = importlib.util.find_spec("torch")
    if torch is None:
        sys.exit(program + ": PyTorch is missing: " + sys.executable + " -m pip install @TORCH@")
    # eps-worker finds a PyTorch beside this package by itself; PyTorch may lie elsewhere.
    libraries = os.path.join(os.path.dirname(torch.origin), "lib")
    if libraries != os.path.join(os.path.dirname(_FOLDER), "torch", "lib"):
        others = os.environ.get("LD_LIBRARY_PATH")
        os.environ["LD_LIBRARY_PATH"] = libraries + (":" + others if others else "")
    # The Python of eps data and eps model.
    os.environ.setdefault("EPS_PYTHON", sys.executable)
    path = os.path.join(_FOLDER, "bin", program)
    os.execv(path, [path, *sys.argv[1:]])


def run_eps():
    _run("eps")


def run_worker():
    _run("eps-worker")
