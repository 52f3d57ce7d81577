"""Compiler flags of our own code. Generated code and third-party code do not use them."""

EPS_COPTS = ["-Werror"]
