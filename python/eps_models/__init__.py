"""Exports models as programs of stages, which workers run without Python; `data` makes files."""
