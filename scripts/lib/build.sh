# Configure and build by preset.

# g++ 12 or later under whichever name this system has it; CXX goes first.
pick_compiler() {
  local name major
  [[ -z ${CXX:-} ]] || return 0
  for name in g++ g++-14 g++-13 g++-12; do
    major=$("$name" -dumpversion 2>/dev/null | cut -d. -f1) || continue
    if ((major >= 12)); then
      export CXX=$name
      return 0
    fi
  done
  die "no g++ 12 or later found; install one or name a C++20 compiler in CXX"
}

# More arguments, where a preset needs what is not in this repository.
CMAKE_MORE=()
run_cmake() { "$CMAKE" --fresh --preset "$1" -S "$ROOT" "${CMAKE_MORE[@]}"; }

# Configures only when what it depends on changed; ninja itself follows the CMakeLists.
configure() {
  local preset=$1 dir=$ROOT/build/$1 key
  [[ $preset == fuzz || $preset == tsan ]] || pick_compiler
  # mpicxx: what CMake did not find when it was first asked it does not look for again.
  key="$(hash_of "$ROOT/CMakePresets.json") ${CXX:-} $CMAKE $(readlink -f "$VENV")"
  key+=" $(command -v mpicxx || true) ${CMAKE_MORE[*]}"
  [[ -f $dir/build.ninja && $(cat "$dir/.configured" 2>/dev/null) == "$key" ]] && return 0
  step "Configure $preset" run_cmake "$preset"
  echo "$key" >"$dir/.configured"
}

# can_build PRESET: this user may write where it is built, and to what is there.
can_build() {
  local at=$ROOT/build/$1
  [[ ! -e $ROOT/build/.lock || -w $ROOT/build/.lock ]] || return 1
  [[ ! -e $at/.ninja_log || -w $at/.ninja_log ]] || return 1
  while [[ ! -e $at ]]; do at=$(dirname "$at"); done
  [[ -w $at && (! -e $ROOT/build || -w $ROOT/build) ]]
}

# build PRESET [TARGET...]
build() {
  local preset=$1 dir=$ROOT/build/$1
  shift
  configure "$preset"
  if ninja -C "$dir" -n "$@" 2>/dev/null | grep -q 'no work to do'; then
    return 0
  fi
  step "Build $preset${*:+: $*}" ninja -C "$dir" -j "$(jobs_here)" "$@"
}
