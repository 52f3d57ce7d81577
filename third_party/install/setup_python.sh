#!/bin/bash
# Makes the Python environment of //tests/python_client, third_party/.venv: grpcio and its code
# generator. third_party/install/pinned_folder.sh describes the folder. The test downloads nothing
# when it runs.
set -euo pipefail
cd "$(dirname "$0")/../.."

what="the Python client's environment"
folder=third_party/.venv
requirements=third_party/install/python_requirements.txt
layout=2
witness=bin/python
also=
instead=
source third_party/install/pinned_folder.sh

build() {
  make_venv "grpcio-tools (14 MB to download)"
  "$folder.new/bin/python" -c 'import grpc, grpc_tools.protoc' || fail "grpcio cannot be imported"
}

make_folder
