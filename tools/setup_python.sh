#!/bin/bash
# Makes the Python environment that //tests/python_client runs in: grpcio and its code generator,
# pinned by hash in tools/python_requirements.txt, in third_party/.venv. Nothing else of the
# machine's Python is touched, and nothing is fetched when the test runs.
#
# A second call is instant: a stamp inside the folder names what it was made from. Interrupted calls
# leave either the old folder or the new one.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly requirements=tools/python_requirements.txt
readonly venv=third_party/.venv
readonly unpacked=third_party/.venv.new
readonly replaced=third_party/.venv.old

say() { echo "setup_python: $*"; }
fail() {
  echo "setup_python: $*" >&2
  exit 1
}

wanted_stamp() { cat "$0" "$requirements" | sha256sum | cut -d' ' -f1; }

is_complete() {
  [[ -f $venv/.complete && $(<"$venv/.complete") == "$(wanted_stamp)" ]] &&
    [[ -x $venv/bin/python ]]
}

find_python() {
  local candidate
  for candidate in /usr/bin/python3 python3; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null &&
      "$candidate" -m pip --version >/dev/null 2>&1; then
      echo "$candidate"
      return
    fi
  done
  fail "no python3 of version 3.11 with pip, which the pinned wheels are for"
}

install() {
  local python=$1
  rm -rf "$unpacked"
  "$python" -m venv --without-pip "$unpacked" || fail "python3 -m venv failed"
  say "installing grpcio-tools (14 MB to download)"
  "$python" -m pip --python "$unpacked/bin/python" install --quiet \
    --disable-pip-version-check --no-deps --require-hashes --only-binary=:all: \
    --requirement "$requirements" || fail "pip could not install; run this again"
  "$unpacked/bin/python" -c 'import grpc, grpc_tools.protoc' || fail "grpcio cannot be imported"
  wanted_stamp >"$unpacked/.complete"
}

main() {
  if is_complete; then
    say "the Python client's environment is there ($venv)"
    return
  fi
  [[ $(uname -m) == x86_64 ]] || fail "the pinned wheels are for x86_64"
  # Two calls at once would install over each other: the second waits and then finds it done.
  exec 9>third_party/.venv.lock
  flock --wait 600 9 || fail "another call has held third_party/.venv.lock for 10 minutes"
  if is_complete; then return; fi
  local python
  python=$(find_python)
  install "$python"
  rm -rf "$replaced"
  if [[ -e $venv || -L $venv ]]; then mv "$venv" "$replaced"; fi
  mv "$unpacked" "$venv"
  rm -rf "$replaced"
  say "the Python client's environment is there ($venv)"
}

main
