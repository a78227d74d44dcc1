# shellcheck shell=bash
# The parts of scripts/gpu_check: what each needs, how long it may take, what it runs.

GPU_BUILD=$ROOT/build/gpu
GPU_LM_BUILD=$ROOT/build/gpu-lm
GPU_BUNDLE=$ROOT/build/gpu-bundle
GPU_RESULTS=$ROOT/build/gpu-results
# What the command line includes besides PyTorch, and of it the benchmark.
LM_HEADERS=(fmt/format.h nlohmann/json.hpp CLI/CLI.hpp pcre2.h utf8proc.h)

SMI_LIMIT=10 # seconds; nvidia-smi hangs where a driver does

# The first line that nvidia-smi prints of a field; nothing where it fails, hangs, or says what is no name or number.
ask_gpu() {
  local said
  said=$(timeout --kill-after=1 "$SMI_LIMIT" nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null |
    tr -d '\0') || return 0
  said=${said%%$'\n'*}
  [[ $said =~ [[:alnum:]] && $said != \[* && $said != "No devices"* ]] || return 0
  ! iconv -f UTF-8 -t UTF-8 <<<"$said" >/dev/null 2>&1 || echo "$said"
}

# gpu_check asks once, for all parts.
gpu_name() { if [[ ${GPU_NAME+asked} ]]; then echo "$GPU_NAME"; else ask_gpu name; fi; }

# Machine code for this GPU: the instructions of Hopper and later that are not forward compatible need
# the "a" of their architecture.
gpu_architecture() {
  local capability
  capability=$(ask_gpu compute_cap | tr -d .)
  case $capability in
    90) echo 90a-real ;;
    *) echo "$capability-real" ;;
  esac
}

# Two calls, each within ten minutes: what needs the GPU alone first, what needs PyTorch or takes its time second.
FIRST_PARTS=(build ceilings test bench train)
SECOND_PARTS=(memcheck racecheck build-lm operators engine bench-ffn)
# A third, of what is to be known before the next kernels are written. Each probe is a process of its own: one that
# hangs or fails costs its own time alone.
PROBE_PARTS=(build-bench probe-gate probe-rows probe-graph)
ALL_PARTS=("${FIRST_PARTS[@]}" "${SECOND_PARTS[@]}" "${PROBE_PARTS[@]}")

# Seconds; those of a call add up to at most CALL_LIMIT, which leaves the rest of 600 to what stands between.
CALL_LIMIT=560
limit_of() {
  case $1 in
    build) echo 210 ;;
    ceilings) echo 70 ;;
    test) echo 90 ;;
    bench) echo 140 ;;
    train) echo 50 ;;
    memcheck) echo 110 ;;
    racecheck) echo 50 ;;
    build-lm) echo 200 ;;
    operators) echo 50 ;;
    engine) echo 110 ;;
    bench-ffn) echo 40 ;;
    build-bench) echo 210 ;;
    probe-gate) echo 60 ;;
    probe-rows) echo 90 ;;
    probe-graph) echo 30 ;;
  esac
}

describe() {
  case $1 in
    build) echo "libtwell_cuda, its tests and the benchmark, for this GPU's architecture, into build/gpu" ;;
    ceilings) echo "twell_gpu_bench: what the GPU does at best, and the layer on integers, bit by bit" ;;
    test) echo "cuda_test: every kernel shape against the fp64 definition" ;;
    bench) echo "twell_gpu_bench: layers beside the dense one, row by row; every GEMM shape, every split" ;;
    train) echo "twell_gpu_bench: forward and backward of a layer beside the GEMMs of dense training" ;;
    memcheck) echo "cuda_test under compute-sanitizer memcheck" ;;
    racecheck) echo "the tests of tails and overflow under compute-sanitizer racecheck" ;;
    build-lm) echo "the operators for CUDA tensors and the command line, into build/gpu-lm" ;;
    operators) echo "cuda/tests/test_torch_cuda.py: torch.ops.twell on CUDA tensors, in a graph, its errors" ;;
    engine) echo "generate, stats and train on the GPU beside the CPU; bench model with energy" ;;
    bench-ffn) echo "twell bench ffn: one layer through the operators, beside PyTorch's dense layer" ;;
    build-bench) echo "libtwell_cuda and the benchmark alone, for this GPU's architecture, into build/gpu" ;;
    probe-gate) echo "(some 10 s) the gate's GEMM: whole, in blocks, with ReLU, with cublasLt's mask, on fewer SMs" ;;
    probe-rows) echo "(some 25 s) random rows by bulk copies and by loads, alone and beside the gate's GEMM" ;;
    probe-graph) echo "(some 5 s) one, two and four gates of a token in a graph: fixed time and rate" ;;
  esac
}

