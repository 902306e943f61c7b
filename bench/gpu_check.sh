#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a GPU, in one go: build, times of kernels, a stress run, the decode loop, benchmarks, graphs,
# tests, sanitizers.
#
#   bench/gpu_check.sh OUTDIR [environment build kernels stress loop bench cold graph test sanitize ...] ; default: all
#
# OUTDIR gets summary.txt (a line per step as it ends), log.txt (all output), kernels.csv and counters.csv (what each
# kernel of the main cases takes, and what ncu counted of it), bench.csv, bench.md, and model.txt (what bench.model
# predicted, beside what was measured). The first numbers are there within two minutes. A step that fails or runs out
# of time does not stop the next; the exit status is 1 if any did. All ends inside 8 minutes: a step may use its own
# seconds below and what earlier ones left over.
#
#   PYTHON=python3         the interpreter, with torch, triton, pytest and what the benchmarks compare with
#   WORKERS=8              pytest processes, where pytest-xdist is installed
#   TESTS=                 what the test step runs; by default every file whose tests take a backend
#   BENCH_ARGS=            for python -m bench.run
#   SPECDEC_COMMIT=        names the commit where there is no git
#   DEVICE=cuda            cpu: a rehearsal of this script where there is no GPU; its numbers mean nothing
set -u
cd "$(dirname "$0")/.."
[ $# -ge 1 ] || { sed -n '3,20p' bench/gpu_check.sh; exit 2; }
OUTDIR=$1; shift
mkdir -p "$OUTDIR"
OUTDIR=$(cd "$OUTDIR" && pwd)
SUMMARY=$OUTDIR/summary.txt LOG=$OUTDIR/log.txt
PYTHON=${PYTHON:-python3} DEVICE=${DEVICE:-cuda} WORKERS=${WORKERS:-8}
TESTS=${TESTS:-$("$PYTHON" python_tests/support/on_backends.py)}
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false

TOTAL=475
declare -A seconds=([environment]=10 [build]=70 [kernels]=30 [stress]=30 [loop]=25 [bench]=85 [cold]=25 [graph]=20
                    [test]=95 [memcheck]=25 [racecheck]=25 [synccheck]=15 [initcheck]=10 [memcheck-triton]=10)
ALL="environment build kernels stress loop bench cold graph test memcheck racecheck synccheck initcheck memcheck-triton"

steps=" ${*:-$ALL} "
steps=${steps/ sanitize / memcheck racecheck synccheck initcheck memcheck-triton }
budget=0
for step in $steps; do
  [ -n "${seconds[$step]:-}" ] || { echo "gpu_check: step must be one of $ALL sanitize, got $step" >&2; exit 2; }
  budget=$((budget + seconds[$step]))
done
deadline=$((budget < TOTAL ? TOTAL - budget : 0))  # of the steps so far, in seconds since the start
limit=0
failed=0

note() { printf '%-16s %4ss  %s\n' "$1" "$2" "$3" | tee -a "$SUMMARY"; }

# run STEP COMMAND...: within the step's time, into the log; its last line of output goes into the summary.
run() {
  local step=$1 began=$SECONDS status result; shift
  printf '\n==== %s: %s\n' "$step" "$*" >>"$LOG"
  timeout -k 5 "$limit" "$@" >>"$LOG" 2>&1 </dev/null
  status=$?
  case $status in
    0) result=passed ;;
    124 | 137) result="FAILED, out of its $limit s" failed=1 ;;
    *) result="FAILED, exit status $status" failed=1 ;;
  esac
  note "$step" $((SECONDS - began)) "$result: $(tail -n 1 "$LOG" | cut -c 1-150)"
}

skip() { note "$1" 0 "not run: $2"; [ "$DEVICE" = cpu ] || failed=1; }

works() {
  "$PYTHON" - "$DEVICE" <<'PY'
import sys
import torch
import specdec_kernels as sk
device = sys.argv[1]
assert sk.backends.chosen() == device, (
    f"backends.chosen() is {sk.backends.chosen()}: {sk.backends.lacks(device) or sk.backends.misfit()}"
)
seed = torch.tensor([1], device=device)
archs = " ".join(sk.backends.cuda_archs()) or "no GPU"
print(f"{device} runs, first uniform {sk.uniforms(seed, seed, 1).item():.6f}, binary for {archs}")
PY
}

build() {  # what is built is used if it runs here
  works && return
  TORCH_CUDA_ARCH_LIST=$("$PYTHON" -c 'import torch; print("%d.%d" % torch.cuda.get_device_capability())') \
    MAX_JOBS=$(nproc) "$PYTHON" setup.py --quiet build_ext --inplace
  works
}

