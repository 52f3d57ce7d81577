#!/bin/bash
# Installs the tools of the tests in this folder: podman and its parts from Debian 12; Ray from
# wheels that are pinned by hash; the others from their Go modules at pinned versions, whose sums
# the Go checksum database confirms. Needs root, python3-pip, and Go 1.21 or newer, which fetches
# the Go that a module asks for.
#
#   tests/deploy/install_tools.sh FOLDER [NAME...]
#
# NAME: podman, slurm, prometheus, ray, docker-compose, helm, kubeconform, schemas, jobset-schemas;
# default all. FOLDER keeps them for the next run.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
readonly packages=(podman buildah runc netavark aardvark-dns iptables python3-yaml)
readonly slurm_packages=(slurmctld slurmd slurm-client munge)
readonly compose=github.com/docker/compose/v2@v2.40.3
readonly helm=helm.sh/helm/v3/cmd/helm@v3.22.0
readonly kubeconform=github.com/yannh/kubeconform/cmd/kubeconform@v0.7.0
readonly kubernetes=1.36.3
readonly jobset=sigs.k8s.io/jobset@v0.12.0
export USER=${USER:-$(id -un)} HOME=${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}

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

# The module of compose replaces nothing, but its program has no path that "go install" takes.
install_docker-compose() {
  cp -r "$(module_folder "$compose")" "$work/compose"
  chmod -R u+w "$work/compose"
  (cd "$work/compose" && go build -trimpath -o "$tools/docker-compose.new" \
    -ldflags "-X github.com/docker/compose/v2/internal.Version=${compose#*@}" ./cmd)
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

(($# >= 1)) || fail "usage: install_tools.sh FOLDER [NAME...]"
mkdir -p "$1"
tools=$(cd "$1" && pwd)
shift
(($# > 0)) || set -- podman slurm prometheus ray docker-compose helm kubeconform schemas \
  jobset-schemas
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for name in "$@"; do
  if [[ $name != podman && $name != slurm && $name != prometheus ]]; then
    if [[ -e $tools/$name ]]; then continue; fi
    [[ $name == ray ]] || command -v go >/dev/null ||
      fail "go is missing; install Go 1.21 or newer"
    say "building $name"
  fi
  "install_$name"
done
