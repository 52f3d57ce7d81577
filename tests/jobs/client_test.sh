#!/bin/bash
# Runs client_test.py with the wheel eps-client unpacked: $1 is the path of eps. Bazel passes this
# script as a symlink, whose target is in the tree, next to third_party/.venv.
set -euo pipefail
root=$(dirname "$(dirname "$(dirname "$(readlink --canonicalize "$0")")")")
python=$root/third_party/.venv/bin/python
export PYTHONDONTWRITEBYTECODE=1
for copy in first second; do
  "$root/python/eps/build_wheel.sh" "$TEST_TMPDIR/$copy" >/dev/null
done
cmp "$TEST_TMPDIR"/{first,second}/eps_client-0.1.0-py3-none-any.whl
"$python" -m zipfile -e "$TEST_TMPDIR"/first/eps_client-*.whl "$TEST_TMPDIR/site"
export PYTHONPATH=$TEST_TMPDIR/site
exec "$python" tests/jobs/client_test.py "$@"
