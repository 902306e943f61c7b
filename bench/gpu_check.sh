#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a GPU, in four calls of under ten minutes each.
#
#   bench/gpu_check.sh OUTDIR [1 2 3 4, or names of steps] ; default: all four
#
#   1  environment build smoke kernels cold stress                        3 minutes
#   2  environment build smoke bench counters loop                        9:40 minutes
#   3  environment build graphs tests-ops tests-rules tests-trees tests-rest tests-triton      9:40 minutes
#   4  environment build memcheck racecheck synccheck initcheck memcheck-triton                7 minutes
#
# Each call is complete in itself. A build takes 3 minutes more, within 9:40. OUTDIR gets summary.txt (a line per step
# as it ends), log.txt (all output), kernels.csv and counters.csv (times of each kernel of the main cases, and its
# counters by ncu), bench.csv, bench.md, and model.txt (predictions of tools.gpu_model with the measured times). A step
# that passed is not run again in the same OUTDIR, and benchmarks resume where they ended. A step that fails or runs out
# of time does not stop the next, but nothing is timed if `smoke` found wrong results. The exit status is 1 if any step
# failed. A step may use its own seconds, below, and those that earlier steps left over.
#
#   PYTHON=python3         the interpreter, with torch, triton, pytest and the packages that benchmarks compare with
#   WORKERS=8              number of pytest processes, if pytest-xdist is installed
#   TESTS=                 the files of the test steps; by default every file whose tests take a backend
#   BENCH_ARGS=            arguments for python -m bench.run
#   SPECDEC_COMMIT=        the commit's name, if git is not available
#   DEVICE=cuda            cpu: a rehearsal of this script without a GPU; its numbers mean nothing
#   SLOWER=1               a factor on all time limits, a whole number, for a rehearsal on a busy machine
set -u
cd "$(dirname "$0")/.."
[ $# -ge 1 ] || { sed -n '3,25p' bench/gpu_check.sh; exit 2; }
OUTDIR=$1; shift
PYTHON=${PYTHON:-python3} DEVICE=${DEVICE:-cuda} WORKERS=${WORKERS:-8} SLOWER=${SLOWER:-1}
[[ $SLOWER =~ ^[1-9][0-9]*$ ]] ||
  { echo "gpu_check: SLOWER must be a whole number from 1 on, got $SLOWER" >&2; exit 2; }
export PYTHON DEVICE PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false

declare -A calls=(
  [1]="environment build smoke kernels cold stress"
  [2]="environment build smoke bench counters loop"
  [3]="environment build graphs tests-ops tests-rules tests-trees tests-rest tests-triton"
  [4]="environment build memcheck racecheck synccheck initcheck memcheck-triton")
declare -A seconds=(
  [environment]=15 [build]=180 [smoke]=50 [kernels]=30 [cold]=45 [stress]=30
  [bench]=240 [counters]=125 [loop]=150
  [graphs]=45 [tests-ops]=165 [tests-rules]=90 [tests-trees]=90 [tests-rest]=40 [tests-triton]=135
  [memcheck]=120 [racecheck]=130 [synccheck]=65 [initcheck]=55 [memcheck-triton]=60)
NEED_RIGHT=" kernels stress bench counters loop "  # not run if smoke found wrong results
CALL=580  # seconds that all steps of one call may take together

steps=() numbers=0
for name in "${@:-1 2 3 4}"; do
  # shellcheck disable=SC2086
  for one in $name; do
    [ -n "${calls[$one]:-}" ] && numbers=$((numbers + 1))
    for step in ${calls[$one]:-$one}; do
      [ -n "${seconds[$step]:-}" ] ||
        { echo "gpu_check: a step must be 1, 2, 3, 4 or one of ${!seconds[*]}, got $step" >&2; exit 2; }
      case " ${steps[*]} " in *" $step "*) ;; *) steps+=("$step") ;; esac
    done
  done
done

mkdir -p "$OUTDIR"
OUTDIR=$(cd "$OUTDIR" && pwd)
SUMMARY=$OUTDIR/summary.txt LOG=$OUTDIR/log.txt
commit=${SPECDEC_COMMIT:-$(git describe --always --dirty=+ --abbrev=12 --exclude='*' 2>/dev/null || echo unknown)}
gpu=$([ "$DEVICE" = cpu ] && echo "no GPU" || nvidia-smi --query-gpu=name --format=csv,noheader --id=0)
this="commit $commit on ${gpu:-a GPU}"
[ -s "$SUMMARY" ] || echo "$this" >"$SUMMARY"
[ "$(head -n 1 "$SUMMARY")" = "$this" ] ||
  { echo "gpu_check: $OUTDIR is of $(head -n 1 "$SUMMARY"), this is $this: name another" >&2; exit 2; }

end=$((CALL * (numbers ? numbers : 1) * SLOWER))
deadline=0  # end of the current step's time, in seconds since the start
limit=0 failed=0 stopped=

note() { printf '%-16s %4ss  %s\n' "$1" "$2" "$3" | tee -a "$SUMMARY"; }