sanitize() {  # TOOL [backend]
  local options=(--tool "$1" --error-exitcode 99 --print-limit 20)
  [ "$1" = memcheck ] && options+=(--leak-check no)
  # Every tensor gets memory of its own: reads past one are then seen, and old contents do not pass for written ones.
  PYTORCH_NO_CUDA_MEMORY_CACHING=1 SPECDEC_BACKEND=${2:-cuda} \
    compute-sanitizer "${options[@]}" "$PYTHON" -m bench.sanitize
}

# What the model claims beside what was just measured: printed, no step that could fail, in the bench's own seconds.
predicted() {
  [ -f "$OUTDIR/bench.csv" ] || return 0
  printf '\n==== predicted beside measured\n' >>"$LOG"
  timeout -k 2 12 "$PYTHON" -m bench.model compare "$OUTDIR/bench.csv" 2>&1 </dev/null |
    tee "$OUTDIR/model.txt" | tee -a "$LOG"
}

# Peers that compile at run time do so while the kernels are looked at.
prepare_peers() { timeout -k 5 100 "$PYTHON" -m bench.peers.prepare >"$OUTDIR/peers.log" 2>&1 & peers=$!; }
peers=
finish_peers() {
  [ -n "$peers" ] || return 0
  wait "$peers"
  { printf '\n==== peers\n'; cat "$OUTDIR/peers.log"; } >>"$LOG"
  rm -f "$OUTDIR/peers.log"; peers=
}
trap 'finish_peers' EXIT

export -f works build sanitize
export PYTHON DEVICE
rehearsal=() watched=() small=() brief=()
[ "$DEVICE" = cpu ] &&
  rehearsal=(bench.rehearsal) watched=(bench.devices) \
    small=(--batch 3 --vocabulary 1000 --replays 3) brief=(--seconds 1)

: >"$SUMMARY"; : >"$LOG"
for step in $steps; do
  deadline=$((deadline + seconds[$step]))
  limit=$((deadline - SECONDS))
  if [ "$limit" -lt 5 ]; then skip "$step" "no time left"; continue; fi
  case $step in
    environment) run environment "$PYTHON" -m bench.machine ;;
    build)
      run build bash -c build
      case $steps in *" bench "*) prepare_peers ;; esac ;;
    kernels)
      run kernels "$PYTHON" -m "${rehearsal[@]}" bench.kernel_times --csv "$OUTDIR/kernels.csv" \
        --counters "$OUTDIR/counters.csv" --seconds $((limit - 8)) "${brief[@]}" ;;
    stress)
      run stress "$PYTHON" -m "${rehearsal[@]}" bench.stress --seconds $((limit - 15)) "${small[@]}" ;;
    loop) run loop "$PYTHON" -m "${watched[@]}" bench.decode_loop ;;
    cold) run cold "$PYTHON" -m "${rehearsal[@]}" bench.cold ;;
    test)
      parallel=()
      "$PYTHON" -c 'import xdist' 2>/dev/null && parallel=(-n "$WORKERS")
      backends=$([ "$DEVICE" = cuda ] && echo cuda,triton || echo "$DEVICE")
      # shellcheck disable=SC2086
      SPECDEC_TEST_BACKENDS=$backends run test "$PYTHON" -m pytest "${parallel[@]}" -p no:cacheprovider \
        $TESTS ;;
    graph) run graph "$PYTHON" -m pytest -p no:cacheprovider python_tests/ops/test_cuda_graph.py ;;
    bench)
      finish_peers
      limit=$((deadline - SECONDS))
      # shellcheck disable=SC2086
      run bench "$PYTHON" -m "${rehearsal[@]}" bench.run --device cuda --budget $((limit - 32)) \
        --csv "$OUTDIR/bench.csv" --markdown "$OUTDIR/bench.md" ${BENCH_ARGS:-}
      predicted ;;
    *)
      if [ "$DEVICE" = cpu ]; then
        run "$step" "$PYTHON" -m bench.sanitize --device cpu
      elif command -v compute-sanitizer >/dev/null; then
        case $step in
          *-triton) run "$step" bash -c "sanitize ${step%-triton} triton" ;;
          *) run "$step" bash -c "sanitize $step" ;;
        esac
      else
        skip "$step" "compute-sanitizer is not on the PATH"
      fi ;;
  esac
done
note total "$SECONDS" "$([ $failed = 0 ] && echo passed || echo FAILED)"
exit $failed
