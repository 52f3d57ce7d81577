"""Passes the metrics of a run on to programs that people watch them in."""
