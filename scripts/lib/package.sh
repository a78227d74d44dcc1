# Debian packages: made by CPack from build/package and build/release, and tried in an empty root.

# make_packages OUT
make_packages() {
  local preset packager="${DEBFULLNAME:-The twell authors} <${DEBEMAIL:-$(id -un)@$(hostname)}>"
  mkdir -p "$1" && rm -f "$1"/libtwell*_*.deb "$1"/twell_*.deb || return 1 # of an earlier run
  for preset in package release; do
    TWELL_PACKAGER=$packager "${CMAKE%cmake}cpack" --config "$ROOT/build/$preset/CPackConfig.cmake" -B "$1" \
      -D CPACK_PACKAGE_CONTACT="$packager" || return 1
  done
  rm -rf "$1/_CPack_Packages"
}

# try_packages OUT: unpacks them, builds what tests/consumer does of them by CMake and by pkg-config, and runs the
# command line with the PyTorch of .venv. lintian says more where it is installed; of the maintainer it says
# nothing, as that is whoever builds.
try_packages() (
  root=$ROOT/build/packages-root
  rm -rf "$root" && mkdir "$root" || return 1
  for package in "$1"/*.deb; do
    dpkg-deb -x "$package" "$root" && dpkg-deb -I "$package" && dpkg-deb -c "$package" || return 1
  done
  libraries=$(dirname "$(compgen -G "$root/usr/lib/*/libtwell.so")")
  # What include/twell declares is shown, friends and members too, and nothing else: no kernels of a tier, say.
  ! nm -DC --defined-only "$libraries/libtwell.so" | grep -E ' T .*(Kernels|Gate::|Team|require_)' || return 1
  export LD_LIBRARY_PATH=$libraries
  "$CMAKE" -S "$ROOT/tests/consumer" -B "$root/by-cmake" -G Ninja -DCMAKE_PREFIX_PATH="$root/usr" &&
    ninja -C "$root/by-cmake" && "$root/by-cmake/consumer" &&
    (cd "$root" && by-cmake/consumer_c) || return 1
  export PKG_CONFIG_LIBDIR=$libraries/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root
  # shellcheck disable=SC2046
  "${CXX:-g++}" -std=c++20 "$ROOT/examples/ffn_layer.cc" $(pkg-config --cflags --libs twell) \
    -o "$root/by-pkg-config" && "$root/by-pkg-config" || return 1
  # shellcheck disable=SC2046
  "${CC:-gcc}" -std=c11 "$ROOT/examples/ffn_layer.c" $(pkg-config --cflags --libs twell) -lm \
    -o "$root/by-c-compiler" && (cd "$root" && ./by-c-compiler) || return 1
  unset LD_LIBRARY_PATH
  uses_program "$root" && uses_documents "$root" || return 1
  ! command -v lintian >/dev/null || lintian --allow-root --fail-on error --tag-display-limit 0 \
    --suppress-tags bogus-mail-host,bogus-mail-host-in-debian-changelog,root-in-contact "$1"/*.deb
)

# uses_program ROOT: with a PyTorch it computes, without one it says in a line what is missing.
uses_program() {
  local said
  TWELL_PYTHON=$VENV/bin/python "$1/usr/bin/twell" bench ffn --width 64 --neurons 256 --tokens 1 --repeats 1 \
    --seconds 0.001 || return 1
  if said=$(TWELL_PYTHON=no-python "$1/usr/bin/twell" --version 2>&1); then
    echo "twell runs without PyTorch: $said" && return 1
  fi
  [[ $said == "twell: error: no-python has no PyTorch, expected "* && $said != *$'\n'* ]] || {
    echo "twell without PyTorch says: $said" && return 1
  }
}

# uses_documents ROOT: the completion completes, the manual page has every command.
uses_documents() {
  local found
  found=$(bash -c 'source "$1" && COMP_WORDS=(twell bench f) COMP_CWORD=2 && _twell && echo "${COMPREPLY[*]}"' \
    bash "$1/usr/share/bash-completion/completions/twell") || return 1
  [[ $found == ffn ]] || { echo "twell bench f: completed to '$found'" && return 1; }
  zgrep -q 'twell bench ffn' "$1/usr/share/man/man1/twell.1.gz"
}
