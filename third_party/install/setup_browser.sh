#!/bin/bash
# Installs what tests/watch/page_test.py needs: Debian's Chromium, and third_party/.browser, a
# Python environment that drives it. third_party/install/pinned_folder.sh describes the folder.
set -euo pipefail
cd "$(dirname "$0")/../.."

what="the browser's Python"
folder=third_party/.browser
requirements=third_party/install/browser_requirements.txt
layout=1
witness=bin/python
also=
instead=
source third_party/install/pinned_folder.sh

build() {
  make_venv "playwright (54 MB to download)"
  "$folder.new/bin/python" -c 'import playwright.sync_api' || fail "playwright cannot be imported"
}

if [[ ! -x /usr/bin/chromium ]]; then
  ((EUID == 0)) || fail "not root; run as root: apt-get install chromium"
  say "installing chromium (100 MB to download)"
  export DEBIAN_FRONTEND=noninteractive
  apt-get -qq update </dev/null || fail "apt-get update failed"
  apt-get -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 install chromium </dev/null \
    >/dev/null || fail "apt-get install chromium failed"
fi
make_folder
