"""Compiler flags of our own code; generated code and third parties are not held to them."""

EPS_COPTS = ["-Werror"]
