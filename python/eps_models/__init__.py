"""Exports a PyTorch model as a program of stages, which a worker runs without Python."""
