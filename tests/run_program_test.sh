#!/bin/bash
# Runs a Python test script from the runfiles: $1 is the script, the rest are its arguments.
set -euo pipefail
export PYTHONDONTWRITEBYTECODE=1
exec python3 "$@"
