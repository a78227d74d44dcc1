# What scripts/release builds beside the packages, and the bare root in which it tries all of it.

version_here() { sed -n 's/^__version__ = "\(.*\)"/\1/p' "$ROOT/python/twell/__init__.py"; }

# empty_out DIR: makes it, or removes what an earlier run left there and nothing else.
empty_out() {
  mkdir -p -- "$1" || return 1
  if [[ -n $(ls -A -- "$1") ]]; then
    [[ -f $1/.twell-release ]] || return 1
    rm -rf -- "${1:?}"/* || return 1
  fi
  touch "$1/.twell-release"
}

make_sdist() {
  pip_install -r "$ROOT/scripts/requirements/wheel.txt" &&
    (cd "$ROOT" && "$VENV/bin/python" -c 'import sys
from scikit_build_core.build import build_sdist
print(build_sdist(sys.argv[1]))' "$1")
}

# The first archive that apt reads here, and its release: "http://… bookworm".
debian_archive() {
  apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' | head -n 1
}

# make_root ROOT: Debian's essential packages and apt, and of this machine only what reaches the
# archives.
make_root() {
  local archive codename file
  read -r archive codename < <(debian_archive)
  [[ -n $codename ]] || {
    say "apt names no archive: run apt-get update"
    return 1
  }
  as_root rm -rf "$1" &&
    as_root debootstrap --variant=minbase "$codename" "$1" "$archive" &&
    as_root cp /etc/resolv.conf "$1/etc/" &&
    as_root rm -f "$1/etc/apt/sources.list" || return 1
  for file in apt/sources.list apt/sources.list.d pip.conf; do
    [[ ! -e /etc/$file ]] || as_root cp -r -T "/etc/$file" "$1/etc/$file" || return 1
  done
}

# in_root ROOT COMMAND: by its shell, with nothing of this environment. What is mounted goes away
# with it.
in_root() {
  as_root unshare --mount --propagation private bash -euc '
    mount -t proc proc "$1/proc"
    mount --rbind /dev "$1/dev"
    mount --rbind /sys "$1/sys"
    exec chroot "$1" env -i HOME=/root LANG=C.UTF-8 PATH=/usr/local/bin:/usr/bin:/usr/sbin:/bin:/sbin \
      DEBIAN_FRONTEND=noninteractive bash -euxc "$2"' bash "$@"
}

install_packages_in_root() {
  in_root "$1" '
    apt-get update -q
    apt-get install -q -y ca-certificates
    apt-get install -q -y --no-install-recommends /release/*.deb python3-venv g++ pkg-config' || return 1
  # Archives may be reached by way of a certificate of this machine.
  as_root cp /etc/ssl/certs/ca-certificates.crt "$1/etc/ssl/certs/"
}

# PyTorch first, without what it loads only when used (docs/development.md), and then the wheel.
install_wheel_in_root() {
  in_root "$1" '
    python3 -m venv /venv
    pip() { /venv/bin/python -m pip install --progress-bar off --no-input --no-cache-dir "$@"; }
    pip --no-deps -r /release-lib/requirements/torch.txt
    /venv/bin/python /release-lib/lib/torch_requirements.py list >/torch-needs.txt
    pip -r /torch-needs.txt
    pip /release/twell-*.whl --no-deps'
}

run_readme_in_root() {
  in_root "$1" '
    mkdir -p /tmp/readme && cd /tmp/readme
    /venv/bin/python -m twell info
    /venv/bin/python /release-lib/lib/documents.py python /release-lib/README.md >readme.py
    /venv/bin/python readme.py
    export TWELL_PYTHON=/venv/bin/python
    twell --version
    /venv/bin/python /release-lib/lib/documents.py run twell /release-lib/README.md
    g++ -std=c++20 /release-lib/ffn_layer.cc $(pkg-config --cflags --libs twell) -o layer
    ./layer'
}

# try_release OUT
try_release() {
  local root=$ROOT/build/release-root
  step "A bare root" make_root "$root"
  as_root mkdir -p "$root/release" "$root/release-lib"
  as_root cp "$1"/* "$root/release"
  as_root cp -r "$ROOT"/scripts/{lib,requirements} "$ROOT/README.md" "$ROOT/examples/ffn_layer.cc" \
    "$root/release-lib"
  step "Debian packages, installed there" install_packages_in_root "$root"
  step "The wheel, installed there" install_wheel_in_root "$root"
  step "README's lines, there" run_readme_in_root "$root"
  as_root rm -rf "$root"
}