# What twell_gpu_bench measures in a part; none in the others.
bench_selection() {
  case $1 in
    ceilings) echo exact ;;
    bench) echo layers,sweeps ;;
    train) echo train ;;
    probe-*) echo "$1" ;;
  esac
}

# built PROGRAM: where the first build that has it has it, if any.
built() {
  local build
  for build in "$GPU_BUILD" "$ROOT"/build/{release,core}; do
    [[ ! -x $build/cuda/$1 ]] || { echo "$build/cuda/$1" && return; }
  done
}

# list_variants PART: those it measures, one a line.
list_variants() {
  local selection bench listed
  selection=$(bench_selection "$1")
  [[ $selection ]] || return 0
  # Its list of variants needs no GPU.
  bench=$(built bench/twell_gpu_bench)
  if [[ $bench ]] && listed=$("$bench" --list --only "$selection" 2>/dev/null); then
    printf '%s\n' "$listed" | sed 's/^/    /'
  elif [[ $bench ]]; then
    echo "    ${bench#"$ROOT"/} is older than this part and lists nothing of it: build twell_gpu_bench again"
  else
    echo "    its variants are listed once twell_gpu_bench is built: cmake --preset core -DTWELL_CUDA=ON &&" \
      "ninja -C build/core twell_gpu_bench"
  fi
}

# The probes from end to end on the emulated GPU, in seconds: what they compute counts, no time does.
try_probes() {
  local toy
  toy=$(built tests/twell_gpu_probes_toy)
  if [[ ! $toy ]]; then
    say "the probes can be tried without a GPU once this is built: scripts/build release twell_gpu_probes_toy"
    return 0
  fi
  say "the probes at toy sizes on an emulated GPU:"
  "$toy" --only "$1" --tokens 1300 --width 64 --neurons 136 --nnz 8 --runs 1 --sm-rows 64
}

has_build_tools() {
  has_tools nvcc cmake ninja || return 1
  cmake_serves cmake || { echo "cmake is older than 3.25" && return 1; }
}

# Those that are neither installed nor in the bundle.
missing_headers() {
  local header prefix
  for header in "${LM_HEADERS[@]}"; do
    for prefix in /usr /usr/local "$GPU_BUNDLE"; do
      [[ ! -f $prefix/include/$header ]] || continue 2
    done
    printf ' %s' "$header"
  done
}

# lacks PART: why it cannot run here, or nothing.
lacks() {
  local headers
  [[ $(gpu_name) ]] || { echo "no NVIDIA GPU" && return 0; }
  case $1 in
    build | build-bench)
      has_build_tools || return 0
      gtest_installed || [[ -f $GPU_BUNDLE/googletest/CMakeLists.txt ]] ||
        echo "no GoogleTest; run 'scripts/gpu_check bundle' where its sources are, and bring build/gpu-bundle"
      ;;
    memcheck | racecheck) has_tools compute-sanitizer || return 0 ;;
    build-lm)
      has_build_tools || return 0
      [[ $(gpu_python) ]] || { echo "no Python with PyTorch; set TWELL_PYTHON" && return 0; }
      headers=$(missing_headers)
      [[ -z $headers ]] ||
        echo "no$headers; run 'scripts/gpu_check bundle' where they are installed, and bring build/gpu-bundle"
      ;;
    operators)
      [[ $(gpu_python) ]] || { echo "no Python with PyTorch; set TWELL_PYTHON" && return 0; }
      "$(gpu_python)" -c 'import pytest' 2>/dev/null || echo "that Python has no pytest"
      ;;
  esac
}

