#!/bin/bash
# Makes the packages of EPS on this machine, a Debian on x86_64.
#
#   deploy/packages/build_packages.sh [--binaries=FOLDER] OUT
#
#   eps-server_VERSION_amd64.deb        servers, driver and tools, with units of systemd
#   eps-VERSION-linux-amd64.tar.zst     the same programs in a folder that may lie anywhere
#   eps_train-VERSION-py3-….whl         all that a training host needs beside PyTorch
#   eps_client-VERSION-py3-none-any.whl the client for Python (python/eps/build_wheel.sh)
#
# Without --binaries it builds the programs with Bazel (./quickstart or ./test installs what that
# needs); FOLDER holds `eps`, `eps-csd` and `eps-worker` that are built already. The packages hold
# the shared libraries of this machine, but not its C and C++ libraries: those of the machine that
# installs them must be as new. Equal programs make equal packages. Needs patchelf, zstd and
# third_party/.venv (third_party/install/setup_python.sh).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
binaries=
out=

# Packages whose libraries each machine has.
readonly system_packages=' libc6 libgcc-s1 libstdc++6 '
# Libraries that the wheels of third_party/install/torch_requirements.txt bring.
readonly torch_libraries=(libtorch_cpu.so libc10.so libgomp.so.1 libcudart.so.13 libcupti.so.13)

fail() {
  echo "build_packages: $*" >&2
  exit "${code:-64}"
}

for argument in "$@"; do
  case $argument in
    --binaries=?*) binaries=$(cd "${argument#*=}" && pwd) ;;
    -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0" && exit 0 ;;
    -*) fail "unknown argument $argument; try --help" ;;
    *) [[ -z $out ]] || fail "two folders for the packages: $out and $argument"
      out=$argument ;;
  esac
done
[[ -n $out ]] || fail "name the folder for the packages; try --help"
for tool in patchelf zstd dpkg-deb cc; do
  code=66
  command -v "$tool" >/dev/null || fail "$tool is missing: apt-get install patchelf zstd dpkg gcc"
done
mkdir -p "$out"
out=$(cd "$out" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

if [[ -z $binaries ]]; then
  export USER=${USER:-$(id -un)} HOME=${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}
  (cd "$root" && bazel build //cli:eps //worker:eps-worker)
  binaries=$scratch/binaries
  mkdir "$binaries"
  cp "$root"/bazel-bin/{cli/eps,storage/csd/process/eps-csd,worker/eps-worker} "$binaries"
fi
version=$("$binaries/eps" --version | cut -d' ' -f2)
torch=$(sed -n 's/^\(torch==[^ ]*\) .*/\1/p' "$root/third_party/install/torch_requirements.txt")
glibc=$(getconf GNU_LIBC_VERSION | cut -d' ' -f2)
gcc=$(dpkg-query --show --showformat='${Version}' libstdc++6 | cut -d. -f1)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -c safe.directory="*" -C "$root" log -1 --format=%ct)}
export SOURCE_DATE_EPOCH PYTHONDONTWRITEBYTECODE=1

# fill FILE...: writes the versions into files that name them.
fill() {
  sed -i "s/@VERSION@/$version/g; s/@TORCH@/$torch/g; s/@GLIBC@/$glibc/g; s/@GCC@/$gcc/g
    s/@PLATFORM@/manylinux_${glibc/./_}_x86_64/g" "$@"
}

# owners_of FOLDER: "PACKAGE LIBRARY" of each library in the folder. A package knows its libraries
# below one of two names of the same folder.
owners_of() {
  local names
  mapfile -t names < <(ls "$1")
  { dpkg-query --search "${names[@]/#//lib/x86_64-linux-gnu/}" \
    "${names[@]/#//usr/lib/x86_64-linux-gnu/}" 2>/dev/null || true; } |
    sed -nE 's|^([^:, ]+)(:amd64)?: .*/([^/]+)$|\1 \3|p' | sort -u
}

