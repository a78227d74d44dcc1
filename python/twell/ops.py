"""The operators ``torch.ops.twell.*`` as typed Python functions.

All of them take tensors on the CPU, of dtype bfloat16 or float32, or on one NVIDIA GPU, of dtype
bfloat16 or float16. All arguments of a call have the same device and dtype, except that on a CPU
weights may be int8 or int4 codes with scales (:func:`join_codes`) if no gradient is needed. Weights
are [H, D] with adjacent row elements; ``down`` is neuron-major (the transpose of a checkpoint's down
projection). There may be any number of rows, or none. Accumulation is in float32. The same input
gives the same bits from run to run, at the same number of threads. A wrong argument raises a
RuntimeError that names operation and argument, with what was expected and got. Backward passes
through an operator that is not differentiable, and forward-mode differentiation of any operator,
raise one too.

On a GPU all work is enqueued on PyTorch's current stream and nothing waits for it, so a CUDA graph
can capture the calls. Therefore nothing checks the contents of a packed activation there, and there
are no linear layers. A packed weight belongs to the device it was packed on.

Threads follow ``torch.set_num_threads``; ``TWELL_CPU_TIER`` forces a tier
(portable, avx2, avx512, amx).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from twell import _fake
from twell.form import Additions, Form

if TYPE_CHECKING:
    from typing_extensions import Unpack

Twell = tuple[Tensor, Tensor, Tensor]
"""A packed activation [M, H]: ``counts``, ``slots``, ``overflow``.

``counts`` (int32 [M, tiles]) holds the non-zeros of each row and tile. ``slots`` (int32 for
bfloat16, int64 for float32; [M, tiles, capacity]) holds one word for each: the column within the
tile in the low half, the value's bits in the high half, columns ascending. A tile with more than
``capacity`` non-zeros keeps them all in a record of ``overflow`` ([records, tile]) whose number
stands in the tile's first word. Unused words are zero. On a GPU ``overflow`` has a record for every
row and tile, or none where ``capacity`` is ``tile``.
"""


def pack_weight(weight: Tensor) -> Tensor:
    """Rearranges a weight [H, D], or the codes of one (join_codes), in the order in which the GEMM
    reads it. The result is [H, n, 1] of its dtype; this shape tells that it is packed. n is D plus
    room for the padding of H to 16 and, except in float32, of D to 32, and for the scales of codes.
    Differentiable, but not in codes."""
    return torch.ops.twell.pack_weight(weight)


def join_codes(codes: Tensor, scales: Tensor, by: str = "row") -> Tensor:
    """The weight code · scale as the operators take it on a CPU, in one tensor.

    int8 ``codes`` [H, D] have scales of their rows [H] or, with ``by`` "column", of their columns [D].
    A gate (packed), up and linear layers take scales of rows, and ``down`` takes scales of columns.
    int4 codes of -8 to 7 have, with ``by`` "group", a scale for every 32 of a row, [H, D / 32]; ``down``
    does not take these. int4 scales have 5 significant bits, and none is less than 2⁻¹⁵ of its row's
    largest.

    Codes are int8, and scales are read as float32. x may be bfloat16 or float32. Every result is that
    of the matrix of the products, which are never rounded. For inference only. Raises ValueError."""
    if by not in ("row", "column", "group"):
        raise ValueError(f'by: expected "row", "column" or "group", got {by!r}')
    if codes.dim() != 2 or codes.dtype != torch.int8 or codes.numel() == 0:
        raise ValueError(f"codes: expected int8 [H, D], got {codes.dtype} {list(codes.shape)}")
    rows, cols = codes.shape
    shape = {"row": [rows], "column": [cols], "group": [rows, cols // 32]}[by]
    if by == "group" and cols % 32 != 0:
        raise ValueError(f"codes: expected groups of 32 columns, got {cols}")
    if list(scales.shape) != shape:
        raise ValueError(f"scales: expected shape {shape}, got {list(scales.shape)}")
    of_rows = scales.detach().float()
    if by == "group":
        codes, of_rows = _int4(codes, of_rows)
    extent = _fake.coded_extent(rows, codes.shape[1], "column" if by == "column" else "row")
    out = codes.new_zeros(extent, codes.shape[1])
    flat, at = out.view(-1), _fake.coded_scales_at(*codes.shape)
    flat[: codes.numel()] = codes.reshape(-1)
    flat[at : at + 4 * len(of_rows)] = of_rows.contiguous().view(codes.dtype)
    return out


def _int4(codes: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of blocks (uint8), and the scales of the rows: twell/int4.h."""
    if int(codes.min()) < -8 or int(codes.max()) > 7:
        raise ValueError("codes: expected -8 to 7")
    halves = codes.reshape(len(codes), -1, 2, 16)
    unused = (halves == 0).flatten(2).all(-1)
    mantissa, exponent = scales.frexp()
    kept = mantissa * 32 - 16
    top = exponent.masked_fill(unused, -100).amax(1, keepdim=True)
    octave = exponent - top + 15
    bad = (scales <= 0) | ~scales.isfinite() | (kept != kept.round()) | (octave < 0)
    bad = (bad & ~unused).nonzero()
    if len(bad) > 0:
        row, group = bad[0].tolist()
        raise ValueError(
            f"scales: expected 5 significant bits, and at least 2⁻¹⁵ of the row's largest, got "
            f"{float(scales[row, group])!r} for row {row}, group {group}"
        )
    byte = (octave * 16 + kept).masked_fill(unused, 0x88).to(torch.uint8)
    plus = (halves + 8).to(torch.uint8)
    blocks = torch.cat([byte[..., None], plus[..., 0, :] | plus[..., 1, :] << 4], -1)
    return blocks.flatten(1), torch.ldexp(torch.ones(len(top)), top[:, 0] - 1)