# not_built PART: the program it needs, if that is not there.
not_built() {
  case $1 in
    test | memcheck | racecheck)
      [[ -x $GPU_BUILD/cuda/tests/cuda_test ]] || echo "cuda_test is not built; run the part build"
      ;;
    ceilings | bench | train | probe-*)
      [[ -x $GPU_BUILD/cuda/bench/twell_gpu_bench ]] ||
        echo "twell_gpu_bench is not built; run the part build-bench, which needs cuBLAS, CLI11 and nlohmann-json"
      ;;
    operators | engine | bench-ffn)
      [[ -x $GPU_LM_BUILD/cli/twell && -f $GPU_LM_BUILD/src/torch_ops/libtwell_lm_cuda.so ]] ||
        echo "the command line is not built; run the part build-lm"
      ;;
  esac
}

# An interpreter that has PyTorch with CUDA, if there is one.
gpu_python() {
  local python
  for python in "${TWELL_PYTHON:-}" "$VENV/bin/python" python3; do
    [[ $python ]] && "$python" -c 'import sys, torch; sys.exit(torch.version.cuda is None)' 2>/dev/null &&
      command -v "$python" && return
  done
  return 0
}

gtest_installed() {
  compgen -G '/usr/lib/*/cmake/GTest/GTestConfig.cmake' >/dev/null ||
    compgen -G '/usr/local/lib*/cmake/GTest/GTestConfig.cmake' >/dev/null
}

# PCRE2 and utf8proc have libraries: for processors of this machine's kind.
bundle_sources() {
  local from=/usr/src/googletest header library name
  [[ -f $from/CMakeLists.txt ]] || die "no sources of GoogleTest in $from (package libgtest-dev)"
  for header in "${LM_HEADERS[@]}"; do
    [[ -f /usr/include/$header ]] ||
      die "no /usr/include/$header (packages libfmt-dev nlohmann-json3-dev libcli11-dev libpcre2-dev libutf8proc-dev)"
  done
  rm -rf "$GPU_BUNDLE"
  mkdir -p "$GPU_BUNDLE"/{include,lib}
  cp -r "$from" "$GPU_BUNDLE/googletest"
  rm -rf "$GPU_BUNDLE/googletest/"{,googletest/,googlemock/}{test,samples,docs}
  for header in "${LM_HEADERS[@]}"; do cp -r "/usr/include/${header%%/*}" "$GPU_BUNDLE/include"; done
  for name in pcre2-8 utf8proc; do
    library=$(compgen -G "/usr/lib/*/lib$name.a") || die "no /usr/lib/*/lib$name.a (package lib${name%-8}-dev)"
    cp "${library%%$'\n'*}" "$GPU_BUNDLE/lib"
  done
  for name in CLI11 fmt nlohmann_json; do
    mkdir -p "$GPU_BUNDLE/lib/cmake/$name"
    cp "$ROOT/cmake/GpuBundle.cmake" "$GPU_BUNDLE/lib/cmake/$name/${name}Config.cmake"
  done
  say "build/gpu-bundle: $(du -sh "$GPU_BUNDLE" | cut -f 1)"
}

# Warnings are no errors in what is built here: these compilers have not met the sources before.
configure_gpu() {
  local gtest=()
  gtest_installed || gtest=(-DTWELL_GTEST_SOURCE="$GPU_BUNDLE/googletest")
  cmake -S "$ROOT" -B "$GPU_BUILD" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTWELL_WERROR=OFF -DTWELL_LM=OFF -DTWELL_CUDA=ON \
    -DCMAKE_PREFIX_PATH="$GPU_BUNDLE" -DTWELL_CUDA_ARCHITECTURES="$(gpu_architecture)" ${gtest[@]+"${gtest[@]}"}
}

