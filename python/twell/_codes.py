"""Weights that are codes and scales: linear layers of compressed-tensors and torchao that have them, and
what becomes of them in a frozen layer (docs/quantised.md)."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from twell import _fake, ops
from twell._attached import twin_of

_GROUP = 32  # of a row of int4
_PACKED = ("weight_packed", "weight_scale", "weight_shape")
_PLAIN = ("weight", "weight_scale")


class Codes(NamedTuple):
    """The weight code · scale, as a checkpoint has it."""

    codes: Tensor  # int8 [rows, cols]
    scales: Tensor  # [rows, n], each of cols / n columns
    dtype: torch.dtype  # of the numbers, and of x

    def numbers(self) -> Tensor:
        """Scales rounded to the dtype, and the products rounded once, as the packages have it."""
        rows, cols = self.codes.shape
        groups = self.codes.view(rows, self.scales.shape[1], -1).to(self.dtype)
        return (groups * self.scales.to(self.dtype)[..., None]).view(rows, cols)


def is_coded(weight: Tensor) -> bool:
    """Whether it is what join_codes makes."""
    return weight.dtype in _fake.CODE_TYPES


def sizes(weight: Tensor, by: str = "row") -> tuple[int, int]:
    """[rows, columns] of a weight, or of what join_codes made of one."""
    extent, width = weight.shape
    if not is_coded(weight):
        return extent, width
    columns = by == "column"
    rows = extent - _fake.coded_extent(0, width, by) if columns else _fake.rows_of(weight)
    return rows, _fake.CODE_TYPES[weight.dtype].cols(width)


def split(weight: Tensor, by: str = "row") -> tuple[Tensor, Tensor]:
    """The inverse of join_codes: codes, int8 [rows, cols], and scales of rows or columns, or of
    int4 [rows, cols / 32]."""
    (rows, cols), width = sizes(weight, by), weight.shape[1]
    flat, at = weight.view(-1), _fake.coded_scales_at(rows, width)
    scales = flat[at : at + 4 * (cols if by == "column" else rows)].view(torch.float32)
    codes = flat[: rows * width].view(rows, width)
    if weight.dtype == torch.int8:
        return codes, scales
    blocks = codes.view(rows, -1, 17).int()
    halves = torch.cat([blocks[..., 1:] & 15, blocks[..., 1:] >> 4], -1) - 8
    of_blocks = torch.ldexp(1 + (blocks[..., 0] & 15) / 16, (blocks[..., 0] >> 4) - 15)
    return halves.to(torch.int8).flatten(1), of_blocks * scales[:, None]


def turned(weight: Tensor, by: str) -> Tensor:
    """The transpose of a weight, or of int8 with scales by row or column."""
    if not is_coded(weight):
        return weight.t().contiguous()
    codes, scales = split(weight, by)
    return ops.join_codes(codes.t(), scales, "column" if by == "row" else "row")


def numbers(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """As Codes.numbers(), of what join_codes made by row."""
    if not is_coded(weight):
        return weight
    codes, scales = split(weight)
    return Codes(codes, scales.view(len(codes), -1), dtype).numbers()


def weight_of(name: str, linear: Any, down: bool = False) -> Tensor:
    """A linear layer's weight as a frozen layer has it: its numbers, or what join_codes makes of its
    codes. Codes they stay where the operators multiply them as they are: with a scale for each row, and,
    but of ``down``, of 4 bits in groups of 32 or a multiple with scales of 5 significant bits. Raises
    ValueError, with the name, for codes that mean something else."""
    if not is_quantised(linear):
        return linear.weight.detach()
    weight = codes_of(name, linear)
    codes, scales, _ = weight
    group = codes.shape[1] // scales.shape[1]
    int4 = group % _GROUP == 0 and -8 <= int(codes.min()) <= int(codes.max()) < 8
    if int4 and not down:
        with suppress(ValueError):  # scales of more bits
            return ops.join_codes(codes, scales.repeat_interleave(group // _GROUP, 1), "group")
    return ops.join_codes(codes, scales[:, 0]) if scales.shape[1] == 1 else weight.numbers()


def round_scales(model: nn.Module) -> int:
    """Rounds the scales of a model's int4 weights to 5 significant bits, in place: each by at most
    3 %, to nearest, ties to even. These are the linear layers that compressed-tensors or torchao has
    quantised to 4 bits in groups of 32 columns or a multiple.

    That defines another model, whose int4 weights stay codes in frozen layers
    (``--round-scales`` of the command line does the same). Returns how many layers it changed. Raises
    ValueError, and changes nothing, if a layer's codes cannot be read, or have become numbers in a
    forward pass.
    """
    found: list[tuple[Tensor, Tensor]] = []
    for name, linear in model.named_modules():
        if was_quantised(linear):
            raise ValueError(
                f"{name}: its codes have become numbers; round scales before the first forward pass"
            )
        if not is_quantised(linear) or _bits(linear) != 4:
            continue
        codes, scales, _ = codes_of(name, linear)
        if codes.shape[1] // scales.shape[1] % _GROUP:
            continue
        mantissa, exponent = scales.float().frexp()
        rounded = torch.ldexp((mantissa * 32).round() / 32, exponent).to(scales.dtype)
        if not torch.equal(rounded, scales):
            found.append((scales, rounded))
    for scales, rounded in found:
        scales.copy_(rounded)
    return len(found)


def linear_of(weight: Codes, bias: Tensor | None = None) -> nn.Linear:
    """A linear layer as compressed-tensors has it, that holds the codes themselves."""
    rows, cols = weight.codes.shape
    linear = nn.Linear(cols, rows, bias=False, device="meta")
    linear.weight = nn.Parameter(weight.codes, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach(), requires_grad=False)
    linear.weight_scale = nn.Parameter(weight.scales.to(weight.dtype), requires_grad=False)
    numbers = SimpleNamespace(num_bits=8, symmetric=True)
    linear.quantization_scheme = SimpleNamespace(  # type: ignore[assignment]
        weights=numbers, input_activations=None, output_activations=None
    )
    return linear


def dtype_of(linear: Any) -> torch.dtype:
    """Of the numbers, and of x."""
    scaled = is_quantised(linear) and "weight_scale" in linear._parameters
    return (linear.weight_scale if scaled else linear.weight).dtype


class Shell(NamedTuple):
    """A quantised linear layer without its codes, of which a frozen layer has others."""

    linear: nn.Module
    codes: str
    """The parameter that holds them."""
    scales: Tensor
    kind: _Words | _Remade | None
    """What makes the parameter of int8 codes; none where it is these."""

    @staticmethod
    def of(linear: Any) -> Shell:
        name = "weight_packed" if "weight_packed" in linear._parameters else "weight"
        kind: _Words | _Remade | None = None
        if (weight := _of_torchao(linear)) is not None:
            kind, scales = _Remade.of(weight), weight.scale
        else:
            kind = _Words(_bits(linear)) if name == "weight_packed" else None
            scales = linear.weight_scale.detach()
        scales = scales.reshape(linear.out_features, -1)
        return Shell(twin_of(linear, parameters={name: None}), name, scales, kind)

    def refilled(self, weight: Tensor, bias: Tensor | None) -> nn.Module:
        """The layer of a weight as weight_of() gave it."""
        if is_coded(weight):
            codes = split(weight)[0]
        else:  # a number is off by half a step of its dtype, less than half a code
            scales = self.scales.repeat_interleave(weight.shape[1] // self.scales.shape[1], 1)
            codes = (weight.float() / scales.to(weight.dtype).float()).round().to(torch.int8)
        stored = codes.clone() if self.kind is None else self.kind.of_codes(codes)
        own = {self.codes: nn.Parameter(stored, requires_grad=False)}
        if bias is not None:
            own["bias"] = bias if isinstance(bias, nn.Parameter) else nn.Parameter(bias, False)
        return twin_of(self.linear, parameters=own)


# --- compressed-tensors and torchao --------------------------------------------------------------


def is_quantised(linear: nn.Module) -> bool:
    """Whether a linear layer's weight is codes and scales, of which this knows to make something."""
    own = dict(linear._parameters.items())  # a scripted module's are no dictionary
    weight = own.get("weight")
    as_bytes = "weight_scale" in own and weight is not None and weight.dtype == torch.int8
    return "weight_packed" in own or as_bytes or _of_torchao(linear) is not None


