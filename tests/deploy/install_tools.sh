#!/bin/bash
# Installs the tools of the tests in this folder: podman and other packages of Debian 12, folders of
# bare machines with Debian and Ubuntu, wheels, Ray from wheels that are pinned by hash, and
# the rest from Go modules at pinned versions, whose sums the Go checksum database confirms. Needs
# root and python3-pip.
#
#   tests/deploy/install_tools.sh FOLDER [NAME...]
#
# NAME: podman, slurm, prometheus, etcd, packaging, roots, wheels, ray, docker-compose, helm,
# kubeconform, schemas, jobset-schemas, kube-apiserver, kubectl, cert-manager, check-dashboard;
# default all. FOLDER keeps what Debian does not have for the next run.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
readonly packages=(podman buildah runc netavark aardvark-dns iptables python3-yaml)
readonly slurm_packages=(slurmctld slurmd slurm-client munge)
readonly packaging_packages=(debootstrap curl patchelf zstd gcc python3-pip)
readonly etcd_packages=(etcd-server)
readonly ubuntu_script=/usr/share/debootstrap/scripts/gutsy
# The package with the keys that sign Ubuntu's archive, which Debian 12 does not have.
readonly ubuntu_keyring=ubuntu-keyring_2023.11.28.1_all.deb
readonly ubuntu_keyring_sha256=36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8
readonly compose=github.com/docker/compose/v5@v5.0.2
readonly helm=helm.sh/helm/v3/cmd/helm@v3.22.0
readonly kubeconform=github.com/yannh/kubeconform/cmd/kubeconform@v0.7.0
readonly kubernetes=1.36.3
readonly jobset=sigs.k8s.io/jobset@v0.12.0
readonly grafana=github.com/grafana/grafana-foundation-sdk/go@v0.0.22
readonly cert_manager=github.com/cert-manager/cert-manager@v1.18.2
export USER=${USER:-$(id -un)} HOME=${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}
# Tools that are built fast, not fast tools: without inlining and debugging information, and with a
# compiler that seldom collects garbage, the builds take half of the time. The tools share packages
# of the standard library that were built with the same flags.
export CGO_ENABLED=0 GOGC=1000
export GOFLAGS="-trimpath '-ldflags=-s -w' '-gcflags=all=-dwarf=false -l'"

say() { echo "install_tools: $*"; }
fail() {
  echo "install_tools: $*" >&2
  exit 1
}

# module_folder MODULE@VERSION: downloads a module and prints the folder of its sources.
module_folder() {
  (cd "$work" && go mod download -json "$1" |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["Dir"])')
}

# install_packages NAME...: installs packages of Debian, unless they are there.
install_packages() {
  if ! dpkg-query --show "$@" >/dev/null 2>&1; then
    say "installing $*"
    apt-get -qq update </dev/null
    DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install \
      "$@" </dev/null >"$work/apt.log" 2>&1 || {
      tail -n 30 "$work/apt.log" >&2
      fail "apt-get install failed"
    }
  fi
}

install_podman() { install_packages "${packages[@]}"; }
install_slurm() { install_packages "${slurm_packages[@]}"; }
install_prometheus() { install_packages prometheus; }
install_packaging() { install_packages "${packaging_packages[@]}"; }

# make_root RELEASE PACKAGES [FLAG...]: the folder of a machine with no more than it needs and the
# packages. Debian's debootstrap knows no release of Ubuntu after 2022 by name: all take one script.
make_root() {
  local release=$1 included=$2
  shift 2
  local script=/usr/share/debootstrap/scripts/$release
  [[ -e $script ]] || script=$ubuntu_script
  debootstrap --variant=minbase --include="$included" "$@" "$release" "$tools/roots.new/$release" \
    "" "$script" >"$work/debootstrap.log" 2>&1 || {
    tail -n 30 "$work/debootstrap.log" >&2
    fail "debootstrap of $release failed"
  }
}

# Three machines: a Debian 12 with systemd, and containers of Debian 13 and Ubuntu 24.04.
install_roots() {
  local ubuntu
  rm -rf "$tools/roots.new"
  mkdir "$tools/roots.new"
  make_root bookworm python3-venv,systemd-sysv
  make_root trixie python3-venv
  ubuntu=$(awk '$1 == "default_mirror" && $2 ~ /archive/ { print $2; exit }' "$ubuntu_script")
  curl --silent --show-error --fail --retry 3 --output "$work/keyring.deb" \
    "$ubuntu/pool/main/u/ubuntu-keyring/$ubuntu_keyring" || fail "no keys of Ubuntu"
  echo "$ubuntu_keyring_sha256  $work/keyring.deb" | sha256sum --check --quiet ||
    fail "$ubuntu_keyring is not the expected file"
  dpkg-deb --extract "$work/keyring.deb" "$work/keyring"
  make_root noble python3-venv --components=main,universe \
    --keyring="$work/keyring/usr/share/keyrings/ubuntu-archive-keyring.gpg"
  mv "$tools/roots.new" "$tools/roots"
}

