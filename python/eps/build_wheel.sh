#!/bin/bash
# Builds the wheel eps-client into a folder, from this folder and the .proto files.
#
#   python/eps/build_wheel.sh OUT
#
# Downloads nothing: it uses third_party/.venv (third_party/install/setup_python.sh). The wheel runs
# on any machine with Python 3.10 or newer.
set -euo pipefail
(($# == 1)) || { sed -n '2,/^set /s/^# \{0,1\}//p' "$0" && exit 64; }
out=$(mkdir -p "$1" && cd "$1" && pwd)
root=$(dirname "$(dirname "$(dirname "$(readlink --canonicalize "$0")")")")
python=$root/third_party/.venv/bin/python
if [[ ! -x $python ]]; then
  echo "build_wheel: third_party/.venv is missing: run third_party/install/setup_python.sh" >&2
  exit 66
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/eps/v1"
cp "$root"/python/eps/*.py "$root/python/eps/py.typed" "$work/eps"
cp "$root/python/eps/pyproject.toml" "$work"
touch "$work/eps/v1/__init__.py"
(cd "$root" && "$python" -m grpc_tools.protoc -Iproto --python_out="$work" --pyi_out="$work" \
  --grpc_python_out="$work" proto/eps/v1/{access,scheduler}.proto)
# Equal sources make equal bytes.
export SOURCE_DATE_EPOCH=1704067200 PYTHONDONTWRITEBYTECODE=1
cd "$work"
"$python" -c 'import sys, setuptools.build_meta as meta; meta.build_wheel(sys.argv[1])' "$out" \
  >"$work/log" 2>&1 || { cat "$work/log" >&2 && exit 70; }
ls "$out"/eps_client-*.whl