def was_quantised(linear: Any) -> bool:
    """Whether compressed-tensors has made numbers of the codes, and the layer multiplies by them."""
    scheme, status = (getattr(linear, f"quantization_{n}", None) for n in ("scheme", "status"))
    if scheme is None or getattr(status, "value", None) != "decompressed":
        return False
    return scheme.input_activations is None and scheme.output_activations is None


def own_parameters(linear: nn.Module) -> tuple[str, ...]:
    """Names that its weight has."""
    return _PACKED if "weight_packed" in linear._parameters else _PLAIN


def codes_of(name: str, linear: nn.Module) -> Codes:
    """Of a quantised layer. Raises ValueError with its name for what the operators cannot have."""
    if (weight := _of_torchao(linear)) is not None:
        found = _torchao_codes(name, weight)
    else:
        found = _packed_codes(name, linear)
    codes, scales, _ = found
    if scales.dim() != 2 or len(scales) != len(codes) or codes.shape[1] % scales.shape[1]:
        raise ValueError(
            f"{name}: expected scales of rows or of groups within them, got {list(scales.shape)} for "
            f"{list(codes.shape)}"
        )
    if not bool(((scales > 0) & scales.isfinite()).all()):
        raise ValueError(f"{name}: expected scales that are positive and finite")
    return found


