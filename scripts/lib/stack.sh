# The environment of scripts/test stack: .venv's packages, and those of requirements/stack.txt in a
# place of their own, as they bring 80 others along.
STACK=$ROOT/.venv-stack

stack_pip() { "$STACK/bin/python" -m pip install --progress-bar off --disable-pip-version-check --no-input "$@"; }

make_stack() {
  "$(base_python)" -m venv "$STACK" &&
    "$VENV/bin/python" -c 'import site; print("\n".join(site.getsitepackages()))' \
      >"$("$STACK/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base.pth" &&
    stack_pip --upgrade pip setuptools wheel &&
    # DeepSpeed's setup imports torch, so it cannot be built in isolation.
    stack_pip --no-build-isolation -r "$ROOT/scripts/requirements/stack.txt"
}

ensure_stack() {
  local key
  key=$(hash_of "$ROOT/scripts/requirements/stack.txt" "$ROOT/scripts/requirements/torch.txt")
  [[ -f $STACK/.stamp && $(<"$STACK/.stamp") == "$key" ]] && return 0
  rm -rf "$STACK"
  step "lm-eval and DeepSpeed into .venv-stack" make_stack || return 1
  echo "$key" >"$STACK/.stamp"
}

run_stack() {
  TWELL_CLI=$ROOT/build/release/cli/twell \
    TWELL_TORCH_LIBRARY=$ROOT/build/release/src/torch_ops/libtwell_torch.so \
    TWELL_DATA=${TWELL_DATA:-$ROOT/../shared/data} PYTHONPATH=$ROOT/python \
    PATH=$STACK/bin:$PATH "$STACK/bin/python" -m pytest -v -rs "$ROOT/tests/stack"
}
