#!/bin/bash
# One session on a machine with a GPU: everything that a short loan of one must answer.
#
#   gpu_session.sh pack --out=FOLDER DIR...       on the machine that builds
#   FOLDER/gpu_session.sh run [--budget=SECONDS] [--only=STAGE,...] [--results=DIR]
#                                                 on the machine with the GPU
#
# `pack` takes the programs out of the DIRs (bazel-bin, or folders with the programs themselves),
# and adds every shared library that they name, except the C and C++ runtimes and LibTorch. FOLDER
# then holds an archive, a copy of this script and its Python files.
# `run` needs a driver, glibc 2.35 and LibTorch 2.11 (+cu130): in the folder $TORCH_LIB, else in the
# torch of python3. It does the stages in the order of their worth; one that passed is skipped when
# `run` is called again, on another machine too if the state.tsv of the results lies beside the
# script. A stage starts only if its estimate fits the rest of the budget.
# The results (default: $OUT, else ./gpu_results) are few and small files: state.tsv, with a line
# "pack, stage, ok|absent|failed|timeout, seconds" for each attempt, the stages' output, and their
# figures. The exit code is the number of failed stages; 64 for a wrong argument; 70 if the programs
# do not start. EPS_GPU_ROOT (default /tmp/eps_gpu) is the folder of work.
# EPS_GPU_DRY=1 runs everything on a CPU in small sizes, to test this script.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
programs=(cli/eps worker/eps-worker verify/eps-verify bench/gpu/device_check
  worker/exec/cuda/libeps_cuda.so)
max_pack_bytes=$((48 << 20))

# name, estimate and limit in seconds
stages='facts 70 180
loads 15 60
kernels 60 200
twice 50 150
cpu 50 150
depth 40 150
overlap 70 240
timeline 30 120
mfu7b 180 300
e2e 90 300
peers 240 500
servers 120 300'

dry=${EPS_GPU_DRY:-}
if [[ -z $dry ]]; then
  device=cuda
  twice_steps=20 cpu_steps=40
  depth=(--width=1024 --heads=16 --seq-len=1024)
  overlap=(--layers=16 --width=2048 --heads=16 --seq-len=1024)
  mfu7b=(--layers=32 --width=4096 --heads=32 --seq-len=2048)
  e2e=(--layers=12 --width=2048 --heads=16 --seq=1024 --samples=16)
else
  device=cpu
  twice_steps=4 cpu_steps=4
  depth=(--width=32 --heads=2 --seq-len=16)
  overlap=(--layers=3 --width=64 --heads=4 --seq-len=64)
  mfu7b=(--layers=2 --width=64 --heads=4 --seq-len=64)
  e2e=(--layers=2 --width=64 --heads=4 --seq=64 --samples=16)
fi

die() {
  echo "gpu_session: $2" >&2
  exit "$1"
}

# ---- pack ----------------------------------------------------------------------------------------
# find_program PATH DIR...: prints where a DIR holds the program, as a build does or by its name.
find_program() {
  local path=$1 dir candidate
  shift
  for dir; do
    for candidate in "$dir/$path" "$dir/${path##*/}"; do
      [[ ! -f $candidate ]] || { echo "$candidate" && return; }
    done
  done
}

# add_libraries FOLDER: copies the libraries of FOLDER/bin, and those that they need in turn.
add_libraries() {
  local library
  ldd "$1"/bin/* | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
    while read -r library; do
      case ${library##*/} in
        libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | libresolv.so.*) ;;
        libtorch* | libc10* | libgomp* | libcuda* | libcupti* | libnv*) ;;
        # For a machine whose C++ runtime is older than that of the build.
        libstdc++.so.* | libgcc_s.so.*) cp -L "$library" "$1/runtime/" ;;
        *) cp -L "$library" "$1/lib/" ;;
      esac
    done
}

