"""What the library brings into the process: symbols, threads, tiers, how it is found."""

from __future__ import annotations

import shutil
import subprocess
import threading
from pathlib import Path

import pytest
import torch
import twell
from layers import make_layer, python
from twell import _library

LIBRARY = _library.path()
PACKAGE = Path(twell.__file__).resolve().parent


def test_only_the_stable_abi_is_imported() -> None:
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("nm (binutils) is not installed")
    listing = subprocess.run([nm, "-D", LIBRARY], capture_output=True, text=True, check=True).stdout
    undefined = [line.split()[-1] for line in listing.splitlines() if line.split()[-2] in "Uw"]
    defined = [line for line in listing.splitlines() if line.split()[-2] not in "Uw"]
    # Versioned symbols belong to the C, C++ and OpenMP runtimes; what has no version is torch's C
    # interface, apart from the linker's own weak ones.
    own = [s for s in undefined if "@" not in s and not s.startswith(("_ITM_", "__gmon_start__"))]
    assert own and all(s.startswith(("aoti_torch_", "torch_")) for s in own), own
    assert not any("c10" in s or ("3at" in s.replace("std", "") and "N2at" in s) for s in undefined)
    assert defined == [], "nothing need be visible from outside"


def test_one_openmp_runtime() -> None:
    run = python(
        "import sys, torch, twell\n"
        "assert 'torch._dynamo' not in sys.modules, 'takes a second'\n"
        "x = torch.randn(8, 32)\n"
        "w = torch.randn(64, 32)\n"
        "twell.ops.ffn(x, twell.ops.pack_weight(w), w, w)\n"
        "maps = {line.split()[-1] for line in open('/proc/self/maps') if '/' in line}\n"
        "print([m for m in maps if 'gomp' in m or 'iomp' in m or 'libomp' in m])\n"
    )
    assert run.returncode == 0, run.stderr
    assert len(eval(run.stdout)) == 1, run.stdout


def test_threads_follow_torch() -> None:
    code = (
        "import os, torch, twell\n"
        "torch.set_num_threads(1)\n"
        "x = torch.randn(64, 64); w = torch.randn(256, 64)\n"
        "p = twell.ops.pack_weight(w)\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        "twell.ops.ffn(x, p, w, w)\n"
        "one = len(os.listdir('/proc/self/task')) - before\n"
        "torch.set_num_threads(3)\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        "twell.ops.ffn(x, p, w, w)\n"
        "print(one, len(os.listdir('/proc/self/task')) - before)\n"
    )
    run = python(code)
    assert run.returncode == 0, run.stderr
    # A team of n has n - 1 threads beside the caller, which OpenMP starts on first use.
    assert run.stdout.split() == ["0", "2"]


def test_concurrent_calls(dtype: torch.dtype) -> None:
    layers = [make_layer(48, 300 + 50 * i, dtype, density=0.2, seed=i) for i in range(2)]
    packed = [twell.ops.pack_weight(layer.gate) for layer in layers]
    xs = [layer.inputs(40) for layer in layers]
    threads = torch.get_num_threads()
    want = [
        twell.ops.ffn(x, p, layer.up, layer.down) for x, p, layer in zip(xs, packed, layers)
    ]
    failures: list[str] = []

    def work(i: int) -> None:
        torch.set_num_threads(threads)  # a new thread starts with OpenMP's default
        for n in range(50):
            y = twell.ops.ffn(xs[i], packed[i], layers[i].up, layers[i].down)
            if not torch.equal(y, want[i]):
                failures.append(f"thread {i}, call {n}")

    workers = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


def tier_of(tier: str) -> subprocess.CompletedProcess[str]:
    return python(
        "import torch, twell\n"
        "from layers import make_layer, python, reference, assert_within\n"
        "for dtype in (torch.float32, torch.bfloat16):\n"
        "    layer = make_layer(70, 300, dtype)\n"
        "    for rows in (1, 37):\n"
        "        x = layer.inputs(rows)\n"
        "        packed = twell.ops.pack_weight(layer.gate)\n"
        "        y = twell.ops.ffn(x, packed, layer.up, layer.down)\n"
        "        assert_within(y, reference(x, layer.gate, layer.up, layer.down))\n"
        "print(twell.ops.screen_limit())\n",
        TWELL_CPU_TIER=tier,
    )


