#!/bin/bash
# Makes the Python environment of the tools in python/. It is that of the oracles,
# third_party/.oracles: both need PyTorch for the CPU, transformers and safetensors.
set -euo pipefail
exec "$(dirname "$0")/setup_oracles.sh"