def unpack_weight(packed: Tensor) -> Tensor:
    """The exact inverse of pack_weight; codes come back as join_codes makes them. Differentiable, but
    not in codes."""
    return torch.ops.twell.unpack_weight(packed)


def linear(x: Tensor, weight_packed: Tensor, bias: Tensor | None = None) -> Tensor:
    """y = x Wᵀ + bias, x [..., D], y [..., N], for a weight [N, D] as pack_weight returns it. Not
    differentiable."""
    return torch.ops.twell.linear(x, weight_packed, bias)


def linear_as_stored(x: Tensor, weight: Tensor, float_sums: bool = False) -> Tensor:
    """y = x Wᵀ, x [..., D], y [..., N], for a plain weight [N, D], as for logits: for up to four rows
    it is read once, for more it is packed in every call. ``float_sums``: y is float32, and not rounded
    to x's dtype. Not differentiable."""
    return torch.ops.twell.linear_as_stored(x, weight, float_sums)


def round_inputs(x: Tensor) -> Tensor:
    """Rounds each block of 256 inputs of a row of x [..., D] to whole numbers of at most 7 bits times a
    power of 2. An input changes by at most a 127th of the block's largest. The result and int8 or int4
    codes are then multiplied as integers, which for many rows is 1.5 to 1.8 times as fast with AVX-512
    as the product with x. Blocks with a number that is not finite stay as they are. On a CPU; not
    differentiable."""
    return torch.ops.twell.round_inputs(x)


def ffn(
    x: Tensor,
    gate: Tensor,
    up: Tensor | None,
    down: Tensor,
    screen: Tensor | None = None,
    activation: str = "relu",
    threshold: float = 0.0,
    hot: int = 0,
    **form: Unpack[Additions],
) -> Tensor:
    """y = (act(x Wgᵀ) ⊙ (x Wuᵀ)) Wd, x [..., D], y [..., D]. Up and down are computed only where the
    gate is not zero. ``gate`` is pack_weight of Wg, or Wg itself with its ``screen`` (screen_weight),
    which is faster if the screen leaves at most screen_limit of the pre-activations; on a GPU the plan
    uses the screen for few tokens and the gate for many. A layer without a gate, y = act(x Wuᵀ) Wd,
    has Wu in its place and no ``up``.
    ``activation``: relu, relu_squared, or fat_relu with its ``threshold``. ``form``: what else the layer
    computes (:class:`twell.form.Additions`: up's activation, biases, a norm), on a CPU only; its vectors
    have the layer's dtype or are float32, which is added without rounding. On a GPU, GEMMs multiply the
    first ``hot`` neurons densely, which should be those that most tokens fire; their rows of ``down``
    must be finite. A CPU finds them by itself. Differentiable, with a dense backward pass."""
    layer = Form(activation, threshold, **form)
    return torch.ops.twell.ffn(x, layer.weights(gate, up, down), screen, layer.text, hot)


