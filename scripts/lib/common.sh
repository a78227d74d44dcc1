# Shared by the scripts: where things are, and steps with a clock, a log file and signs of life.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
LIB=$ROOT/scripts/lib
LOGS=$ROOT/build/logs
VENV=$ROOT/.venv

# --help in front prints the comment at the top of a script; that of scripts/twell is the program's.
if [[ ${1-} =~ ^(-h|--help)$ && ${0##*/} != twell ]]; then
  sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0"
  exit
fi

# Progress goes to standard error: the output of `scripts/twell` belongs to the program.
say() { printf '%s\n' "$*" >&2; }
clock() { printf '[%3d s]' "$SECONDS"; }
die() {
  say "error: $*"
  exit 1
}

# log_of NAME: the log file of a step; a name may have 255 bytes.
log_of() {
  mkdir -p "$LOGS"
  printf '%s/%s.log' "$LOGS" "$(tr -cs 'A-Za-z0-9.\n' '-' <<<"$1" | sed 's/-$//' | cut -c 1-200)"
}

# Prints the last line of a log every 20 s, so that a long step is seen to move.
heartbeat() {
  local log=$1
  while sleep 20 >/dev/null 2>&1; do
    say "$(clock)   … $(tail -n 1 "$log" | tr -d '\r' | cut -c 1-100)"
  done
}

# step NAME COMMAND...: runs COMMAND with its output in a log; when it fails, shows where and the end.
step() {
  local name=$1 log status=0 beat
  shift
  log=$(log_of "$name")
  say "$(clock) $name"
  : >"$log"
  heartbeat "$log" &
  beat=$!
  "$@" >"$log" 2>&1 </dev/null || status=$?
  kill "$beat" 2>/dev/null || true
  wait "$beat" 2>/dev/null || true
  if ((status)); then
    say "$(clock) FAILED: $name (exit $status). The end of $log:"
    tail -n 25 "$log" | sed 's/^/    /' >&2
  fi
  return "$status"
}

# has_tools COMMAND...: else prints which one is missing.
has_tools() {
  local tool
  for tool in "$@"; do
    command -v "$tool" >/dev/null || { echo "no $tool" && return 1; }
  done
}

# cmake_serves CMAKE: it is 3.25 or later (presets of version 6).
cmake_serves() {
  [[ -x $(command -v "$1") ]] &&
    "$1" --version | awk '/version/ {split($3, v, "."); exit !(v[1] > 3 || v[1] == 3 && v[2] >= 25)}'
}

# Parallel compilations: one a core, and at most one per 1.5 GiB of free memory (a unit that uses
# LibTorch takes up to 1.2 GiB).
jobs_here() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/MemAvailable/ {print int($2 / 1572864)}' /proc/meminfo)
  ((memory < 1)) && memory=1
  echo $((cores < memory ? cores : memory))
}
