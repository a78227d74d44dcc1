# Debian and Ubuntu packages, by group.

# packages_of GROUP
packages_of() {
  case $1 in
    build) echo "$(compiler_package) cmake ninja-build ccache python3 python3-venv ca-certificates" \
      "libfmt-dev nlohmann-json3-dev libcli11-dev libpcre2-dev libutf8proc-dev" \
      "libgtest-dev libgmock-dev" ;;
    # libomp: clang's own omp.h. python3-dev: what torch.compile writes includes Python.h.
    test) echo git shellcheck doxygen clang-tidy-14 libomp-14-dev libopenmpi-dev openmpi-bin \
      python3-dev ;;
    fuzz) echo clang-14 libclang-rt-14-dev libomp-14-dev ;;
    package) echo dpkg-dev file pkg-config libopenmpi-dev ;;
    release) echo debootstrap ;;
    aarch64) echo g++-aarch64-linux-gnu qemu-user ;;
    *) die "no package group '$1'; there are: build test fuzz package release aarch64" ;;
  esac
}

# Ubuntu 22.04 calls g++ 11 g++; C++20 as used here needs 12.
compiler_package() {
  case $(. /etc/os-release && echo "$ID-$VERSION_ID") in
    ubuntu-22.*) echo g++-12 ;;
    *) echo g++ ;;
  esac
}

# Later releases no longer have LLVM 14; what uses it says so and is skipped.
is_optional() { [[ $1 == *-14 || $1 == *-14-dev ]]; }

is_installed() { dpkg-query -W -f '${db:Status-Abbrev}' "$1" 2>/dev/null | grep -q '^.i'; }

is_available() { apt-cache show --no-all-versions "$1" >/dev/null 2>&1; }

missing_packages() {
  local name
  for name in "$@"; do
    is_installed "$name" || printf '%s\n' "$name"
  done
}

as_root() {
  if ((EUID == 0)); then "$@"; else sudo "$@"; fi
}

apt_update() { as_root apt-get update -q; }

apt_install() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"
}

# ensure_packages GROUP...: installs what is missing; asks nothing of the system when nothing is.
ensure_packages() {
  local group names=() missing wanted=() name noted=$ROOT/build/unavailable-packages
  for group in "$@"; do
    # shellcheck disable=SC2207
    names+=($(packages_of "$group"))
  done
  command -v dpkg-query >/dev/null || {
    say "note: no Debian packages here; needed are the equivalents of: ${names[*]}"
    return 0
  }
  # What the distribution does not have was noted before and is not asked for again.
  missing=$(missing_packages "${names[@]}" | grep -vxFf <(cat "$noted" 2>/dev/null) || true)
  [[ -n $missing ]] || return 0
  ((EUID == 0)) || command -v sudo >/dev/null ||
    die "these packages are missing, and neither root nor sudo is here to install them:" $missing
  mkdir -p "$ROOT/build"
  step "Debian packages: update the lists" apt_update
  for name in $missing; do
    if is_optional "$name" && ! is_available "$name"; then
      say "note: this release has no package $name"
      echo "$name" >>"$noted"
    else
      wanted+=("$name")
    fi
  done
  ((${#wanted[@]} == 0)) || step "Debian packages: ${wanted[*]}" apt_install "${wanted[@]}"
}
