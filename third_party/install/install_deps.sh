#!/bin/bash
# Installs what the build needs and this machine lacks: Debian 12 packages and LibTorch. Prints each
# step in one line, changes nothing else, and takes well under a second when nothing is missing.
# Packages need root; without root it names the missing ones and exits with 1.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly packages=(
  # The build.
  bazel-bootstrap bazel-platforms bazel-rules-java bazel-rules-proto bazel-skylib
  g++ pkg-config unzip python3 python3-pip git
  # Libraries.
  libgrpc++-dev libgrpc-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev
  libabsl-dev librocksdb-dev libgtest-dev libgmock-dev libhwy-dev liburing-dev libcli11-dev
  nlohmann-json3-dev libspdlog-dev libyaml-cpp-dev libre2-dev libxxhash-dev libbenchmark-dev
  prometheus-cpp-dev libmicrohttpd-dev libisal-dev libssl-dev libarchive-dev libseccomp-dev
  # OpenCL, which programs load when they need it; pocl is the runtime for the CPU.
  opencl-headers ocl-icd-libopencl1 pocl-opencl-icd
  # The tests of the source text.
  clang-format-14
)

say() { echo "install_deps: $*"; }
fail() {
  echo "install_deps: $*" >&2
  exit 1
}

# Prints the packages that are not installed.
missing_packages() {
  # dpkg-query exits with 1 for an unknown package, which is missing too.
  comm -23 <(printf '%s\n' "${packages[@]}" | sort) \
    <(dpkg-query --show --showformat '${db:Status-Status} ${Package}\n' "${packages[@]}" \
      2>/dev/null | sed -n 's/^installed //p' | sort -u)
}

install_packages() {
  local missing
  mapfile -t missing < <(missing_packages)
  if ((${#missing[@]} == 0)); then
    say "all ${#packages[@]} Debian packages are installed"
    return
  fi
  say "missing: ${missing[*]}"
  ((EUID == 0)) || fail "not root; run as root: apt-get install ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  say "refreshing the package lists"
  apt-get -qq update </dev/null || fail "apt-get update failed"
  say "installing ${#missing[@]} packages and what they depend on"
  apt-get -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=600 \
    install "${missing[@]}" </dev/null >"$log" 2>&1 || {
    tail -n 30 "$log" >&2
    fail "apt-get install failed"
  }
  changed=true
}

install_libtorch() {
  if [[ -n ${LIBTORCH_HOME:-} ]]; then
    say "using LibTorch from LIBTORCH_HOME=$LIBTORCH_HOME"
    return
  fi
  local before after
  before=$(stat --format %i third_party/.libtorch 2>/dev/null || true)
  third_party/install/setup_torch.sh
  after=$(stat --format %i third_party/.libtorch)
  [[ $before == "$after" ]] || changed=true
}

command -v dpkg-query >/dev/null ||
  fail "this is not Debian; install the equivalents of: ${packages[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
changed=false
install_packages
install_libtorch
# Bazel looks for libraries once and caches the result; only an earlier build has one to discard.
if [[ $changed == true && -L bazel-out ]]; then
  say "making bazel look for the libraries again"
  bazel sync --configure </dev/null >"$log" 2>&1 || {
    tail -n 30 "$log" >&2
    fail "bazel sync --configure failed"
  }
fi
