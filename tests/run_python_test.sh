#!/bin/bash
# Runs a Python test of the source text: $1 is its path in the tree. Bazel passes this script as a
# symlink, whose target is in the tree itself.
set -euo pipefail
root=$(dirname "$(dirname "$(readlink --canonicalize "$0")")")
export PYTHONDONTWRITEBYTECODE=1
exec python3 "$root/$1"
