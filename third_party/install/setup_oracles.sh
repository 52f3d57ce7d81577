#!/bin/bash
# Makes the Python environment of the oracles (./test --oracles) and of the tools in python/,
# third_party/.oracles: PyTorch for the CPU, transformers, torchao, ml_dtypes, pyarrow and pillow.
# third_party/install/pinned_folder.sh describes the folder. Programs that run in it download
# nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."

what="the oracles' Python"
folder=third_party/.oracles
requirements=third_party/install/oracles_requirements.txt
layout=2
witness=bin/python
for_models=third_party/install/models_requirements.txt
also="third_party/install/torch_stub_libs.py $for_models"
instead=
source third_party/install/pinned_folder.sh

build() {
  command -v gcc nm objdump >/dev/null || fail "gcc or binutils are missing"
  # The requirements list every package: pip would add 2 GB of CUDA libraries as dependencies.
  make_venv "PyTorch, transformers and pyarrow (610 MB to download)" "$for_models"
  say "making stand-ins for CUDA's libraries"
  local python=$folder.new/bin/python
  "$python" third_party/install/torch_stub_libs.py \
    "$folder.new/lib/python3.11/site-packages/torch/lib" "$folder.new/stub_libs"
  export LD_LIBRARY_PATH=$folder.new/stub_libs
  "$python" -c 'import torch, transformers
transformers.GPT2LMHeadModel
torch.eye(2) @ torch.eye(2)' || fail "PyTorch or transformers cannot be imported"
  "$python" -c 'import ml_dtypes, torchao.prototype.mx_formats.mx_tensor' ||
    fail "ml_dtypes or torchao cannot be imported"
  "$python" -c 'import PIL.Image, pyarrow.parquet' || fail "pyarrow or pillow cannot be imported"
  unset LD_LIBRARY_PATH
}

make_folder