passed() {  # never true for a changed tree, whose earlier results may be of other code
  case $commit in *+ | unknown) return 1 ;; esac
  grep -Eq "^$1 +[0-9]+s +passed" "$SUMMARY"
}

# run STEP COMMAND...: run within the step's time, with output to the log; the last line of output, or pytest's last,
# goes to the summary. A command out of time gets SIGINT, so that pytest still prints its failures.
run() {
  local step=$1 began=$SECONDS status result last; shift
  printf '\n==== %s: %s\n' "$step" "$*" >>"$LOG"
  # Without --foreground timeout interrupts a command twice, and its children too, and pytest cannot finish its report.
  env --default-signal=INT timeout "${once[@]}" -s INT -k 20 "$limit" "$@" >>"$LOG" 2>&1 </dev/null
  status=$?
  case $status in
    0) result=passed ;;
    75) result="unfinished: call it again" ;;
    124 | 137) result="FAILED, out of its $limit s" failed=1 ;;
    *) result="FAILED, exit status $status" failed=1 ;;
  esac
  last=$(tail -n 30 "$LOG" | grep -E '^[0-9]+ (passed|failed|skipped|deselected|error).* in [0-9.]+s')
  [ -n "$last" ] || last=$(tail -n 1 "$LOG")
  note "$step" $((SECONDS - began)) "$result: $(tail -n 1 <<<"$last" | cut -c 1-150)"
  [ "$(stat -c %s "$LOG")" -le 15000000 ] || { tail -c 14000000 "$LOG" >"$LOG.end"; mv "$LOG.end" "$LOG"; }
  return $status
}

skip() { note "$1" 0 "not run: $2"; }

works() {
  "$PYTHON" - "$DEVICE" <<'PY'
import sys
import torch
import specdec_kernels as sk
device = sys.argv[1]
assert device in ("cpu", sk.backends.chosen()), (
    f"backends.chosen() is {sk.backends.chosen()}: {sk.backends.lacks(device) or sk.backends.misfit()}"
)
seed = torch.tensor([1], device=device)
archs = " ".join(sk.backends.cuda_archs()) or "no GPU"
report = f"{device} runs, first uniform {sk.uniforms(seed, seed, 1).item():.6f}, binary for {archs}"
print(report + "; not rehearsed: nvcc" * (device == "cpu"))
PY
}

build() {  # uses existing libraries, built here or elsewhere, if they run here
  works && return
  TORCH_CUDA_ARCH_LIST=$("$PYTHON" -c 'import torch; print("%d.%d" % torch.cuda.get_device_capability())') \
    MAX_JOBS=$(nproc) "$PYTHON" setup.py --quiet build_ext --inplace
  works
}

# Tests whether compute-sanitizer may access the GPU, with driver calls only, in a second or two.
reaches_the_gpu() {
  compute-sanitizer --error-exitcode 99 "$PYTHON" -c '
import ctypes as c
cuda, device, context, memory = c.CDLL("libcuda.so.1"), c.c_int(), c.c_void_p(), c.c_uint64()
def ask(name, *args):
    assert (status := getattr(cuda, name)(*args)) == 0, f"{name} gives error {status}"
ask("cuInit", 0)
ask("cuDeviceGet", c.byref(device), 0)
ask("cuDevicePrimaryCtxRetain", c.byref(context), device)
ask("cuCtxSetCurrent", context)
ask("cuMemAlloc_v2", c.byref(memory), c.c_size_t(1 << 20))
ask("cuMemFree_v2", memory)
'
}

sanitize() {  # TOOL BACKEND [--few]
  local options=(--tool "$1" --error-exitcode 99 --print-limit 20) backend=$2
  [ "$1" = memcheck ] && options+=(--leak-check no)
  shift 2
  # Every tensor gets its own allocation, so reads past its end are seen, and old contents do not count as initialised.
  PYTORCH_NO_CUDA_MEMORY_CACHING=1 SPECDEC_BACKEND=$backend \
    compute-sanitizer "${options[@]}" "$PYTHON" -m bench.sanitize "$@"
}

# Prints the model's predictions with the times just measured. It is not a step, so it cannot fail.
predicted() {
  [ -f "$OUTDIR/bench.csv" ] || return 0
  printf '\n==== predicted beside measured\n' >>"$LOG"
  timeout -k 2 12 "$PYTHON" -m tools.gpu_model compare "$OUTDIR/bench.csv" 2>&1 </dev/null |
    tee "$OUTDIR/model.txt" | tee -a "$LOG"
}

# tests BACKENDS EXPRESSION FILES...: runs the tests whose names the expression selects
tests() {
  local backends=$1 expression=$2 parallel=(); shift 2
  [ $# -ge 1 ] || { echo "no file of tests is of this step"; return 0; }
  "$PYTHON" -c 'import xdist' 2>/dev/null && parallel=(-n "$WORKERS")
  SPECDEC_TEST_BACKENDS=$backends exec "$PYTHON" -m pytest "${parallel[@]}" -rfE -p no:cacheprovider \
    --continue-on-collection-errors -k "$expression" "$@"
}

# files PATTERN...: prints the files of $TESTS that match
files() {
  local file pattern
  for file in $TESTS; do
    for pattern in "$@"; do
      # shellcheck disable=SC2254
      case $file in $pattern) echo "$file"; break ;; esac
    done
  done
}