# The wheels that these machines install, 1.6 GB.
install_wheels() {
  local python platform platforms=()
  for platform in _2_28 _2_25 2014 2010; do
    platforms+=(--platform "manylinux${platform}_x86_64")
  done
  rm -rf "$tools/wheels.new"
  for python in 3.11 3.12 3.13; do
    /usr/bin/python3 -m pip download --quiet --no-deps --require-hashes --only-binary=:all: \
      --python-version "$python" "${platforms[@]}" --dest "$tools/wheels.new" \
      --requirement "$here/packages_requirements.txt" || fail "pip could not download the wheels"
  done
  mv "$tools/wheels.new" "$tools/wheels"
}

# A Python with Ray, 100 MB to download.
install_ray() {
  rm -rf "$tools/ray.new"
  /usr/bin/python3 -m venv --without-pip "$tools/ray.new"
  PIP_PYTHON=$tools/ray.new/bin/python /usr/bin/python3 -m pip install --quiet --no-deps \
    --disable-pip-version-check --require-hashes --only-binary=:all: \
    --requirement "$here/ray_requirements.txt" ||
    fail "pip could not install Ray; run this again (apt-get install python3-pip, if it is missing)"
  mv "$tools/ray.new" "$tools/ray"
}
install_etcd() { install_packages "${etcd_packages[@]}"; }

# The module of compose replaces nothing, but its program has no path that "go install" takes.
install_docker-compose() {
  cp -r "$(module_folder "$compose")" "$work/compose"
  chmod -R u+w "$work/compose"
  (cd "$work/compose" && go build -o "$tools/docker-compose.new" \
    -ldflags "-s -w -X github.com/docker/compose/v5/internal.Version=${compose#*@}" ./cmd)
  mv "$tools/docker-compose.new" "$tools/docker-compose"
}

install_helm() { GOBIN=$tools go install "$helm"; }
install_kubeconform() { GOBIN=$tools go install "$kubeconform"; }

# The schemas of all objects of the API, which refuse fields that they do not name.
install_schemas() {
  rm -rf "$tools/schemas.new"
  python3 "$here/api_schemas.py" \
    "$(module_folder "k8s.io/kubernetes@v$kubernetes")/api/openapi-spec/swagger.json" \
    "$tools/schemas.new"
  mv "$tools/schemas.new" "$tools/schemas"
}

# The schema of a JobSet, with those of its Jobs and pods.
install_jobset-schemas() {
  rm -rf "$tools/jobset-schemas.new"
  /usr/bin/python3 "$here/api_schemas.py" \
    "$(module_folder "$jobset")/config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml" \
    "$tools/jobset-schemas.new"
  mv "$tools/jobset-schemas.new" "$tools/jobset-schemas"
}

install_kube-apiserver() { build_kubernetes kube-apiserver; }
install_kubectl() { build_kubernetes kubectl; }

# build_kubernetes NAME: builds a program of Kubernetes. Its module takes the modules of its staging
# folder, which are published as v0.N.N, and only a module that requires it can replace them.
build_kubernetes() {
  local sources
  sources=$(module_folder "k8s.io/kubernetes@v$kubernetes")
  mkdir -p "$work/kubernetes"
  cat >"$work/kubernetes/go.mod" <<END
module build
$(grep '^go ' "$sources/go.mod")
require k8s.io/kubernetes v$kubernetes
$(sed -n "s|^[[:space:]]*\(k8s.io/[^ ]*\) => ./staging/.*|replace \1 => \1 v0.${kubernetes#1.}|p" \
    "$sources/go.mod")
END
  (cd "$work/kubernetes" && go build -mod=mod -o "$tools/$1.new" \
    -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=v$kubernetes" \
    "k8s.io/kubernetes/cmd/$1")
  mv "$tools/$1.new" "$tools/$1"
}

# The definitions of cert-manager's objects.
install_cert-manager() {
  cp -r "$(module_folder "$cert_manager")/deploy/crds" "$tools/cert-manager.new"
  mv "$tools/cert-manager.new" "$tools/cert-manager"
}

# The program of check_dashboard.go.
install_check-dashboard() {
  mkdir "$work/check-dashboard"
  cp "$here/check_dashboard.go" "$work/check-dashboard"
  cat >"$work/check-dashboard/go.mod" <<END
module build
go 1.21
require ${grafana/@/ }
END
  (cd "$work/check-dashboard" && go build -mod=mod -o "$tools/check-dashboard.new")
  mv "$tools/check-dashboard.new" "$tools/check-dashboard"
}

(($# >= 1)) || fail "usage: install_tools.sh FOLDER [NAME...]"
mkdir -p "$1"
tools=$(cd "$1" && pwd)
shift
(($# > 0)) || set -- podman slurm prometheus etcd packaging roots wheels ray docker-compose helm \
  kubeconform schemas jobset-schemas kube-apiserver kubectl cert-manager check-dashboard
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$here/../../third_party/install/setup_go.sh"
export PATH=$here/../../third_party/.go/bin:$PATH
for name in "$@"; do
  case $name in
    podman | slurm | prometheus | etcd | packaging) ;;
    *)
      if [[ -e $tools/$name ]]; then continue; fi
      say "making $name"
      ;;
  esac
  "install_$name"
done
