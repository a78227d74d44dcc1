# The Python environment .venv: PyTorch for its headers and libraries, and the tests' packages.

# hash_of FILE... : one line that changes when a file does.
hash_of() { cat "$@" | sha256sum | cut -c 1-16; }

stamp_is() { [[ -f $VENV/.stamp-$1 && $(<"$VENV/.stamp-$1") == "$2" ]]; }

pip_install() {
  "$VENV/bin/python" -m pip install --progress-bar off --disable-pip-version-check --no-input "$@"
}

torch_requirements() { "$1" "$LIB/torch_requirements.py" "${@:2}"; }

# The interpreter that the environment is made from.
base_python() {
  if [[ -n ${TWELL_PYTHON:-} ]]; then
    echo "$TWELL_PYTHON"
  elif [[ -x /usr/bin/python3 ]]; then
    echo /usr/bin/python3
  else
    command -v python3 || die "no python3 found"
  fi
}

# Where the interpreter named by TWELL_PYTHON has PyTorch, that one is used through a path file.
use_torch_of() {
  local site
  site=$("$1" -c 'import importlib.util as u, os
print(os.path.dirname(u.find_spec("torch").submodule_search_locations[0]))') &&
    echo "$site" >"$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/twell-torch.pth"
}

install_torch() {
  pip_install --no-deps -r "$ROOT/scripts/requirements/torch.txt" &&
    torch_requirements "$VENV/bin/python" list >"$VENV/torch-needs.txt" &&
    cat "$VENV/torch-needs.txt" && pip_install -r "$VENV/torch-needs.txt"
}

make_environment() { "$(base_python)" -m venv "$VENV"; }

ensure_torch() {
  local key
  key=$(hash_of "$ROOT/scripts/requirements/torch.txt" "$LIB/torch_requirements.py")
  [[ -n ${TWELL_PYTHON:-} ]] && key=$key:$TWELL_PYTHON
  if [[ -z ${TWELL_PYTHON:-} && -f $VENV/.stamp-torch && $(<"$VENV/.stamp-torch") == "$key":* ]]; then
    return 0 # made with TWELL_PYTHON, and that still serves
  fi
  stamp_is torch "$key" && return 0
  if [[ -n ${TWELL_PYTHON:-} ]]; then
    torch_requirements "$TWELL_PYTHON" check ||
      die "TWELL_PYTHON=$TWELL_PYTHON: no PyTorch of at least the version in scripts/requirements/torch.txt"
    [[ ! -f $VENV/.stamp-torch || $(<"$VENV/.stamp-torch") == *:* ]] ||
      die "$VENV has a PyTorch of its own; remove it to use that of TWELL_PYTHON=$TWELL_PYTHON"
    step "PyTorch of $TWELL_PYTHON" use_torch_of "$TWELL_PYTHON"
  else
    step "PyTorch from PyPI into .venv (2 GB to fetch: one to several minutes)" install_torch
  fi
  echo "$key" >"$VENV/.stamp-torch"
}

ensure_test_packages() {
  local key
  key=$(hash_of "$ROOT/scripts/requirements/test.txt")
  stamp_is test "$key" && return 0
  step "Python packages of the tests" pip_install -r "$ROOT/scripts/requirements/test.txt"
  echo "$key" >"$VENV/.stamp-test"
}

# CMake of the distribution where it is new enough, else from PyPI.
ensure_cmake() {
  CMAKE=cmake
  cmake_serves cmake && return 0
  CMAKE=$VENV/bin/cmake
  cmake_serves "$CMAKE" || step "CMake from PyPI" pip_install 'cmake>=3.25,<4'
}

# ensure_python GROUP...
ensure_python() {
  local group
  "$VENV/bin/python" -c '' 2>/dev/null || step "Python environment in .venv" make_environment
  ensure_cmake
  ensure_torch
  for group in "$@"; do
    [[ $group != test ]] || ensure_test_packages
  done
}
