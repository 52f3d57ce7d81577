#!/bin/bash
# Unpacks a CUDA compiler (nvcc, headers, the static runtime; 102 MB to download) into
# third_party/.cuda, for `bazel build --config=cuda`. third_party/install/pinned_folder.sh describes
# the folder. Optional: nothing else needs it, neither ./test nor ./quickstart calls this script,
# and it contains no driver.
#
# If $CUDA_HOME is set, the build uses it instead of third_party/.cuda.
set -euo pipefail
cd "$(dirname "$0")/../.."

what="the CUDA compiler"
folder=third_party/.cuda
requirements=third_party/install/cuda_requirements.txt
layout=2
witness=bin/nvcc
also=
instead=CUDA_HOME
source third_party/install/pinned_folder.sh

build() {
  download_wheels
  say "unpacking into $folder"
  local wheels=$folder.download/unpacked wheel
  rm -rf "$wheels"
  mkdir "$wheels"
  for wheel in "$folder.download"/nvidia_*.whl; do
    unzip -q -o "$wheel" 'nvidia/cu13/*' -d "$wheels"
  done
  chmod -R u+w,a+rX "$wheels"
  # Wheels store no execute permission.
  chmod a+x "$wheels"/nvidia/cu13/bin/* "$wheels"/nvidia/cu13/nvvm/bin/*
  mv "$wheels/nvidia/cu13" "$folder.new"
}

make_folder
