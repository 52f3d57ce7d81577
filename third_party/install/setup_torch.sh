#!/bin/bash
# Unpacks LibTorch (headers and libraries of the CPU part of PyPI's CUDA 13 wheel) into
# third_party/.libtorch. third_party/install/pinned_folder.sh describes the folder.
#
# TORCH_WHEEL=FILE reads the torch wheel from FILE instead of the network; its hash is checked too.
set -euo pipefail
cd "$(dirname "$0")/../.."

what=LibTorch
folder=third_party/.libtorch
requirements=third_party/install/torch_requirements.txt
layout=2
witness=torch/lib/libtorch_cpu.so
also=
instead=LIBTORCH_HOME
source third_party/install/pinned_folder.sh

take_torch_wheel() {
  local requirement
  requirement=$(grep '^torch==' "$requirements")
  has_hash "$TORCH_WHEEL" "${requirement##*sha256:}" ||
    fail "TORCH_WHEEL=$TORCH_WHEEL is not the wheel that $requirements pins: $requirement"
  mkdir -p "$folder.download"
  cp "$TORCH_WHEEL" "$folder.download/"
}

build() {
  [[ -z ${TORCH_WHEEL:-} ]] || take_torch_wheel
  download_wheels
  say "unpacking into $folder"
  mkdir "$folder.new"
  unzip -q "$folder.download"/torch-*.whl 'torch/include/*' 'torch/lib/libtorch_cpu.so' \
    'torch/lib/libc10.so' 'torch/lib/libgomp.so.1' 'torch/version.py' -d "$folder.new"
  local wheel
  for wheel in "$folder.download"/nvidia_*.whl; do
    unzip -q -o "$wheel" 'nvidia/cu13/lib/lib*.so*' 'nvidia/cu13/include/*' -d "$folder.new"
  done
}

make_folder