# bundle FOLDER PATHS PROGRAM...: writes FOLDER/bin, FOLDER/lib with the libraries that a machine
# may lack, and FOLDER/licenses. Programs look for libraries at PATHS.
bundle() {
  local folder=$1 paths=$2 rootfs=$1.rootfs owners package library
  shift 2
  "$root/deploy/docker/rootfs.sh" "$rootfs" "${@/#/$binaries/}"
  mkdir -p "$folder/licenses"
  mv "$rootfs/usr/bin" "$folder/bin"
  mv "$rootfs/usr/lib" "$folder/lib"
  rm -rf "$rootfs"
  (cd "$folder/lib" && rm -f "${torch_libraries[@]}")
  owners=$(owners_of "$folder/lib")
  [[ $(wc -l <<<"$owners") == $(ls "$folder/lib" | wc -l) ]] ||
    fail "each library of $* must belong to one package of this machine (dpkg-query --search)"
  : >"$folder/licenses/VERSIONS"
  while read -r package library; do
    if [[ $system_packages == *" $package "* ]]; then
      rm "$folder/lib/$library"
    elif [[ ! -e $folder/licenses/$package ]]; then
      cp -L "/usr/share/doc/$package/copyright" "$folder/licenses/$package"
      dpkg-query --show --showformat='${Package} ${Version}\n' "$package" \
        >>"$folder/licenses/VERSIONS"
    fi
  done <<<"$owners"
  # Paths of this kind precede LD_LIBRARY_PATH and hold for the libraries of libraries, too.
  patchelf --force-rpath --set-rpath "$paths" "${@/#/$folder/bin/}"
  cp "$root/LICENSE" "$folder/LICENSE"
}

build_server() {
  local name=eps-$version-linux-amd64 deb=$scratch/deb
  bundle "$scratch/$name" "\$ORIGIN/../lib" eps eps-csd
  cp "$here/README.md" "$scratch/$name"
  chmod -R u=rwX,go=rX "$scratch/$name"
  tar --directory="$scratch" --create --sort=name --owner=0 --group=0 --numeric-owner \
    --mtime="@$SOURCE_DATE_EPOCH" "$name" | zstd -q -f -12 -o "$out/$name.tar.zst"

  cp -r "$here/root" "$deb"
  install -d "$deb"/usr/{bin,lib/eps,share/doc/eps-server}
  mv "$scratch/$name"/{bin,lib} "$deb/usr/lib/eps"
  mv "$scratch/$name/LICENSE" "$deb/usr/share/doc/eps-server/copyright"
  mv "$scratch/$name"/{licenses,README.md} "$deb/usr/share/doc/eps-server"
  ln -s ../lib/eps/bin/eps "$deb/usr/bin/eps"
  cp -r "$here/debian" "$deb/DEBIAN"
  fill "$deb/DEBIAN/control"
  chmod -R u=rwX,go=rX "$deb"
  dpkg-deb --root-owner-group -Zzstd --build "$deb" \
    "$out/eps-server_${version}_amd64.deb" >/dev/null
}

build_train() {
  local wheel=$scratch/wheel
  cp -r "$here/wheel" "$wheel"
  # PyTorch is beside the package in the folder of an environment.
  bundle "$wheel/eps_train" "\$ORIGIN/../lib:\$ORIGIN/../../torch/lib" eps eps-csd eps-worker
  (cd "$root" && git ls-files python/eps_models python/eps_metrics |
    grep -vE '/testing/|/BUILD$|_test\.py$' | xargs cp --parents -t "$wheel/eps_train")
  fill "$wheel/pyproject.toml" "$wheel/setup.cfg" "$wheel/eps_train/__init__.py"
  chmod -R u=rwX,go=rX "$wheel"
  (cd "$wheel" && "$root/third_party/.venv/bin/python" -c \
    'import sys, setuptools.build_meta as meta; meta.build_wheel(sys.argv[1])' "$out" \
    >"$scratch/log" 2>&1) || { cat "$scratch/log" >&2 && exit 70; }
}

build_server
"$root/python/eps/build_wheel.sh" "$out" >/dev/null
build_train
du --apparent-size -BK "$out"/*"$version"*
