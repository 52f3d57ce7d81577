#!/bin/bash
# Makes the file system of an image without a distribution: programs, the shared libraries that they
# load, the loader, and the few files of /etc that the C library reads.
#
#   deploy/docker/rootfs.sh ROOT PROGRAM... [-- LIBRARY...]
#
# ROOT must not exist. Programs go to ROOT/usr/bin, libraries to ROOT/usr/lib, where the loader
# looks for them after the paths that are written in a program. There is no shell. LIBRARY is one
# that a program loads while it runs.
set -euo pipefail

# libarchive needs libxml2, which needs this table of ICU, only for archives of a kind that EPS does
# not read. An empty table takes the place of 31 MB.
readonly icu_data='libicudata.so.*'
# NVIDIA's driver is part of the machine that runs the container.
readonly driver=libcuda.so.1

fail() {
  echo "rootfs: $*" >&2
  exit 1
}

# Prints "NAME PATH" of each shared library that programs or libraries load, but for those that are
# in the root. The loader has no "=>".
libraries_of() {
  local file listed missing
  for file in "$@"; do
    listed=$(LD_LIBRARY_PATH=$root/usr/lib ldd "$file") || fail "$file is not a dynamic program"
    missing=$(awk -v driver="$driver" '/not found/ && $1 != driver { print $1 }' <<<"$listed")
    [[ -z $missing ]] || fail "$file lacks libraries: $(paste -sd' ' <<<"$missing")"
    awk -v root="$root/" '$2 == "=>" && $3 ~ "^/" && index($3, root) != 1 { print $1, $3 }' \
      <<<"$listed"
  done | sort -u
}

loaders_of() {
  local program
  for program in "$@"; do
    ldd "$program" | awk '$1 ~ "^/" && $2 != "=>" { print $1 }'
  done | sort -u
}

write_icu_stub() {
  local version=${1##*.}
  echo "const long long icudt${version}_dat[4] = {0};" |
    cc -shared -fPIC -nostdlib -Wl,-soname,"libicudata.so.$version" -xc -o "$2" -
}

# install_libraries_of FILE...: what these files load, in the root.
install_libraries_of() {
  local found name path
  found=$(libraries_of "$@")
  while read -r name path; do
    # shellcheck disable=SC2053 # a pattern
    if [[ $name == $icu_data ]]; then
      write_icu_stub "$name" "$root/usr/lib/$name"
    elif [[ -n $name ]]; then
      install -m 644 "$path" "$root/usr/lib/$name"
    fi
  done <<<"$found"
}

(($# >= 2)) || fail "usage: rootfs.sh ROOT PROGRAM... [-- LIBRARY...]"
root=$(realpath -m "$1")
shift
programs=()
while (($# > 0)) && [[ $1 != -- ]]; do
  programs+=("$1")
  shift
done
shift $(($# > 0))
[[ ! -e $root ]] || fail "$root exists"
install -d -m 755 "$root" "$root"/{etc,usr/bin,usr/lib}
install -d -m 1777 "$root/tmp"

install_libraries_of "${programs[@]}"
for program in "${programs[@]}"; do
  strip --strip-unneeded -o "$root/usr/bin/${program##*/}" "$program"
  chmod 755 "$root/usr/bin/${program##*/}"
done
loaders=$(loaders_of "${programs[@]}")
for loader in $loaders; do install -D -m 755 "$loader" "$root$loader"; done

if (($# > 0)); then
  install -m 644 "$@" "$root/usr/lib"
  # The copies: a library may look for others beside itself first.
  install_libraries_of "${@/#*\//$root/usr/lib/}"
fi

echo 'eps:x:65532:65532:EPS:/var/lib/eps:/nonexistent' >"$root/etc/passwd"
echo 'eps:x:65532:' >"$root/etc/group"
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
chmod 644 "$root"/etc/*
