#!/bin/bash
# Runs the Python client against a server process: $1 is the server, $2 prints a job spec. Bazel
# passes this script as a symlink, whose target is in the tree, next to third_party/.venv.
set -euo pipefail
root=$(dirname "$(dirname "$(dirname "$(readlink --canonicalize "$0")")")")
python=$root/third_party/.venv/bin/python
if [[ ! -x $python ]]; then
  echo "third_party/.venv is missing: run third_party/install/setup_python.sh" >&2
  exit 1
fi
stubs=$TEST_TMPDIR/stubs
mkdir -p "$stubs"
"$python" -m grpc_tools.protoc -Iproto --python_out="$stubs" --grpc_python_out="$stubs" \
  proto/eps/v1/*.proto
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$stubs
exec "$python" tests/python_client/python_client_test.py "$@"