export -f works build reaches_the_gpu sanitize tests
rehearsal=() watched=() small=() brief=() on=cuda
if [ "$DEVICE" = cpu ]; then
  rehearsal=(bench.rehearsal) watched=(bench.devices) on=cpu
  small=(--batch 3 --vocabulary 1000 --replays 3) brief=(--rounds 2)
fi

touch "$LOG"
for step in "${steps[@]}"; do
  deadline=$((deadline + seconds[$step] * SLOWER))
  limit=$(((deadline < end ? deadline : end) - SECONDS))
  if [ "$step" != environment ] && [ "$step" != build ] && passed "$step"; then continue; fi
  if [ -n "$stopped" ]; then
    case "$stopped$NEED_RIGHT" in build* | *" $step "*) skip "$step" "$stopped failed"; continue ;; esac
  fi
  if [ "$limit" -lt 5 ]; then skip "$step" "no time left"; failed=1; continue; fi
  once=()
  case $step in graphs | tests-*) once=(--foreground) ;; esac
  case $step in
    environment) run environment "$PYTHON" -m "${rehearsal[@]}" bench.machine ;;
    build)
      run build bash -c build || stopped=build
      deadline=$SECONDS ;;
    smoke)
      case $DEVICE in cpu) sizes=(--batch 1 --batch 3 --vocabulary 3001) ;; *) sizes=() ;; esac
      run smoke "$PYTHON" -m "${rehearsal[@]}" bench.smoke "${sizes[@]}" || stopped=${stopped:-smoke} ;;
    kernels)
      run kernels "$PYTHON" -m "${rehearsal[@]}" bench.kernel_times --csv "$OUTDIR/kernels.csv" \
        --seconds $((limit - 8)) ;;
    cold) run cold "$PYTHON" -m "${rehearsal[@]}" bench.cold ;;
    stress) run stress "$PYTHON" -m "${rehearsal[@]}" bench.stress --seconds $((limit - 15)) "${small[@]}" ;;
    bench)
      # Peers that compile at run time are compiled first.
      timeout -k 5 60 "$PYTHON" -m "${rehearsal[@]}" bench.peers.prepare >>"$LOG" 2>&1 </dev/null
      limit=$((deadline - SECONDS))
      # shellcheck disable=SC2086
      run bench "$PYTHON" -m "${rehearsal[@]}" bench.run --device cuda --budget $((limit - 32)) --resume \
        --csv "$OUTDIR/bench.csv" --markdown "$OUTDIR/bench.md" "${brief[@]}" ${BENCH_ARGS:-}
      predicted ;;
    counters)
      run counters "$PYTHON" -m "${rehearsal[@]}" bench.counters "$OUTDIR/counters.csv" --seconds $((limit - 5)) ;;
    loop) run loop "$PYTHON" -m "${watched[@]}" bench.decode_loop ;;
    graphs) run graphs bash -c 'tests "$@"' - "$on" "" python_tests/ops/test_cuda_graph.py ;;
    tests-*)
      TESTS=${TESTS:-$("$PYTHON" python_tests/support/on_backends.py)}
      patterns=("python_tests/${step#tests-}/*") backend=$on
      case $step in
        tests-rest) patterns=(python_tests/{decode,engines,package,sharded}/\*) ;;
        tests-triton) patterns=(\*) backend=triton ;;
      esac
      # shellcheck disable=SC2046
      if [ "$DEVICE$backend" = cputriton ]; then
        skip "$step" "not rehearsed: Triton's compiler"
      else
        # Tests without a backend in their names do not need a GPU.
        run "$step" bash -c 'tests "$@"' - "$backend" "$backend" $(files "${patterns[@]}")
      fi ;;
    *)
      tool=${step%-triton} few=() backend=cuda
      [ "$tool" = racecheck ] && few=(--few)
      [ "$tool" = "$step" ] || few=(--few) backend=triton
      if [ "$DEVICE" = cpu ]; then
        run "$step" "$PYTHON" -m bench.sanitize --device cpu "${few[@]}"
      elif ! command -v compute-sanitizer >/dev/null; then
        skip "$step" "compute-sanitizer is not on the PATH"
      elif ! error=$(timeout 30 bash -c reaches_the_gpu 2>&1 </dev/null); then
        skip "$step" "compute-sanitizer cannot reach the GPU: $(tail -n 1 <<<"$error" | cut -c 1-100)"
      else
        run "$step" bash -c 'sanitize "$@"' - "$tool" "$backend" "${few[@]}"
      fi ;;
  esac
done
note total "$SECONDS" "$([ $failed = 0 ] && echo passed || echo FAILED)"
exit $failed