run_build-bench() { configure_gpu && ninja -C "$GPU_BUILD" -j "$(jobs_here)" twell_gpu_bench; }

run_build() {
  configure_gpu && ninja -C "$GPU_BUILD" -j "$(jobs_here)" cuda_test &&
    # Without what it needs there is no benchmark, and that part says so.
    { ! ninja -C "$GPU_BUILD" -t query twell_gpu_bench >/dev/null 2>&1 || ninja -C "$GPU_BUILD" twell_gpu_bench; }
}

run_build-lm() {
  cmake -S "$ROOT" -B "$GPU_LM_BUILD" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTWELL_WERROR=OFF -DTWELL_CUDA=ON \
    -DTWELL_TESTS=OFF -DCMAKE_PREFIX_PATH="$GPU_BUNDLE" -DTWELL_PYTHON="$(gpu_python)" \
    -DTWELL_CUDA_ARCHITECTURES="$(gpu_architecture)" &&
    ninja -C "$GPU_LM_BUILD" -j "$(jobs_here)" twell_cli twell_torch_ops twell_torch_cuda_ops twell_lm_cuda
}

run_operators() {
  TWELL_TORCH_LIBRARY=$GPU_LM_BUILD/src/torch_ops/libtwell_torch.so \
    TWELL_TORCH_CUDA_LIBRARY=$GPU_LM_BUILD/src/torch_ops/libtwell_torch_cuda.so \
    "$(gpu_python)" -m pytest "$ROOT/cuda/tests"
}

run_engine() {
  python3 "$LIB/gpu_engine.py" "$GPU_LM_BUILD/cli/twell" "$GPU_RESULTS" "$ROOT/docs/development.md"
}

run_bench-ffn() {
  "$GPU_LM_BUILD/cli/twell" bench ffn --device cuda --tokens 1,16,512 --nnz 29,563 --repeats 5 --seconds 0.05 \
    --json "$GPU_RESULTS/bench-ffn.json"
}

cuda_test() {
  local name=$1
  shift
  OMP_NUM_THREADS=$(nproc) "$@" "$GPU_BUILD/cuda/tests/cuda_test" --gtest_output="json:$GPU_RESULTS/$name.json" \
    ${GPU_FILTER:+--gtest_filter="$GPU_FILTER"}
}

run_test() { cuda_test test; }

# Failing API calls are no finding: one test asks for more memory than there is, and checks what is said then.
run_memcheck() {
  cuda_test memcheck compute-sanitizer --tool memcheck --leak-check full --report-api-errors no --error-exitcode 9
}

# Racecheck slows kernels by two orders of magnitude; these cases reach every barrier.
run_racecheck() {
  GPU_FILTER='*TailSizes*:*EveryDensityAndCapacity*:*ManyTilesAndNeurons*' \
    cuda_test racecheck compute-sanitizer --tool racecheck --error-exitcode 9
}

measure() {
  "$GPU_BUILD/cuda/bench/twell_gpu_bench" --only "$(bench_selection "$1")" --json "$GPU_RESULTS/$1.jsonl" "${@:2}"
}

run_ceilings() { measure ceilings; }
run_bench() { measure bench; }
run_train() { measure train; }
# Differences of a few per cent decide.
run_probe-gate() { measure probe-gate --runs 31; }
run_probe-rows() { measure probe-rows --runs 31; }
run_probe-graph() { measure probe-graph --runs 31; }

# note_part PART OUTCOME SECONDS [REASON]
note_part() {
  local others
  others=$(grep -v "^$1	" "$GPU_RESULTS/parts.tsv" 2>/dev/null || true)
  { [[ -z $others ]] || printf '%s\n' "$others"; printf '%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "${4:-}"; } >"$GPU_RESULTS/parts.tsv.new"
  mv "$GPU_RESULTS/parts.tsv.new" "$GPU_RESULTS/parts.tsv"
}
