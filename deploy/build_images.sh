#!/bin/bash
# Builds the images eps-server and eps-worker on this machine.
#
#   deploy/build_images.sh [--tag=TAG] [--binaries=FOLDER] [--cuda]
#
# Without --binaries it builds the programs with Bazel (./quickstart or ./test installs what that
# needs); FOLDER holds `eps`, `eps-csd` and `eps-worker` that are built already. The images hold
# the shared libraries of this machine, which must be the one that built the programs, or like it.
# IMAGE_TOOL is docker, podman or buildah (default: the first one that works). TAG is "latest" by
# default.
#
# --cuda also builds eps-worker-cuda, for NVIDIA's GPUs. It needs the CUDA half of LibTorch, which
# third_party/install/setup_torch_cuda.sh fetches (LIBTORCH_CUDA_HOME names another folder), and
# libeps_cuda.so in FOLDER, or the compiler of third_party/install/setup_cuda.sh.
set -euo pipefail
deploy=$(cd "$(dirname "$0")" && pwd)
tag=latest
binaries=
cuda=

fail() {
  echo "build_images: $*" >&2
  exit 64
}

for argument in "$@"; do
  case $argument in
    --tag=?*) tag=${argument#*=} ;;
    --binaries=?*) binaries=$(cd "${argument#*=}" && pwd) ;;
    --cuda) cuda=${LIBTORCH_CUDA_HOME:-$deploy/../third_party/.libtorch_cuda} ;;
    -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0" && exit 0 ;;
    *) fail "unknown argument $argument; try --help" ;;
  esac
done

image_tool() {
  local tool
  for tool in docker podman buildah; do
    if "$tool" info >/dev/null 2>&1; then echo "$tool" && return; fi
  done
  fail "no image tool works here; install podman, buildah or docker"
}
tool=${IMAGE_TOOL:-$(image_tool)}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
needed=(eps eps-csd eps-worker)
targets=(//cli:eps //worker:eps-worker)
if [[ -n $cuda ]]; then
  [[ -e $cuda/libtorch_cuda.so ]] || fail "$cuda has no libtorch_cuda.so, the CUDA half of" \
    "LibTorch; run third_party/install/setup_torch_cuda.sh"
  needed+=(libeps_cuda.so)
  targets+=(//worker/exec/cuda:eps_cuda)
fi
if [[ -z $binaries ]]; then
  export USER=${USER:-$(id -un)} HOME=${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}
  (cd "$deploy/.." && bazel build "${targets[@]}")
  binaries=$scratch/binaries
  mkdir "$binaries"
  for file in cli/eps storage/csd/process/eps-csd worker/eps-worker \
    ${cuda:+worker/exec/cuda/libeps_cuda.so}; do
    cp "$deploy/../bazel-bin/$file" "$binaries"
  done
fi
for file in "${needed[@]}"; do
  [[ -x $binaries/$file ]] || fail "$binaries holds no program $file"
done
version=$("$binaries/eps" --version | cut -d' ' -f2)
revision=$(git -c safe.directory="*" -C "$deploy" rev-parse HEAD 2>/dev/null || echo unknown)

# build NAME FILE...: one image with these programs, and the libraries after "--".
build() {
  local name=$1 context=$scratch/$1
  shift
  mkdir -p "$context/empty"
  "$deploy/docker/rootfs.sh" "$context/rootfs" "$@"
  "$tool" build --file "$deploy/docker/$name.Dockerfile" --tag "eps-$name:$tag" \
    --build-arg VERSION="$version" --build-arg REVISION="$revision" "$context"
  echo "build_images: eps-$name:$tag, $(du -sm "$context/rootfs" | cut -f1) MiB of files"
  rm -rf "$context"
}
build server "$binaries"/{eps,eps-csd}
build worker "$binaries/eps-worker"
if [[ -n $cuda ]]; then
  build worker-cuda "$binaries"/{eps-worker,libeps_cuda.so} -- "$cuda"/*.so*
fi
