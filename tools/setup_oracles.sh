#!/bin/bash
# Makes the Python environment that the oracles run in (./test --oracles): PyTorch for the CPU,
# transformers, torchao and ml_dtypes, pinned by hash in tools/oracles_requirements.txt, in
# third_party/.oracles. Nothing else of the machine's Python is touched, and nothing is fetched when
# the oracles run.
#
# A second call is instant: a stamp inside the folder names what it was made from. Interrupted calls
# leave either the old folder or the new one.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly requirements=tools/oracles_requirements.txt
readonly oracles=third_party/.oracles
readonly unpacked=third_party/.oracles.new
readonly replaced=third_party/.oracles.old

say() { echo "setup_oracles: $*"; }
fail() {
  echo "setup_oracles: $*" >&2
  exit 1
}

wanted_stamp() { cat "$0" tools/torch_stub_libs.py "$requirements" | sha256sum | cut -d' ' -f1; }

is_complete() {
  [[ -f $oracles/.complete && $(<"$oracles/.complete") == "$(wanted_stamp)" ]] &&
    [[ -x $oracles/bin/python ]]
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
  local verbosity=(--quiet)
  [[ ! -t 1 ]] || verbosity=()
  say "installing PyTorch and transformers (550 MB to download)"
  # Everything stands in the requirements. Without --no-deps pip would add 2 GB of CUDA libraries.
  "$python" -m pip --python "$unpacked/bin/python" install ${verbosity[@]+"${verbosity[@]}"} \
    --disable-pip-version-check --no-deps --require-hashes --only-binary=:all: \
    --requirement "$requirements" || fail "pip could not install; run this again"
  say "making stand-ins for CUDA's libraries"
  local torch_lib=$unpacked/lib/python3.11/site-packages/torch/lib
  "$python" tools/torch_stub_libs.py "$torch_lib" "$unpacked/stub_libs"
  LD_LIBRARY_PATH=$unpacked/stub_libs "$unpacked/bin/python" -c \
    'import torch, transformers; transformers.GPT2LMHeadModel; torch.eye(2) @ torch.eye(2)' ||
    fail "PyTorch or transformers cannot be imported"
  LD_LIBRARY_PATH=$unpacked/stub_libs "$unpacked/bin/python" -c \
    'import ml_dtypes, torchao.prototype.mx_formats.mx_tensor' ||
    fail "ml_dtypes or torchao cannot be imported"
  wanted_stamp >"$unpacked/.complete"
}

main() {
  if is_complete; then
    say "the oracles' Python is there ($oracles)"
    return
  fi
  [[ $(uname -m) == x86_64 ]] || fail "the pinned wheels are for x86_64"
  # Two calls at once would install over each other: the second waits and then finds it done.
  exec 9>third_party/.oracles.lock
  flock --wait 1800 9 || fail "another call has held third_party/.oracles.lock for 30 minutes"
  if is_complete; then return; fi
  command -v gcc nm objdump >/dev/null || fail "gcc or binutils are missing"
  local python
  python=$(find_python)
  install "$python"
  rm -rf "$replaced"
  if [[ -e $oracles || -L $oracles ]]; then mv "$oracles" "$replaced"; fi
  mv "$unpacked" "$oracles"
  rm -rf "$replaced"
  say "the oracles' Python is there ($oracles)"
}

main
