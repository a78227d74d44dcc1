# The backend for llama.cpp. It is built against a tree of theirs, and tested with what was built
# from that tree with shared libraries (-DBUILD_SHARED_LIBS=ON -DGGML_BACKEND_DL=ON).

# use_llama_cpp [--llama-cpp DIR]: or TWELL_LLAMA_CPP names the tree; TWELL_LLAMA_CPP_BUILD a build of it, which is
# the tree's build/ unless given.
use_llama_cpp() {
  [[ ${1:-} != --llama-cpp ]] || TWELL_LLAMA_CPP=${2:-}
  local tree=${TWELL_LLAMA_CPP:-}
  [[ $tree ]] || die "the backend needs a tree of llama.cpp: --llama-cpp DIR, or TWELL_LLAMA_CPP=DIR"
  [[ -f $tree/ggml/src/ggml-backend-impl.h ]] ||
    die "$tree/ggml/src/ggml-backend-impl.h: not there; --llama-cpp names a tree of llama.cpp"
  tree=$(cd "$tree" && pwd -P)
  local built=${TWELL_LLAMA_CPP_BUILD:-$tree/build}
  CMAKE_MORE=("-DTWELL_LLAMA_CPP=$tree")
  [[ ! -f $built/bin/libggml-base.so ]] || CMAKE_MORE+=("-DTWELL_LLAMA_CPP_BUILD=$built")
  TWELL_LLAMA_CPP=$tree TWELL_LLAMA_CPP_BUILD=$built
}

# lacks_llama_cpp: prints what the tests of the backend lack, if anything.
lacks_llama_cpp() {
  local program bin
  [[ ${TWELL_LLAMA_CPP:-} ]] || { echo "no tree of llama.cpp; TWELL_LLAMA_CPP or --llama-cpp names one" && return; }
  bin=${TWELL_LLAMA_CPP_BUILD:-$TWELL_LLAMA_CPP/build}/bin
  for program in libggml.so llama-quantize llama-perplexity llama-bench llama-cli llama-completion llama-server; do
    [[ -e $bin/$program ]] || { echo "no $program in $bin; TWELL_LLAMA_CPP_BUILD names the build" && return; }
  done
}

run_ggml() {
  ctest --test-dir "$ROOT/build/ggml/ggml" --output-on-failure --no-tests=error &&
    TWELL_BACKEND=$ROOT/build/ggml/ggml/libggml-twell.so TWELL_LLAMA_CPP=$TWELL_LLAMA_CPP \
      TWELL_LLAMA_CPP_BUILD=$TWELL_LLAMA_CPP_BUILD "$VENV/bin/python" -m pytest -v -rs "$ROOT/ggml/tests"
}