pack() {
  local argument out='' dirs=() work path found size
  for argument; do
    case $argument in
      --out=*) out=${argument#*=} ;;
      -*) die 64 "$argument is not an argument of pack" ;;
      *) dirs+=("$argument") ;;
    esac
  done
  [[ -n $out && ${#dirs[@]} -gt 0 ]] || die 64 "pack needs --out=FOLDER and a folder with programs"
  work=$(mktemp -d)
  trap "rm -rf '$work'" EXIT
  mkdir -p "$work/bin" "$work/lib" "$work/runtime" "$out/peers"
  for path in "${programs[@]}"; do
    found=$(find_program "$path" "${dirs[@]}")
    if [[ -n $found ]]; then
      install -m 755 "$found" "$work/bin/${path##*/}"
      strip "$work/bin/${path##*/}"
    else
      echo "gpu_session: no ${path##*/} in ${dirs[*]}: stages that need it will be absent"
    fi
  done
  [[ -x $work/bin/eps && -x $work/bin/eps-worker ]] ||
    die 1 "no eps and eps-worker in ${dirs[*]}: build //cli:eps first"
  add_libraries "$work"
  # The same programs make the same archive, so that their passed stages stay passed.
  tar -C "$work" --sort=name --mtime=@0 --owner=0 --group=0 -c bin lib runtime |
    gzip -n >"$out/pack.tar.gz"
  cp -L "${BASH_SOURCE[0]}" "$here/facts.py" "$here/figures.py" "$out/"
  cp -L "$here"/peers/*.py "$out/peers/"
  size=$(stat -c %s "$out/pack.tar.gz")
  echo "gpu_session: $((size >> 10)) KiB in $out"
  ((size < max_pack_bytes)) || die 1 "the pack has more than $((max_pack_bytes >> 20)) MiB"
}

# ---- what stages use -----------------------------------------------------------------------------
absent() {
  echo "absent: $*"
  exit 77
}
need() { [[ -e $root/bin/$1 ]] || absent "the pack has no $1"; }
# ours PROGRAM ARGUMENT...: with the libraries of the pack, which no other program sees.
ours() { LD_LIBRARY_PATH=$libraries "$root/bin/$1" "${@:2}"; }
figures() { python3 "$here/figures.py" "$@"; }
# python_has MODULE: prints the reason if python3 cannot import it.
python_has() {
  local error
  error=$(python3 -c "import $1" 2>&1) && return
  echo "$(command -v python3) cannot import $1 (${error##*$'\n'})"
  return 1
}
step() { ours eps-worker step --device="$device" "$@"; }
# train OUT STEPS DEVICE ARGUMENT...: on a text of bytes.
train() {
  rm -rf "$root/$1"
  [[ -s $root/data.txt ]] || seq 200000 >"$root/data.txt"
  ours eps train --data="$root/data.txt" --out="$root/$1" --servers=1 --training.steps="$2" \
    --worker.device="$3" "${@:4}"
}

# ---- stages, each in a process of its own --------------------------------------------------------
# The machine, and the speed of its links, cores and matrix products alone.
stage_facts() {
  local why
  ! command -v nvidia-smi || nvidia-smi --format=csv --query-gpu=name,driver_version,memory.total,\
pcie.link.gen.max,pcie.link.gen.current,pcie.link.width.current,power.limit
  why=$(python_has torch) || absent "$why"
  python3 "$here/facts.py" --out="$results/facts.json" ${dry:+--dry}
}

# The driver and LibTorch's CUDA half are found.
stage_loads() {
  ours eps-worker --version | tee "$root/version.txt"
  ours eps doctor
  [[ -n $dry ]] || ! grep 'cuda: not used' "$root/version.txt"
}

# Every kernel has the bits of its reference; its speed.
stage_kernels() {
  need device_check
  need libeps_cuda.so
  [[ -z $dry ]] || absent "a dry run has no device"
  ours device_check "$root/bin/libeps_cuda.so"
}

# The same job twice on the device ends with the same bits.
stage_twice() {
  local i
  for i in 1 2; do
    train "twice_$i" "$twice_steps" "$device" >/dev/null
    ours eps checkpoint digest "$root/twice_$i/$(<"$root/twice_$i/latest")" |
      tee "$root/digest_$i.txt"
  done
  cmp "$root/digest_1.txt" "$root/digest_2.txt"
}

# A device trains as a CPU does.
stage_cpu() {
  train on_cpu "$cpu_steps" cpu >/dev/null
  train on_device "$cpu_steps" "$device" >/dev/null
  figures losses "$root"/on_{cpu,device}/metrics.jsonl
}

# Device memory does not depend on depth.
stage_depth() {
  local layers
  need eps-worker
  for layers in 8 16 32 64; do
    step "${depth[@]}" --layers="$layers" --samples=2 --micro-batches=2 --steps=3 --vocab=8192
  done | tee "$lines/depth.jsonl"
  figures flat "$lines/depth.jsonl"
}

# A step takes the time of its slower half: computing or copies.
stage_overlap() {
  local samples
  need eps-worker
  for samples in 1 4 16; do
    step "${overlap[@]}" --samples="$samples" --micro-batches=2 --steps=5 --vocab=8192
  done | tee "$lines/overlap.jsonl"
  figures overlap "$lines/overlap.jsonl" ${dry:+--report}
}

# A Chrome trace of one step: which queue waits for which.
stage_timeline() {
  need eps-worker
  step "${overlap[@]}" --samples=4 --steps=2 --vocab=8192 --trace="$root/timeline.json"
  gzip -c "$root/timeline.json" >"$results/timeline.json.gz"
}

# A 7B shape with weights served at once: the worker alone as a share of the device's peak.
stage_mfu7b() {
  local micro_batches
  need eps-worker
  { # 4,096 and 16,384 tokens a step
    for micro_batches in 1 4; do
      step "${mfu7b[@]}" --precision=bf16 --samples=2 --micro-batches="$micro_batches" --steps=2 \
        --vocab=32000
    done
    step "${mfu7b[@]}" --precision=bf16 --samples=2 --micro-batches=4 --steps=2 --vocab=32000 \
      --gradient-sum=fused
    step "${mfu7b[@]}" --precision=bf16 --samples=2 --micro-batches=4 --steps=2 --vocab=32000 \
      --gradient-sum=fused --keep=auto
  } | tee "$lines/mfu7b.jsonl"
  figures mfu "$lines/mfu7b.jsonl" bf16
}

# train_e2e: real servers and their optimizer on all cores; prints a line of JSON, as peers do.
train_e2e() {
  python3 "$here/peers/shape.py" "${e2e[@]}" >"$root/e2e.json" &&
    train e2e 8 "$device" --model="$root/e2e.json" --training.micro_batch_size=4 \
      --training.micro_batches=4 --training.clip=lagged --training.precision=bf16 \
      --storage.kind=dram --quantization.weights=bf16 --quantization.gradients=bf16 \
      --servers.threads="$(nproc)" \
      >"$root/logs/e2e_train.txt" &&
    figures ours "$root/e2e/metrics.jsonl" "${e2e[@]}" &&
    rm -rf "$root/e2e" # its checkpoint has 12 bytes for each parameter
}

# watched COMMAND...: adds to the line of JSON that COMMAND prints the device memory in use.
watched() {
  local watcher='' status=0
  : >"$root/used.txt"
  if command -v nvidia-smi >/dev/null; then
    nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits --loop-ms=200 \
      >"$root/used.txt" &
    watcher=$!
  fi
  "$@" >"$root/line.json" || status=$?
  [[ -z $watcher ]] || kill "$watcher"
  ((status == 0)) || return "$status"
  figures used "$root/line.json" "$root/used.txt"
}

stage_e2e() { watched train_e2e | tee "$lines/e2e.jsonl"; }

# The same training by others, in turn with ours.
stage_peers() {
  local peer why reasons='' available=() round
  for peer in fsdp2:torch zero_offload:deepspeed; do
    if why=$(python_has "${peer#*:}"); then available+=("${peer%:*}"); else reasons+="$why; "; fi
  done
  ((${#available[@]} > 0)) || absent "${reasons%; }"
  [[ -z $reasons ]] || echo "left out: ${reasons%; }"
  for round in 1 2; do
    watched train_e2e
    for peer in "${available[@]}"; do
      watched python3 "$here/peers/$peer.py" "${e2e[@]}"
    done
  done | tee "$lines/peers.jsonl"
  figures peers "$lines/peers.jsonl"
}

# Real servers keep the promises about memory.
stage_servers() { ours eps bench depth --worker.device="$device" ${dry:+--layers=2,4}; }

# ---- run -----------------------------------------------------------------------------------------
# unpack PACK: unless its programs are here already. Forgets other programs and their stages.
unpack() {
  [[ $(cat "$root/pack.txt" 2>/dev/null) != "$1" ]] || return 0
  rm -rf "$root"
  mkdir -p "$root/logs" "$root/lines"
  tar -C "$root" -xzf "$here/pack.tar.gz"
  # Stages that these programs passed on another machine.
  touch "$root/state.tsv"
  [[ ! -f $here/state.tsv ]] ||
    awk -v pack="$1" '$1 == pack && $3 == "ok"' "$here/state.tsv" >"$root/state.tsv"
  echo "$1" >"$root/pack.txt"
}

# find_libraries: sets the path of libraries with which the programs start.
find_libraries() {
  local torch=${TORCH_LIB:-} log=$root/logs/start.txt
  [[ -n $torch ]] || torch=$(python3 -c 'import importlib.util as u, os
torch = u.find_spec("torch")
print(os.path.join(os.path.dirname(torch.origin), "lib") if torch else "")')
  libraries=${torch:+$torch:}$root/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  ours eps-worker --version >"$log" 2>&1 && return
  libraries+=:$root/runtime
  ours eps-worker --version >>"$log" 2>&1 && return
  cat "$log" >&2
  die 70 "the programs do not start; TORCH_LIB names the folder of LibTorch, now '$torch'"
}

# run_stage NAME LIMIT: writes its line of state.tsv; returns 1 if it failed.
run_stage() {
  local name=$1 limit=$2 log=$root/logs/$1.txt begin=$SECONDS status=0 result
  echo "== $name"
  timeout --kill-after=5 "$limit" bash "$here/gpu_session.sh" stage "$name" >"$log" 2>&1 \
    </dev/null || status=$?
  case $status in
    0) result=ok ;;
    124 | 137) result=timeout ;;
    77) result=$(tail -n 1 "$log" | grep -q '^absent: ' && echo absent || echo failed) ;;
    *) result=failed ;;
  esac
  printf '%s\t%s\t%s\t%d\n' "$pack" "$name" "$result" "$((SECONDS - begin))" >>"$root/state.tsv"
  tail -n 12 "$log" | cut -c1-300
  echo "$name: $result in $((SECONDS - begin)) s"
  cp "$root/state.tsv" "$results/"
  tar -C "$root" -czf "$results/logs.tar.gz" logs
  tar -C "$root" -czf "$results/lines.tar.gz" lines
  [[ $result == ok || $result == absent ]]
}

# run_stages BUDGET ONLY: the stages in ONLY, or all; returns the number of those that failed.
run_stages() {
  local budget=$1 only=$2 name estimate limit failed=0 left=0
  while read -r name estimate limit; do
    [[ -z $dry ]] || limit=$budget # a machine that tests this script may be slow
    [[ -z $only || ,$only, == *,$name,* ]] || continue
    if grep -q $'\t'"$name"$'\tok\t' "$root/state.tsv"; then
      echo "$name: passed before"
    elif ((SECONDS + estimate > budget)); then
      echo "$name: left, because it may take $estimate s; $SECONDS s of $budget s are gone"
      left=$((left + 1))
    else
      ((SECONDS + limit <= budget)) || limit=$((budget - SECONDS))
      run_stage "$name" "$limit" || failed=$((failed + 1))
    fi
  done <<<"$stages"
  echo "gpu_session: $failed stages failed, $left are left; the results are in $results"
  return "$failed"
}

run() {
  local argument budget=1500 only='' name failed=0
  results=${OUT:-$PWD/gpu_results}
  for argument; do
    case $argument in
      --budget=*) budget=${argument#*=} ;;
      --only=*) only=${argument#*=} ;;
      --results=*) results=${argument#*=} ;;
      *) die 64 "$argument is not an argument of run" ;;
    esac
  done
  [[ $budget =~ ^[0-9]+$ ]] || die 64 "--budget=$budget is not a number of seconds"
  for name in ${only//,/ }; do
    grep -q "^$name " <<<"$stages" || die 64 "--only=$only: there is no stage $name"
  done
  mkdir -p "$results"
  results=$(cd "$results" && pwd)
  root=${EPS_GPU_ROOT:-/tmp/eps_gpu}
  lines=$root/lines
  pack=$(sha256sum "$here/pack.tar.gz" | cut -c1-16)${dry:+-dry}
  unpack "$pack"
  find_libraries
  export results root lines libraries
  export OMP_WAIT_POLICY=passive CUBLAS_WORKSPACE_CONFIG=:4096:8 PYTHONUNBUFFERED=1
  export PYTHONDONTWRITEBYTECODE=1
  run_stages "$budget" "$only" || failed=$?
  cp "$root/state.tsv" "$results/"
  exit "$failed"
}

case ${1:-} in
  pack | run) "$@" ;;
  stage) "stage_$2" ;; # called by run_stage
  *) sed -n '2,21s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2 && exit 64 ;;
esac