def ffn_stats(
    x: Tensor,
    gate: Tensor,
    up: Tensor | None,
    down: Tensor,
    screen: Tensor | None = None,
    activation: str = "relu",
    threshold: float = 0.0,
    hot: int = 0,
    **form: Unpack[Additions],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """ffn's y, the non-zeros of each row (int32, x's shape without its last dimension), the number
    of rows that fired each neuron (int64 [H]), and the pre-activations that the screen did not rule
    out (int64 []; 0 without one)."""
    layer = Form(activation, threshold, **form)
    return torch.ops.twell.ffn_stats(x, layer.weights(gate, up, down), screen, layer.text, hot)


def ffn_train(
    x: Tensor,
    gate: Tensor,
    up: Tensor | None,
    down: Tensor,
    screen: Tensor | None = None,
    activation: str = "relu",
    threshold: float = 0.0,
    hot: int = 0,
    **form: Unpack[Additions],
) -> tuple[Tensor, ...]:
    """ffn for training. Returns y, l1 (float32, the sum of ``|h|``), the non-zeros of each row, the
    number of rows that fired each neuron, and where the gate fired, which is all that is kept for
    backward besides the inputs: ``offsets`` (int64 [M + 1]), ``neurons`` (int32 [M·H]) and ``values``
    ([2, M·H], v and u). The last two have room for all neurons; the unused part of it is reserved and
    never touched. ``gate`` is Wg as stored. y and l1 are differentiable in x and the weights, by
    ffn_train_backward. Neurons that did not fire contribute nothing.

    On a GPU (bfloat16 and float16) ``values`` has everything that is kept, in its own layout, and the
    other two are empty. The first ``hot`` neurons are multiplied by GEMMs there. They should be those
    that more than about 1 % of the tokens fire, so order neurons by popularity."""
    layer = Form(activation, threshold, **form)
    return torch.ops.twell.ffn_train(x, layer.weights(gate, up, down), screen, layer.text, hot)


def ffn_train_backward(
    dy: Tensor,
    x: Tensor,
    gate: Tensor,
    up: Tensor | None,
    down: Tensor,
    offsets: Tensor,
    neurons: Tensor,
    values: Tensor,
    l1_grad: Tensor | None,
    activation: str = "relu",
    threshold: float = 0.0,
    hot: int = 0,
    **form: Unpack[Additions],
) -> tuple[Tensor, ...]:
    """dx, dgate, dup and ddown, of the layer's dtype, and the gradients of gate_bias, up_bias, down_bias
    and norm_weight, each of its vector's dtype, from what ffn_train kept. They are empty if there is no
    such operand. ``l1_grad`` (float32 []) is the gradient of l1. Differentiable, densely.
    ``torch.ops.twell.ffn_train_backward_add`` instead adds all but dx to float32 tensors, a list in
    the order of these results, which may leave out those of vectors, and returns dx. It is not
    differentiable. ``hot`` and ``form`` are those of ffn_train."""
    layer, kept = Form(activation, threshold, **form), [offsets, neurons, values]
    return torch.ops.twell.ffn_train_backward(
        dy, x, layer.weights(gate, up, down), kept, l1_grad, layer.text, hot
    )


def screen_weight(weight: Tensor, axis: Tensor | None = None) -> Tensor:
    """The int8 screen of a gate [H, D], as uint8. It proves that most neurons do not fire, with half the
    bytes of a bfloat16 weight and at twice its rate. ``axis`` (float32 [D]), best the mean of some
    inputs, lets it rule out more neurons and changes no result. Make the screen again after a change to
    ``weight``, because an old one rules out neurons that fire. Make it on the device that uses the
    weight. Not differentiable."""
    return torch.ops.twell.screen_weight(weight, axis)


def screen_limit() -> float:
    """The largest share of pre-activations for which a screen that leaves them is less work than the
    packed gate, on the tier in use; 0 if a screen never pays (portable)."""
    return torch.ops.twell.screen_limit()


def choose_hot(
    rates: Tensor,
    tokens: int,
    width: int,
    *,
    device: torch.device | str = "cuda",
    activation: str = "relu",
    gated: bool = True,
    joined: bool = False,
    training: bool = False,
) -> int:
    """How many of the first neurons to make hot (``hot`` of ffn) on a GPU, in calls of ``tokens``
    inputs of size ``width``: none, a multiple of 64, or all, whichever is expected to be fastest.

    ``rates`` (float64 or float32 [H], on the CPU) is the share of tokens that fire each neuron, the
    highest first: ffn_stats counts them. Neurons whose row of ``down`` is not finite come last, and
    no more than the others may be hot. ``activation`` and ``gated`` are the layer's; ``joined``: up
    directly follows gate in memory, which ffn finds by the addresses; ``training``: for ffn_train
    and its backward pass. The call takes a millisecond of the CPU and waits for no GPU, so keep the
    answer. Raises RuntimeError if there is no such GPU."""
    ordinal = _gpu("choose_hot", device)
    return torch.ops.twell.choose_hot(
        rates, tokens, width, ordinal, activation, gated, joined, training
    )


def choose_training(
    rates: Tensor,
    tokens: int,
    width: int,
    *,
    device: torch.device | str = "cuda",
    activation: str = "relu",
    gated: bool = True,
) -> int | None:
    """``hot`` of ffn_train for a layer that is trained on a GPU, in calls of ``tokens`` inputs of size
    ``width``, or None unless PyTorch's dense operations are expected to be slower by a tenth. This
    includes the time to copy all weights into the order of ``rates``, and their gradients back, as
    twell's layers do. Arguments, cost and errors are those of choose_hot."""
    ordinal = _gpu("choose_training", device)
    hot = torch.ops.twell.choose_training(rates, tokens, width, ordinal, activation, gated)
    return hot if hot >= 0 else None


def screen_pays(
    tokens: int,
    width: int,
    neurons: int,
    candidates: float | None = None,
    *,
    device: torch.device | str = "cuda",
) -> bool:
    """Whether a gate [neurons, width] is expected to be faster with its screen (screen_weight) than
    without on a GPU, in calls of ``tokens`` inputs. ``candidates`` is the share of the
    pre-activations that the screen leaves; ffn_stats counts them. Its default is what ffn itself
    expects: 0.012, which is 2.4 for each neuron that fires at 0.5 %. On a CPU see screen_limit.
    Raises RuntimeError if there is no such GPU."""
    ordinal = _gpu("screen_pays", device)
    return torch.ops.twell.screen_pays(tokens, width, neurons, candidates, ordinal)


def _gpu(operation: str, device: torch.device | str) -> int:
    """The number of the GPU, for operators that only the library for GPUs has."""
    device = torch.device(device)
    if device.type != "cuda":
        raise RuntimeError(f"twell::{operation}: device: expected an NVIDIA GPU, got {device}")
    key = "CompositeExplicitAutograd"
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"twell::{operation}", key):
        raise RuntimeError(
            f"twell::{operation}: device: libtwell_torch_cuda.so is not loaded: PyTorch sees no "
            "NVIDIA GPU, or twell was built without CUDA"
        )
    if device.index is not None:
        return device.index
    return torch.cuda.current_device() if torch.cuda.is_available() else 0


