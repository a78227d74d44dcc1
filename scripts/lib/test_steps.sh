# The steps of scripts/test. Each is a function that prints to its log and returns its status.

RESULTS=$ROOT/build/test-results

run_layers() { "$ROOT/scripts/check_layers"; }
run_format() { "$ROOT/scripts/check_format"; }
run_ruff() { (cd "$ROOT" && "$VENV/bin/ruff" check --cache-dir build/ruff .); }
run_mypy() { (cd "$ROOT" && "$VENV/bin/mypy"); }
run_api() { "$ROOT/scripts/site" "$ROOT/build/site"; }
run_tidy() { "$ROOT/scripts/check_tidy" "$ROOT/build/tidy"; }
run_shellcheck() { shellcheck "$ROOT"/scripts/{setup,build,twell,demo,test,soak,wheel,package,check_format,gpu_check,site,release} "$ROOT/.ci/run"; }
run_package() { "$ROOT/scripts/package"; }
run_soak() { rm -rf "$ROOT/build/soak-test" && "$ROOT/scripts/soak" 10 --out "$ROOT/build/soak-test"; }

# run_ctest PRESET: GoogleTest programs and pytest also write a file with their single cases.
run_ctest() {
  rm -rf "$ROOT/build/$1/pytest" && mkdir -p "$RESULTS/$1" &&
    GTEST_OUTPUT="xml:$RESULTS/$1/" ctest --test-dir "$ROOT/build/$1" --parallel "$(nproc)" \
      --output-on-failure --no-tests=error --output-junit "$RESULTS/$1.ctest.xml"
}

# lacks_aarch64: installs what tests of 64-bit Arm need; prints what is missing still, and fails where nothing is.
lacks_aarch64() {
  (ensure_packages aarch64) || true
  ! has_tools aarch64-linux-gnu-g++ qemu-aarch64
}

# with_cuda BUILD_DIRECTORY: ON or OFF, as it is configured.
with_cuda() { sed -n 's/^TWELL_CUDA:BOOL=//p' "$1/CMakeCache.txt"; }

# libtwell alone: built without PyTorch, installed, found by find_package and used by a program; with
# libtwell_cuda where there is nvcc. Its users need no toolkit unless they ask for that.
run_consumer() {
  # As deep as build/release, whose objects ccache finds: paths are relative.
  local dir=$ROOT/build/consumer alone=$ROOT/build/libtwell cuda
  rm -rf "$dir" "$alone" &&
    "$CMAKE" -S "$ROOT" -B "$alone" -G Ninja -DTWELL_LM=OFF -DTWELL_TESTS=OFF \
      -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$dir/prefix" -DTWELL_CUDA_ARCHITECTURES=80 &&
    cuda=$(with_cuda "$alone") &&
    ninja -C "$alone" -j "$(jobs_here)" twell &&
    { [[ $cuda != ON ]] || ninja -C "$alone" -j "$(jobs_here)" twell_cuda; } &&
    "$CMAKE" --install "$alone" &&
    "$CMAKE" -S "$ROOT/tests/consumer" -B "$dir/program" -G Ninja -DCMAKE_PREFIX_PATH="$dir/prefix" \
      -DWITH_CUDA="$cuda" &&
    ninja -C "$dir/program" && "$dir/program/consumer" && (cd "$dir/program" && ./consumer_c) &&
    { [[ $cuda != ON ]] || "$dir/program/consumer_cuda"; } &&
    ! ldd "$dir/program/consumer" | grep -i torch &&
    "$CMAKE" -S "$ROOT/tests/consumer" -B "$dir/no-toolkit" -G Ninja -DCMAKE_PREFIX_PATH="$dir/prefix" \
      -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON &&
    embeds "$dir/embedding" "$cuda"
}

# embeds DIRECTORY WITH_CUDA: a project that embeds this one builds and runs, and has nothing but libtwell, its CUDA
# half and the file readers among its targets.
embeds() {
  local ours
  "$CMAKE" -S "$ROOT/tests/consumer" -B "$1" -G Ninja -DTWELL_SOURCE="$ROOT" -DCMAKE_BUILD_TYPE=Release \
    -DWITH_CUDA="$2" -DTWELL_CUDA_ARCHITECTURES=80 &&
    ninja -C "$1" -j "$(jobs_here)" consumer && "$1/consumer" &&
    ours=$(ninja -C "$1" -t targets all | grep -E '^twell/(.*/)?(tests|bench|examples|cli|corpus|device|decoder|engine|convert|synth|train|measure|torch_ops|torch)/' || true) &&
    { [[ -z $ours ]] || { echo "built by projects that embed this one: $ours" >&2 && return 1; }; }
}

# record NAME STATUS SECONDS [REASON]
record() {
  printf '%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "${4:-}" >>"$RESULTS/steps.tsv"
}

# check NAME COMMAND...: one step whose failure does not stop those after it.
check() {
  local name=$1 start=$SECONDS
  shift
  if step "$name" "$@"; then
    record "$name" passed $((SECONDS - start))
  else
    record "$name" failed $((SECONDS - start)) "$(log_of "$name")"
    return 1
  fi
}

skip() {
  say "$(clock) skipped: $1: $2"
  record "$1" skipped 0 "$2"
}

# build_check PRESET: a build that fails is a failed step and not the end.
build_check() {
  local start=$SECONDS
  if (build "$1"); then
    record "Build $1" passed $((SECONDS - start))
  else
    record "Build $1" failed $((SECONDS - start)) "$(log_of "Build $1")"
    return 1
  fi
}

# test_preset PRESET NAME: builds it and runs its tests; fails where it does not build.
test_preset() {
  if ! build_check "$1"; then
    skip "$2" "the $1 build failed"
    return 1
  fi
  check "$2" run_ctest "$1" || true
}
