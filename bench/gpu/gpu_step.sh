#!/bin/bash
# Measures a worker on a CUDA device, in two halves. `pack` builds and collects the programs on a
# build machine. `run` measures on a machine that has a driver and python3 with torch 2.11 (+cu130),
# and none of the packages that a build needs.
#
#   bench/gpu/gpu_step.sh pack [FOLDER]     default out/gpu; copy that folder to the other machine
#   FOLDER/gpu_step.sh run [RESULTS]    default ./gpu_results
#
# RESULTS receives one file per part, and summary.txt. `run` exits with the number of parts that
# failed; a failed part does not stop the others. $TORCH_LIB names the folder of libtorch_cuda.so if
# python3 has no torch. docs/cuda.md explains the numbers.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

pack() {
  local root out name library lane
  root=$(cd "$here/../.." && pwd)
  out=${1:-$root/out/gpu}
  "$root/third_party/install/setup_torch.sh"
  "$root/third_party/install/setup_cuda.sh"
  cd "$root"
  # A separate output base, because another configuration would replace the usual build outputs.
  lane=$HOME/.cache/eps-lanes/$(pwd | cksum | cut -d' ' -f1)-cuda
  local bazel=(bazel "--output_base=$lane") flags=(--config=cuda --define=link=static)
  "${bazel[@]}" build "${flags[@]}" --symlink_prefix=/ --show_result=0 //cli:eps \
    //bench/gpu:device_step //bench/gpu:device_check
  local bin
  bin=$("${bazel[@]}" info "${flags[@]}" bazel-bin 2>/dev/null)
  "${bazel[@]}" shutdown
  rm -rf "$out"
  mkdir -p "$out/bin" "$out/lib"
  for name in cli/eps worker/eps-worker verify/eps-verify bench/gpu/device_step \
    bench/gpu/device_check worker/exec/cuda/libeps_cuda.so; do
    cp "$bin/$name" "$out/bin/"
    chmod u+w "$out/bin/${name##*/}"
    strip "$out/bin/${name##*/}"
  done
  # Libraries without an archive in Debian. The C and C++ libraries are those of the other machine.
  for name in "$out"/bin/*; do ldd "$name"; done |
    awk '/libspdlog|libfmt|libhwy|libisal|libprometheus|libmicrohttpd|libgnutls/ { print $3 }' |
    sort -u |
    xargs -I{} cp -L {} "$out/lib/"
  cp "$here/gpu_step.sh" "$out/"
  echo "gpu_step: packed $(du -sh "$out" | cut -f1) into $out"
}

failures=0
# part NAME COMMAND...: runs a part; writes its output to a file and the end of it to the screen.
# The command may be a function of this script.
part() {
  local name=$1 status=0
  shift
  echo "== $name: $*" | tee -a "$results/summary.txt"
  [[ $(type -t "$1") != function ]] || set -- bash "$here/gpu_step.sh" function "$@"
  timeout 300 "$@" >"$results/$name.txt" 2>&1 || status=$?
  tail -n 4 "$results/$name.txt" | tee -a "$results/summary.txt"
  if ((status != 0)); then
    failures=$((failures + 1))
    echo "   FAILED with $status" | tee -a "$results/summary.txt"
  fi
}

torch_lib() {
  if [[ -n ${TORCH_LIB:-} ]]; then
    echo "$TORCH_LIB"
    return
  fi
  python3 -c 'import importlib.util as u, os
print(os.path.join(os.path.dirname(u.find_spec("torch").origin), "lib"))'
}

worker_finds_a_device() {
  "$here/bin/eps-worker" --version && ! "$here/bin/eps-worker" --version | grep 'cuda: not used'
}

# The peaks of device memory at 8 to 64 layers agree within 1 %.
depths() {
  local layers
  for layers in 8 16 32 64; do
    "$here/bin/device_step" --device=cuda --layers="$layers" --width=1024 --heads=16 --samples=8 \
      --micro_batches=2 --steps=5 "$@"
  done
}
peak_is_flat() {
  depths | tee "$results/depths.jsonl"
  python3 - "$results/depths.jsonl" <<'PYTHON'
import json, sys
peaks = [json.loads(line)["device_peak_bytes"] for line in open(sys.argv[1])]
print("device peaks:", peaks, "largest / smallest:", max(peaks) / min(peaks))
sys.exit(max(peaks) > 1.01 * min(peaks))
PYTHON
}

# Compares a step with the slower of its halves, for shapes bound by transfers or by computing.
overlap() {
  local samples
  for samples in 1 2 4 8 16; do
    "$here/bin/device_step" --device=cuda --layers=16 --width=2048 --heads=16 --seq=1024 \
      --samples="$samples" --micro_batches=2 --steps=7
  done | tee "$results/overlap.jsonl"
  python3 - "$results/overlap.jsonl" <<'PYTHON'
import json, sys
steps = [json.loads(line) for line in open(sys.argv[1])]
worst = max(step["over_slower_half"] for step in steps)
print("step / slower half, at worst:", worst, "(the goal is at most 1.05)")
sys.exit(worst > 1.05)
PYTHON
}

# The losses of the same job on both devices: different bits, but the same training.
trains_as_a_cpu() {
  local device
  head -c 2000000 /dev/urandom | base64 -w 60 >"$results/data.txt"
  for device in cpu cuda; do
    "$here/bin/eps" train --data="$results/data.txt" --out="$results/train_$device" --servers=1 \
      --training.steps=40 --worker.device="$device"
  done
  python3 - "$results"/train_{cpu,cuda}/metrics.jsonl <<'PYTHON'
import json, sys
cpu, cuda = [[json.loads(l)["loss"] for l in open(p) if '"loss"' in l] for p in sys.argv[1:]]
worst = max(abs(a - b) / a for a, b in zip(cpu, cuda))
print(len(cpu), "steps; relative difference of the losses at worst:", worst)
sys.exit(len(cpu) != len(cuda) or not cpu or worst > 1e-3)
PYTHON
}

# Two runs of one job on the device end with the same bits.
repeats_itself() {
  local i
  for i in 1 2; do
    "$here/bin/eps" train --data="$results/data.txt" --out="$results/again_$i" --servers=1 \
      --training.steps=20 --worker.device=cuda
  done
  for i in 1 2; do
    "$here/bin/eps" checkpoint digest "$results/again_$i/$(<"$results/again_$i/latest")" \
      >"$results/digest_$i"
  done
  cat "$results/digest_1"
  cmp "$results/digest_1" "$results/digest_2"
}

run() {
  results=${1:-$PWD/gpu_results}
  mkdir -p "$results"
  export results
  : >"$results/summary.txt"
  local torch
  torch=$(torch_lib)
  export LD_LIBRARY_PATH="$torch:$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  export OMP_WAIT_POLICY=passive CUBLAS_WORKSPACE_CONFIG=:4096:8
  part device nvidia-smi
  part worker worker_finds_a_device
  part kernels "$here/bin/device_check" "$here/bin/libeps_cuda.so"
  part depth peak_is_flat
  part overlap overlap
  part training trains_as_a_cpu
  part repeat repeats_itself
  part servers "$here/bin/eps" bench depth --worker.device=cuda
  if command -v nsys >/dev/null; then
    part trace nsys profile --trace=cuda,osrt --force-overwrite=true -o "$results/trace" \
      "$here/bin/device_step" --device=cuda --layers=16 --width=2048 --heads=16 --steps=3
  else
    echo "== trace: skipped, nsys is not installed" | tee -a "$results/summary.txt"
  fi
  echo "gpu_step: $failures parts failed; all output is in $results"
  exit "$failures"
}

case ${1:-} in
  pack) shift && pack "$@" ;;
  run) shift && run "$@" ;;
  function) shift && "$@" ;;  # called by `part`
  *) sed -n '2,14s/^# \{0,1\}//p' "$0" && exit 64 ;;
esac