def processor_name() -> str:
    """The processor's name as the system has it, or "unknown"."""
    return torch.ops.twell.processor_name()


def cpu_tier() -> str:
    """The tier in use: portable, avx2, avx512 or amx."""
    return torch.ops.twell.cpu_tier()


def cpu_tier_available(tier: str) -> bool:
    """Whether the processor and the operating system have a tier's instructions. Raises RuntimeError
    for another name."""
    return torch.ops.twell.cpu_tier_available(tier)


# The steps of the layer one by one, for inspection and tests.


def gemm_relu_twell(
    x: Tensor,
    weight_packed: Tensor,
    activation: str = "relu",
    threshold: float = 0.0,
    tile: int = 256,
    capacity: int = 32,
) -> Twell:
    """act(x Wᵀ) [M, H], packed; x [M, D], W [H, D] from pack_weight. Not differentiable."""
    return torch.ops.twell.gemm_relu_twell(
        x, weight_packed, activation, threshold, tile, capacity
    )


def twell_gated_ffn(
    x: Tensor, counts: Tensor, slots: Tensor, overflow: Tensor, up: Tensor, down: Tensor
) -> Tensor:
    """y = (g ⊙ (x Wuᵀ)) Wd of a packed gate g [M, H]; x and y [M, D]. Not differentiable."""
    return torch.ops.twell.twell_gated_ffn(x, counts, slots, overflow, up, down)


def twell_spmm(counts: Tensor, slots: Tensor, overflow: Tensor, down: Tensor) -> Tensor:
    """y = h Wd of a packed hidden state h [M, H]; y [M, D]. Not differentiable."""
    return torch.ops.twell.twell_spmm(counts, slots, overflow, down)


def dense_to_twell(dense: Tensor, tile: int = 256, capacity: int = 32) -> Twell:
    """Packs the non-zeros of dense [M, H]; NaN is one, -0 is not. Not differentiable."""
    return torch.ops.twell.dense_to_twell(dense, tile, capacity)


def twell_to_dense(
    counts: Tensor, slots: Tensor, overflow: Tensor, cols: int, dtype: torch.dtype
) -> Tensor:
    """The packed matrix, zeros included: [M, cols] of ``dtype``. Not differentiable."""
    return torch.ops.twell.twell_to_dense(counts, slots, overflow, cols, dtype)
