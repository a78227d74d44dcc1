"""A frozen layer on a CPU: the block that libtwell makes of its weights (twell/layer_block.h)."""

from __future__ import annotations

import json
import os
import weakref
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import _len_torch_dispatch_stack_pre_dispatch
from torch.utils._python_dispatch import _disable_current_modes

from twell import ops
from twell._weights import Findings, Layer, is_empty

PATHS = ("auto", "sparse", "dense")
DEFAULT_PATH = "auto"


def check_path(name: str, path: str | None) -> None:
    """Raises ValueError unless it is one, or none."""
    if path not in (None, *PATHS):
        raise ValueError(f'{name}: expected one of {", ".join(PATHS)}, got "{path}"')


class Block(NamedTuple):
    """All of a layer in one tensor, and what it was made of."""

    bytes: Tensor  # uint8
    like: tuple[Tensor | None, ...]
    """gate, up and down as a checkpoint has them, without numbers: on the meta device."""
    screened: bool
    finite: bool
    """Layer.is_finite"""

    @property
    def tensors(self) -> dict[str, Tensor | None]:
        return {"block": self.bytes}

    def holding(self, tensors: dict[str, Tensor]) -> Block:
        """The same of other memory."""
        return self._replace(bytes=tensors["block"])

    def unpacked(self) -> tuple[Tensor, Tensor | None, Tensor]:
        """gate, up and down as a checkpoint has them."""
        gate, up, down = self.like
        assert gate is not None and down is not None
        if is_empty(self.bytes):
            to = self.bytes.device
            up = None if up is None else torch.empty_like(up, device=to)
            return torch.empty_like(gate, device=to), up, torch.empty_like(down, device=to)
        gate, up, down = unpack(self.bytes)[:3]
        assert gate is not None and down is not None
        return gate, up, down


def examine(layer: Layer, x: Tensor) -> Findings:
    """``x`` [M, D] of the layer's dtype."""
    mean, fired, seen = torch.ops.twell.examine_layer(x, _weights(layer), layer.form.text)
    inputs, candidates = seen.tolist()
    return Findings(int(inputs), mean, fired, candidates if candidates >= 0 else None)


def make(layer: Layer, findings: Findings | None) -> Block:
    """The gate has a screen where findings call for one."""
    found = []
    if findings is not None:
        share = -1.0 if findings.candidates is None else findings.candidates
        seen = _numbers([findings.inputs, share])
        found = [findings.mean.float().cpu(), findings.fired.cpu(), seen]
    made = torch.ops.twell.make_block(_weights(layer), layer.form.text, layer.dtype, found)
    like = tuple(None if w is None else torch.empty_like(w, device="meta") for w in layer[:3])
    screened = not is_empty(made) and torch.ops.twell.has_screen(made)
    return Block(made, like, screened, layer.is_finite)


def _weights(layer: Layer) -> list[Tensor | None]:
    gate, up, down = (None if w is None else w.contiguous() for w in layer[:3])
    assert gate is not None and down is not None
    return layer.form.weights(gate, up, down)


def _numbers(values: list[float]) -> Tensor:
    """As operators take them, whatever the default device."""
    return torch.tensor(values, dtype=torch.float64, device="cpu")


def unpack(block: Tensor) -> list[Tensor | None]:
    """gate, up and down as a checkpoint has them, and the form's vectors in float32."""
    return [t if t.numel() else None for t in torch.ops.twell.unpack_block(block)]


class Opened:
    """What the process keeps to run a block, until this is deleted: the decision between sparse and
    dense, and the dense variant's weights. ``number`` is an operand of run_layer."""

    def __init__(self, block: Tensor, path: str) -> None:
        if is_empty(block):
            self.number = torch.zeros(1, dtype=torch.int64, device="cpu")
            return
        self.number = torch.ops.twell.open_layer(block, path, _cost() if path == "auto" else [])
        # With a number of its own, which nobody writes to.
        weakref.finalize(self, _close, self.number.clone()).atexit = False


def _close(number: Tensor) -> None:
    # Without modes there is nothing to disable, and the code that disables them may be half imported.
    modes = torch._C._len_torch_dispatch_stack() + _len_torch_dispatch_stack_pre_dispatch()
    with _disable_current_modes() if modes > 0 else nullcontext():
        torch.ops.twell.close_layer(number)


# Garbage may be collected while a graph is traced, which this is no part of. torch.compiler.disable()
# says so too, but imports what compiles, which takes a second.
try:
    from torch._C._dynamo import eval_frame

    _skip = eval_frame._FrameAction.SKIP
    eval_frame.set_code_exec_strategy(_close.__code__, eval_frame._FrameExecStrategy(_skip, _skip))
except (ImportError, AttributeError, TypeError):  # a PyTorch with other names
    _close = torch.compiler.disable(_close)


def run(x: Tensor, block: Tensor, layer: Tensor, columns: int, dtype: torch.dtype, coded: bool) -> Tensor:
    """``dtype`` is that of the layer. x of another is converted under autocast, as linear layers do it,
    and where weights are codes, which go with any."""
    autocast = torch.is_autocast_enabled("cpu")
    to = torch.get_autocast_dtype("cpu") if autocast else x.dtype
    if x.dtype != dtype and (coded or autocast):
        x = x.to(dtype)
    y: Tensor = torch.ops.twell.run_layer(x, block, layer, columns)
    return y if y.dtype == to else y.to(to)


def describe(block: Tensor, layer: Tensor, rows: int) -> str:
    words: str = torch.ops.twell.describe_layer(block, layer, rows)
    return words


# --- what calls cost, from the file that `twell calibrate` writes ---------------------------------


def _cost() -> list[Tensor]:
    """The operand of open_layer: this machine's figures, if the file has them; four empty tensors, which
    ask for the built-in ones as they are, where TWELL_CALIBRATION is set to nothing; none, for these
    scaled by timing the first calls, otherwise."""
    named = os.environ.get("TWELL_CALIBRATION")
    if named == "":
        return [_numbers([])] * 4
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    file = Path(named) if named else Path(cache) / "twell" / "calibration.json"
    machine = f"{ops.processor_name()}, {ops.cpu_tier()}, {torch.get_num_threads()} threads"
    try:
        found: dict[str, Any] | None = json.loads(file.read_text("utf-8")).get(machine)
        if found is None:
            return []
        sparse = [ns for row in found["sparse"] for ns in row["ns_per_weight"]]
        figures = (found["tokens"], found["densities"], found["dense_ns_per_weight"], sparse)
        return [_numbers(values) for values in figures]
    except OSError:
        return []
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{file}: {error}; if it is a calibration, delete it and run twell calibrate again"
        ) from error
