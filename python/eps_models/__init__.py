"""Exports a PyTorch model as a program of stages (docs/formats/model_program.md)."""
