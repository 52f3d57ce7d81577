#!/bin/bash
# Unpacks a CUDA compiler (nvcc, headers, the static runtime; 102 MB to download) into
# third_party/.cuda, for `bazel build --config=cuda`. Optional: nothing else needs it, and neither
# ./test nor ./quickstart calls this. Nothing is installed into Python or into the system, and no
# driver comes with it. The wheels are pinned by hash in tools/cuda_requirements.txt.
#
# A second call is instant: a stamp inside the folder names the pinned wheels. Interrupted calls
# leave either the old folder or the new one, never half of one, and keep the wheels that have
# arrived, so that running it again goes on from there.
#
# $CUDA_HOME, if set, is taken by the build instead of third_party/.cuda.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly requirements=tools/cuda_requirements.txt
readonly cuda=third_party/.cuda
readonly downloads=third_party/.cuda.download
readonly unpacked=third_party/.cuda.new
readonly replaced=third_party/.cuda.old
# Counts what is unpacked from the wheels; raise it when unpack() changes.
readonly layout=1

say() { echo "setup_cuda: $*"; }
fail() {
  echo "setup_cuda: $*" >&2
  exit 1
}

wanted_stamp() { echo "layout $layout" | cat - "$requirements" | sha256sum | cut -d' ' -f1; }

is_complete() {
  [[ -f $cuda/.complete && $(<"$cuda/.complete") == "$(wanted_stamp)" && -x $cuda/bin/nvcc ]]
}

find_python() {
  local candidate
  for candidate in /usr/bin/python3 python3; do
    if "$candidate" -m pip --version >/dev/null 2>&1; then
      echo "$candidate"
      return
    fi
  done
  fail "no python3 with pip; install python3-pip (tools/install_deps.sh does)"
}

# Prints the path of the wheel with sha256 $1 whose file name begins with $2, if it is there.
find_wheel() {
  local file
  for file in "$downloads"/"$2"-*.whl; do
    if [[ -f $file ]] && echo "$1  $file" | sha256sum --check --status; then
      echo "$file"
      return
    fi
  done
}

# Makes sure that the wheel of one line of the requirements is among the downloads.
fetch_wheel() {
  local python=$1 requirement=$2
  local pin=${requirement%% *} sha256=${requirement##*sha256:}
  local prefix=${pin%%==*}
  prefix=${prefix//-/_}
  [[ -z $(find_wheel "$sha256" "$prefix") ]] || return 0
  say "downloading $pin"
  rm -rf "$downloads/tmp" "$downloads/$prefix"-*.whl
  mkdir "$downloads/tmp"
  echo "$requirement" >"$downloads/requirement.txt"
  TMPDIR=$PWD/$downloads/tmp "$python" -m pip download --quiet --disable-pip-version-check \
    --no-cache-dir --no-deps --require-hashes --only-binary=:all: --python-version 3.11 \
    --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 \
    --platform manylinux2010_x86_64 \
    --requirement "$downloads/requirement.txt" --dest "$downloads" ||
    fail "pip could not download $pin; run this again to go on, or set CUDA_HOME"
  [[ -n $(find_wheel "$sha256" "$prefix") ]] || fail "pip left no wheel of $pin in $downloads"
}

unpack() {
  rm -rf "$unpacked" "$unpacked.wheels"
  mkdir "$unpacked.wheels"
  local wheel
  for wheel in "$downloads"/nvidia_*.whl; do
    unzip -q -o "$wheel" 'nvidia/cu13/*' -d "$unpacked.wheels"
  done
  chmod -R u+w,a+rX "$unpacked.wheels"
  # Wheels carry no permission to execute.
  chmod a+x "$unpacked.wheels"/nvidia/cu13/bin/* "$unpacked.wheels"/nvidia/cu13/nvvm/bin/*
  mv "$unpacked.wheels/nvidia/cu13" "$unpacked"
  rm -rf "$unpacked.wheels"
  wanted_stamp >"$unpacked/.complete"
}

main() {
  if is_complete; then
    say "the CUDA compiler is there ($cuda)"
    return
  fi
  [[ $(uname -m) == x86_64 ]] || fail "the pinned wheels are for x86_64; set CUDA_HOME instead"
  # Two calls at once would unpack over each other: the second waits and then finds it done.
  exec 9>third_party/.cuda.lock
  flock --wait 1800 9 || fail "another call has held third_party/.cuda.lock for 30 minutes"
  if is_complete; then return; fi
  command -v unzip >/dev/null || fail "unzip is missing (tools/install_deps.sh installs it)"
  local python requirement
  python=$(find_python)
  mkdir -p "$downloads"
  while IFS= read -r requirement; do
    fetch_wheel "$python" "$requirement"
  done < <(grep -v '^#' "$requirements")
  say "unpacking into $cuda"
  unpack
  rm -rf "$replaced"
  if [[ -e $cuda || -L $cuda ]]; then mv "$cuda" "$replaced"; fi
  mv "$unpacked" "$cuda"
  rm -rf "$replaced" "$downloads"
  say "the CUDA compiler is there ($cuda)"
}

main