@pytest.mark.parametrize("tier", ["portable", "avx2", "avx512", "amx"])
def test_forced_tier(tier: str) -> None:
    """Runs where the machine has the tier, and fails with its name where it has not."""
    run = tier_of(tier)
    flags = Path("/proc/cpuinfo").read_text()
    have = {
        "portable": True,
        "avx2": "avx2" in flags and "fma" in flags,
        "avx512": "avx512_bf16" in flags,
        "amx": "amx_bf16" in flags and "amx_int8" in flags,
    }[tier]
    if have:
        assert run.returncode == 0, run.stderr
        limits = {"portable": 0.0, "avx2": 0.25, "avx512": 0.08, "amx": 0.08}
        assert float(run.stdout) == limits[tier]
    else:
        assert run.returncode != 0 and f"'{tier}'" in run.stderr.splitlines()[-1], run.stderr


def test_unknown_tier() -> None:
    run = tier_of("sse9")
    assert run.returncode != 0 and "RuntimeError" in run.stderr and "sse9" in run.stderr


def test_tier_is_read_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = make_layer(32, 64)
    packed, x = twell.ops.pack_weight(layer.gate), layer.inputs(2)
    monkeypatch.setenv("TWELL_CPU_TIER", "sse9")
    with pytest.raises(RuntimeError, match="sse9"):
        twell.ops.ffn(x, packed, layer.up, layer.down)
    monkeypatch.delenv("TWELL_CPU_TIER")
    twell.ops.ffn(x, packed, layer.up, layer.down)


def test_library_named_by_the_variable() -> None:
    run = python("import twell", TWELL_TORCH_LIBRARY="/nonexistent/libtwell_torch.so")
    assert run.returncode != 0
    assert "ImportError: twell: TWELL_TORCH_LIBRARY names /nonexistent/" in run.stderr
    run = python("import twell", TWELL_TORCH_LIBRARY=__file__)
    assert run.returncode != 0 and "ImportError: twell: cannot load" in run.stderr


def test_a_pytorch_that_is_too_old() -> None:
    run = python("import torch\ntorch.__version__ = '2.10.1+cpu'\nimport twell")
    last = run.stderr.strip().splitlines()[-1]
    assert last == "ImportError: twell: expected PyTorch 2.11 or later, got 2.10.1+cpu"


def test_library_beside_the_package(tmp_path: Path) -> None:
    target = tmp_path / "twell"
    shutil.copytree(PACKAGE, target, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    code = "import twell; print(twell.__file__)"
    run = python(code, TWELL_TORCH_LIBRARY="", PYTHONPATH=str(tmp_path))
    assert run.returncode != 0
    assert "ImportError: twell: libtwell_torch.so is not beside" in run.stderr
    shutil.copy(LIBRARY, target)
    run = python(code, TWELL_TORCH_LIBRARY="", PYTHONPATH=str(tmp_path))
    assert run.returncode == 0 and run.stdout.strip() == str(target / "__init__.py"), run.stderr


def test_cuda_library_is_loaded_where_a_gpu_is_and_never_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TWELL_TORCH_CUDA_LIBRARY", raising=False)
    beside = tmp_path / LIBRARY.name
    cuda = tmp_path / "libtwell_torch_cuda.so"
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert _library.cuda_path(beside) is None, "not built"
    cuda.touch()
    assert _library.cuda_path(beside) == cuda
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert _library.cuda_path(beside) is None, "no GPU"
    monkeypatch.setenv("TWELL_TORCH_CUDA_LIBRARY", str(cuda))
    assert _library.cuda_path(beside) == cuda, "named: taken without a question"
    monkeypatch.setenv("TWELL_TORCH_CUDA_LIBRARY", str(tmp_path / "none.so"))
    with pytest.raises(ImportError, match=r"names .*none.so, which is no file"):
        _library.cuda_path(beside)
