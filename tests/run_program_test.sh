#!/bin/bash
# Runs a Python test script of the runfiles: $1 is the script, the rest its arguments.
set -euo pipefail
export PYTHONDONTWRITEBYTECODE=1
exec python3 "$@"
