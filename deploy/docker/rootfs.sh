#!/bin/bash
# Makes the file system of an image without a distribution: programs, the shared libraries that they
# load, the loader, and the few files of /etc that the C library reads.
#
#   deploy/docker/rootfs.sh ROOT PROGRAM...
#
# ROOT must not exist. Programs go to ROOT/usr/bin, libraries to ROOT/usr/lib, where the loader
# looks for them after the paths that are written in a program. There is no shell.
set -euo pipefail

# libarchive needs libxml2, which needs this table of ICU, only for archives of a kind that EPS does
# not read. An empty table takes the place of 31 MB.
readonly icu_data='libicudata.so.*'

fail() {
  echo "rootfs: $*" >&2
  exit 1
}

# Prints "NAME PATH" of each shared library that the programs load. The loader has no "=>".
libraries_of() {
  local program listed
  for program in "$@"; do
    listed=$(ldd "$program") || fail "$program is not a dynamic program"
    [[ $listed != *"not found"* ]] ||
      fail "$program lacks libraries: $(grep 'not found' <<<"$listed" | paste -sd' ')"
    awk '$2 == "=>" && $3 ~ "^/" { print $1, $3 }' <<<"$listed"
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

(($# >= 2)) || fail "usage: rootfs.sh ROOT PROGRAM..."
root=$1
shift
[[ ! -e $root ]] || fail "$root exists"
install -d -m 755 "$root" "$root"/{etc,usr/bin,usr/lib}
install -d -m 1777 "$root/tmp"

for program in "$@"; do
  strip --strip-unneeded -o "$root/usr/bin/${program##*/}" "$program"
  chmod 755 "$root/usr/bin/${program##*/}"
done
while read -r name path; do
  # shellcheck disable=SC2053 # a pattern
  if [[ $name == $icu_data ]]; then
    write_icu_stub "$name" "$root/usr/lib/$name"
  else
    install -m 644 "$path" "$root/usr/lib/$name"
  fi
done < <(libraries_of "$@")
while read -r loader; do
  install -D -m 755 "$loader" "$root$loader"
done < <(loaders_of "$@")

echo 'eps:x:65532:65532:EPS:/var/lib/eps:/nonexistent' >"$root/etc/passwd"
echo 'eps:x:65532:' >"$root/etc/group"
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
chmod 644 "$root"/etc/*
