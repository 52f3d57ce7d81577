#!/bin/bash
# Runs a Python script of the tree in the environment of third_party/install/setup_oracles.sh: $1 is
# its path from the root, the rest its arguments. Bazel passes this script as a symlink, whose
# target is in the tree itself.
set -euo pipefail
root=$(cd "$(dirname "$(readlink --canonicalize "$0")")/../.." && pwd)
readonly environment=$root/third_party/.oracles
if [[ ! -f $environment/.complete ]]; then
  echo "the oracles' Python is missing; third_party/install/setup_oracles.sh installs it" >&2
  exit 1
fi
export PYTHONDONTWRITEBYTECODE=1 OMP_WAIT_POLICY=passive
script=$root/$1
shift
exec env LD_LIBRARY_PATH="$environment/stub_libs" "$environment/bin/python" "$script" "$@"
