#!/bin/bash
# Builds the images eps-server and eps-worker on this machine.
#
#   deploy/build_images.sh [--tag=TAG] [--binaries=FOLDER]
#
# Without --binaries it builds the programs with Bazel (./quickstart or ./test installs what that
# needs); FOLDER holds `eps` and `eps-worker` that are built already. The images hold the shared
# libraries of this machine, which must be the one that built the programs, or like it. IMAGE_TOOL
# is docker, podman or buildah (default: the first one that works). TAG is "latest" by default.
set -euo pipefail
deploy=$(cd "$(dirname "$0")" && pwd)
tag=latest
binaries=

fail() {
  echo "build_images: $*" >&2
  exit 64
}

for argument in "$@"; do
  case $argument in
    --tag=?*) tag=${argument#*=} ;;
    --binaries=?*) binaries=$(cd "${argument#*=}" && pwd) ;;
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
if [[ -z $binaries ]]; then
  export USER=${USER:-$(id -un)} HOME=${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}
  (cd "$deploy/.." && bazel build //cli:eps //worker:eps-worker)
  binaries=$scratch/binaries
  mkdir "$binaries"
  cp "$deploy"/../bazel-bin/{cli/eps,worker/eps-worker} "$binaries"
fi
for program in eps eps-worker; do
  [[ -x $binaries/$program ]] || fail "$binaries holds no program $program"
done
version=$("$binaries/eps" --version | cut -d' ' -f2)
revision=$(git -c safe.directory="*" -C "$deploy" rev-parse HEAD 2>/dev/null || echo unknown)

# build NAME PROGRAM...: one image.
build() {
  local name=$1 context=$scratch/$1
  shift
  mkdir -p "$context/empty"
  "$deploy/docker/rootfs.sh" "$context/rootfs" "${@/#/$binaries/}"
  "$tool" build --file "$deploy/docker/$name.Dockerfile" --tag "eps-$name:$tag" \
    --build-arg VERSION="$version" --build-arg REVISION="$revision" "$context"
  echo "build_images: eps-$name:$tag, $(du -sm "$context/rootfs" | cut -f1) MiB of files"
}
build server eps
build worker eps-worker