def _of_torchao(linear: nn.Module) -> Any:
    """The weight, where it is a tensor of torchao with codes of weights alone."""
    weight: Any = dict(linear._parameters.items()).get("weight")
    known = type(weight).__name__ in ("Int8Tensor", "IntxUnpackedToInt8Tensor")
    return weight if known and type(weight).__module__.startswith("torchao.") else None


def _torchao_codes(name: str, weight: Any) -> Codes:
    if any(getattr(weight, key, None) is not None for key in ("act_quant_kwargs", "activation_quantization")):
        raise ValueError(f"{name}: quantises its inputs, which a frozen layer would not; expected weights alone")
    if any(getattr(weight, key, None) is not None for key in ("act_quant_scale", "act_pre_scale")):
        raise ValueError(f"{name}: scales its inputs, which a frozen layer would lose")
    zero = getattr(weight, "zero_point", None)
    if zero is not None and bool((zero != 0).any()):
        raise ValueError(f"{name}: has zero points; expected symmetric codes")
    if weight.block_size[0] != 1:
        raise ValueError(f"{name}: expected scales of rows or of groups within them")
    return Codes(weight.qdata, weight.scale.reshape(len(weight.qdata), -1), weight.dtype)


class _Remade(NamedTuple):
    """Makes a tensor of torchao of other codes."""

    kind: Any
    others: dict[str, Tensor]
    about: Any
    stride: tuple[int, ...]

    @staticmethod
    def of(weight: Any) -> _Remade:
        names, about = weight.__tensor_flatten__()
        others = {n: getattr(weight, n) for n in names if n != "qdata"}
        return _Remade(type(weight), others, about, weight.stride())

    def of_codes(self, codes: Tensor) -> Tensor:
        own = {"qdata": codes.clone(), **self.others}
        made: Tensor = self.kind.__tensor_unflatten__(own, self.about, codes.shape, self.stride)
        return made


def _bits(linear: Any) -> int:
    if (weight := _of_torchao(linear)) is not None:
        return 4 if str(getattr(weight, "target_dtype", None)) == "torch.int4" else 8
    return int(linear.quantization_scheme.weights.num_bits)


def _packed_codes(name: str, linear: Any) -> Codes:
    scheme = linear.quantization_scheme
    if scheme.input_activations is not None or scheme.output_activations is not None:
        raise ValueError(f"{name}: quantises its inputs, which a frozen layer would not; expected weights alone")
    bits = _bits(linear)
    extra = [n for n in ("weight_zero_point", "weight_g_idx") if n in linear._parameters]
    if bits not in (4, 8) or not scheme.weights.symmetric or extra:
        raise ValueError(
            f"{name}: expected symmetric codes of 4 or 8 bits in order, got {bits} bits"
            + "".join(f", {n}" for n in extra)
        )
    scales = linear.weight_scale.detach()
    if "weight_packed" in linear._parameters:
        codes = unpack_words(linear.weight_packed.detach(), bits, int(linear.weight_shape[1]))
    else:
        codes = linear.weight.detach()
    return Codes(codes, scales.reshape(len(codes), -1), scales.dtype)


# Words of 32 bits hold four or eight codes of a row, lowest bits first, each plus 2^(bits - 1).


class _Words(NamedTuple):
    bits: int

    def of_codes(self, codes: Tensor) -> Tensor:
        each = 32 // self.bits
        plus = codes.int() + (1 << self.bits - 1)
        plus = nn.functional.pad(plus, (0, -codes.shape[1] % each)).view(len(codes), -1, each)
        shifts = torch.arange(0, 32, self.bits, dtype=torch.int32)
        return (plus << shifts).sum(-1, dtype=torch.int32)


def unpack_words(words: Tensor, bits: int, cols: int) -> Tensor:
    """Codes [rows, cols]."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    plus = (words[..., None] >> shifts) & (1 << bits) - 1
    return (plus - (1 << bits - 1)).to(torch.int8).flatten(1)[:, :cols].contiguous()
