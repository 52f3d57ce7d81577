#!/bin/bash
# Unpacks the CUDA half of LibTorch and the libraries of CUDA that it loads, from wheels of PyPI,
# into third_party/.libtorch_cuda (2.5 GB to download, 3.0 GB unpacked). Optional: only
# deploy/build_images.sh --cuda needs the folder, which third_party/install/pinned_folder.sh
# describes. It contains no driver.
#
# The torch wheel is that of torch_requirements.txt, because both halves must have one version. The
# other wheels are those that it requires.
set -euo pipefail
cd "$(dirname "$0")/../.."

what="the CUDA half of LibTorch"
folder=third_party/.libtorch_cuda
requirements=third_party/install/torch_cuda_requirements.txt
layout=1
witness=libtorch_cuda.so
also=third_party/install/torch_requirements.txt
instead=LIBTORCH_CUDA_HOME
source third_party/install/pinned_folder.sh

readonly torch=(libtorch_cuda.so libtorch_cuda_linalg.so libtorch_nvshmem.so libc10_cuda.so
  libcaffe2_nvrtc.so)
# For programs of other kinds; LibTorch does not load them.
readonly unused=(libnvrtc.alt.so.13 libnvrtc-builtins.alt.so.13.0 libcufftw.so.12
  libcusolverMg.so.12 libnvblas.so.13 libcufile_rdma.so.1)

build() {
  download_wheels
  download_wheel "$(find_python)" "$(grep '^torch==' "$also")"
  say "unpacking into $folder"
  mkdir "$folder.new"
  unzip -q -j "$folder.download"/torch-*.whl "${torch[@]/#/torch/lib/}" -d "$folder.new"
  local wheel
  for wheel in "$folder.download"/nvidia_*.whl; do
    unzip -q -j "$wheel" 'nvidia/*/lib/lib*.so*' -d "$folder.new"
  done
  rm "${unused[@]/#/$folder.new/}"
}

make_folder
