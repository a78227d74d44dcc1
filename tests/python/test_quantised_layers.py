"""Frozen layers of quantised linear layers, as compressed-tensors and torchao make them: against float64
on the numbers that are stored, and their codes given back."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import twell
from layers import UNIT, make_layer, python
from torch import Tensor, nn
from twell import _codes

compressed_tensors = pytest.importorskip("compressed_tensors")
torchao = pytest.importorskip("torchao")
from compressed_tensors.compressors import compress_module  # noqa: E402
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme  # noqa: E402
from torchao.quantization import (  # noqa: E402
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    PerAxis,
    PerGroup,
    quantize_,
)

WIDTH, NEURONS = 96, 160
INT8, INT4 = dict(num_bits=8, strategy="channel"), dict(num_bits=4, strategy="group", group_size=32)


def compress(linear: nn.Linear, args: dict[str, Any], layout: str = "pack-quantized", bits: int = 8) -> None:
    """By compressed-tensors, with scales of so many significant bits."""
    arguments = QuantizationArgs(**args)
    rows, cols = linear.weight.shape
    largest = linear.weight.detach().float().view(rows, -1, arguments.group_size or cols).abs().amax(-1)
    mantissa, exponent = (largest / (2 ** (arguments.num_bits - 1) - 0.5)).frexp()
    scales = torch.ldexp((mantissa * 2**bits).round() / 2**bits, exponent).to(linear.weight.dtype)
    linear.weight_scale = nn.Parameter(scales, requires_grad=False)
    linear.quantization_scheme = QuantizationScheme(targets=["Linear"], weights=arguments, format=layout)
    compress_module(linear)


WAYS: dict[str, Callable[[nn.Linear], None]] = {
    "int8": lambda m: compress(m, INT8),
    "int8 as bytes": lambda m: compress(m, INT8, "int-quantized"),
    "int4": lambda m: compress(m, INT8 if m.in_features == NEURONS else INT4, bits=5),
    "int4, 96 a scale": lambda m: compress(
        m, INT8 if m.in_features == NEURONS else dict(INT4, group_size=96), bits=5
    ),
    "int4 with wide scales": lambda m: compress(m, INT4),
    "int8 in groups": lambda m: compress(m, dict(INT4, num_bits=8)),
    "torchao int8": lambda m: quantize_(m, Int8WeightOnlyConfig()),
    "torchao intx, 8 bits": lambda m: quantize_(
        m, IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerAxis(0))
    ),
    "torchao intx, 4 bits": lambda m: quantize_(
        m, IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32))
    ),
}  # fmt: skip
# What gate, up and down are in the frozen layer; numbers elsewhere.
KEPT = {
    "int8": (torch.int8,) * 3,
    "int8 as bytes": (torch.int8,) * 3,
    "int4": (torch.uint8, torch.uint8, torch.int8),
    "int4, 96 a scale": (torch.uint8, torch.uint8, torch.int8),
    "torchao int8": (torch.int8,) * 3,
    "torchao intx, 8 bits": (torch.int8,) * 3,
}


def quantised(way: str, dtype: torch.dtype, gated: bool = True, bias: bool = False) -> nn.Module:
    layer = make_layer(WIDTH, NEURONS, dtype, density=0.2)
    weights = [layer.gate, layer.up, layer.down.t()] if gated else [layer.gate, layer.down.t()]
    biases = [torch.randn(len(w)).to(dtype) / 10 if bias else None for w in weights]
    linears = []
    for weight, own in zip(weights, biases):
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias, dtype=dtype)
        linear.weight.data.copy_(weight)
        if own is not None:
            linear.bias.data.copy_(own)
        holder = nn.Sequential(linear)  # torchao changes the layers within a module
        WAYS[way](holder if "torchao" in way else linear)  # type: ignore[arg-type]
        linears.append(holder[0])
    return (twell.GatedFfn if gated else twell.Ffn)._of_linears(linears)


def numbers_of(linear: nn.Module, kept: bool) -> Tensor:
    """float64: the products themselves where codes are kept, else rounded as the package does."""
    weight = _codes.codes_of("weight", linear)
    if not kept:
        return weight.numbers().double()
    scales = weight.scales.double().repeat_interleave(weight.codes.shape[1] // weight.scales.shape[1], 1)
    return weight.codes.double() * scales


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 33])
def test_outputs(dtype: torch.dtype, way: str, gated: bool, bias: bool, rows: int) -> None:
    module = quantised(way, dtype, gated, bias)
    kept = KEPT.get(way)
    children = [module.get_submodule(name) for name in module.names]
    *into, down = (numbers_of(child, kept is not None) for child in children)
    biases = [0.0 if c.bias is None else c.bias.detach().double() for c in children]
    x = make_layer(WIDTH, NEURONS, dtype, density=0.2).inputs(rows).double()
    pre = [x @ w.T + b for w, b in zip(into, biases)]
    sizes = [x.abs() @ w.abs().T + abs(b) for w, b in zip(into, biases)]
    h, h_size = pre[0].relu(), sizes[0]
    if gated:
        h, h_size = h * pre[1], h_size * sizes[1]
    exact = h @ down.T + biases[-1]
    module.freeze()
    if kept is not None:
        first, second, last = dtypes_of(module)
        assert (first, last) == (kept[0], kept[-1]) and (not gated or second == kept[1])
    y = module(x.to(dtype)).double()
    # As in test_codes.py, and the biases' additions.
    unit = 4 * UNIT[dtype] + (2 * WIDTH + NEURONS + 11) * 2.0**-24
    unit += 2.0**-15 if dtype == torch.bfloat16 else 2.0**-21
    assert ((y - exact).abs() <= unit * (h_size @ down.abs().T + abs(biases[-1]))).all()


def dtypes_of(module: twell.modules.SparseFfn) -> list[torch.dtype | None]:
    """Of what a frozen layer keeps of gate, up and down."""
    return [None if w is None else w.dtype for w in module._unpack()]


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Tensors of torchao have no equal()."""
    assert set(a) == set(b), set(a) ^ set(b)
    for key, one in a.items():
        two = b[key]
        assert type(one) is type(two), key
        parts = [(one.qdata, two.qdata), (one.scale, two.scale)] if hasattr(one, "qdata") else [(one, two)]
        if not all(p.dtype == q.dtype and torch.equal(p, q) for p, q in parts):
            return False
    return True


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bias", [False, True])
def test_codes_come_back(dtype: torch.dtype, way: str, bias: bool) -> None:
    module = quantised(way, dtype, bias=bias)
    stored = {k: v.detach().clone() for k, v in module.state_dict().items()}
    x = torch.randn(5, WIDTH).to(dtype)
    y = module.freeze()(x)
    assert same(module.state_dict(), stored)
    twin = copy.deepcopy(module)
    assert torch.equal(twin(x), y)
    assert same(twin.thaw().state_dict(), stored)
    assert torch.equal(twin.freeze()(x), y)
    if "torchao" in way:  # which gives linear layers an extra_repr that cannot be pickled
        return
    with io.BytesIO() as file:
        torch.save(module, file)
        file.seek(0)
        again = torch.load(file, weights_only=False)
    assert torch.equal(again(x), y) and same(again.state_dict(), stored)


@pytest.mark.parametrize("way", ["int8", "int4", "torchao int8"])
def test_other_codes_are_loaded(way: str) -> None:
    module, other = quantised(way, torch.bfloat16).freeze(), quantised(way, torch.bfloat16)
    with torch.no_grad():
        for child in other.children():
            own = child.weight.qdata if "torchao" in way else child.weight_packed
            own.copy_(own.flip(0))
    x = torch.randn(5, WIDTH).bfloat16()
    before = module(x)
    module.load_state_dict(other.state_dict())
    assert not torch.equal(module(x), before)
    assert torch.equal(module(x), other.freeze()(x))


@pytest.mark.parametrize("way", [way for way in WAYS if "torchao" not in way])
def test_other_dtypes(way: str) -> None:
    """bfloat16 scales and numbers are float32 ones too. torchao's weights stay of their dtype."""
    module = quantised(way, torch.bfloat16).freeze()
    x = torch.randn(5, WIDTH).bfloat16()
    y = module(x).float()
    wide = module.float()(x.float())
    assert dtypes_of(module)[0] in (torch.int8, torch.uint8, torch.float32)
    assert (wide - y).abs().max() <= 8 * UNIT[torch.bfloat16] * y.abs().max()
    with pytest.raises(Exception, match=r"f16|Half|float16"):
        module.half()
    assert torch.equal(module(x.float()), wide), "as it was"


@pytest.mark.parametrize("way", ["int8", "int4"])
def test_memory(way: str) -> None:
    """A byte or 17 of 32 a weight, and what scales and panels add. With AMX rows of up and down lie an odd
    number of cache lines apart, one more than they have."""
    linears = [nn.Linear(1024, 2048, bias=False), nn.Linear(1024, 2048, bias=False), nn.Linear(2048, 1024, bias=False)]
    for linear in linears:
        linear.bfloat16()
        compress(linear, INT8 if way == "int8" or linear.in_features == 2048 else INT4, bits=5)
    module = twell.GatedFfn._of_linears(linears).freeze()
    codes = 2048 * 1024 * (3 if way == "int8" else 1 + 2 * 17 / 32)
    assert sum(b.nbytes for b in module.buffers()) <= 1.02 * codes + 2 * 2048 * 64


def test_compiled_and_exported() -> None:
    module = quantised("int4", torch.bfloat16).freeze()
    x = torch.randn(5, WIDTH).bfloat16()
    with torch.no_grad():
        y = module(x)
        compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
        assert torch.equal(compiled(x), y)
        assert torch.equal(torch.export.export(module, (x,)).module()(x), y)


def test_refusals() -> None:
    module = quantised("int8", torch.bfloat16).freeze()
    with pytest.raises(RuntimeError, match="no gradient where weights are codes"):
        module(torch.randn(2, WIDTH, dtype=torch.bfloat16, requires_grad=True)).sum().backward()

    def refused(change: Callable[[Any], None], match: str) -> None:
        layer = quantised("int8", torch.bfloat16)
        change(layer.up_proj)
        with pytest.raises(ValueError, match=match):
            layer.freeze()

    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        refused(lambda m, w=wrong: m.weight_scale.data[3].fill_(w), "up_proj: .*scales that are positive")
    refused(lambda m: setattr(m.quantization_scheme.weights, "symmetric", False), "symmetric codes")
    refused(lambda m: setattr(m.quantization_scheme, "input_activations", QuantizationArgs(num_bits=8)),
            "up_proj: quantises its inputs")  # fmt: skip
    refused(lambda m: m.register_forward_hook(lambda *_: None), "up_proj has hooks")
    refused(lambda m: setattr(m, "weight_g_idx", nn.Parameter(torch.zeros(WIDTH))), "weight_g_idx")
    layer = quantised("int8", torch.bfloat16)
    quantize_(plain := nn.Sequential(nn.Linear(WIDTH, NEURONS, bias=False).bfloat16()),
              Int8DynamicActivationInt8WeightConfig())  # fmt: skip
    layer.gate_proj = plain[0]
    with pytest.raises(ValueError, match="gate_proj: quantises its inputs"):
        layer.freeze()


def model_of(folder: Path, layout: str) -> nn.Module:
    """A Llama with all linear layers quantised but the head, read by transformers."""
    transformers = pytest.importorskip("transformers")
    from safetensors.torch import load_file, save_file

    torch.manual_seed(2)
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=WIDTH, intermediate_size=NEURONS, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=64, hidden_act="relu",
        tie_word_embeddings=False,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).bfloat16().save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    for name in [n for n in tensors if n.endswith("_proj.weight")]:
        weight = tensors.pop(name)
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False).bfloat16()
        linear.weight.data.copy_(weight)
        compress(linear, INT8, layout)
        tensors |= {name.removesuffix("weight") + key: t for key, t in linear.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    group = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**INT8), format=layout)
    config.quantization_config = dict(
        quant_method="compressed-tensors", format=layout, quantization_status="compressed",
        config_groups={"group_0": group.model_dump()}, ignore=["lm_head"],
    )  # fmt: skip
    config.save_pretrained(folder)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()


@pytest.mark.parametrize("layout", ["pack-quantized", "int-quantized"])
def test_a_model(tmp_path: Path, layout: str) -> None:
    ids = torch.arange(40)[None]
    with torch.inference_mode():  # after which its linear layers have numbers
        want = model_of(tmp_path / "a", layout)(ids).logits.float()
    model = model_of(tmp_path / "b", layout)
    stored = {k: v.clone() for k, v in model.state_dict().items()}
    twell.sparsify(model, sample=ids)
    layer = model.model.layers[1].mlp
    assert layer.frozen and dtypes_of(layer)[0] == torch.int8
    assert same(model.state_dict(), stored), "and the sample was not run: it is still compressed"
    with torch.inference_mode():
        got = model(ids).logits.float()
    # The other linear layers are rounded to bf16 in both; eight units of the largest logit.
    assert (got - want).abs().max() <= 8 * UNIT[torch.bfloat16] * want.abs().max()
    late = model_of(tmp_path / "c", layout)
    with torch.inference_mode():
        late(ids)
        numbers = twell.sparsify(late)
        assert dtypes_of(numbers.model.layers[0].mlp)[0] == torch.bfloat16
        assert (numbers(ids).logits.float() - want).abs().max() <= 8 * UNIT[torch.bfloat16] * want.abs().max()


@pytest.mark.parametrize("layout", ["pack-quantized", "int-quantized"])
def test_a_report_leaves_codes(tmp_path: Path, layout: str) -> None:
    """Its pass makes numbers of them, which do not stay."""
    model, ids = model_of(tmp_path, layout), torch.arange(40)[None]
    stored = {k: v.clone() for k, v in model.state_dict().items()}
    parts = [(n, id(p)) for n, p in model.named_parameters()]
    said = model.hf_quantizer.compressor.quantization_config.quantization_status
    found = twell.report(model, ids)
    assert [(layer.tokens, layer.taken) for layer in found.layers] == [(40, True)] * 2
    assert same(model.state_dict(), stored) and [(n, id(p)) for n, p in model.named_parameters()] == parts
    assert model.hf_quantizer.compressor.quantization_config.quantization_status == said
    with torch.inference_mode():
        assert dtypes_of(twell.sparsify(model).model.layers[0].mlp)[0] == torch.int8
        assert model(ids).logits.isfinite().all()


@pytest.mark.parametrize("way", WAYS)
def test_rounded_scales(dtype: torch.dtype, way: str) -> None:
    """Each is off by at most half of the fifth bit, and int4 stays codes; other layers do not change."""
    module = quantised(way, dtype)
    children = [module.get_submodule(name) for name in module.names]
    before = [_codes.codes_of("before", child) for child in children]
    before = [weight._replace(scales=weight.scales.clone()) for weight in before]
    four = way in ("int4 with wide scales", "torchao intx, 4 bits")
    assert twell.round_scales(nn.Sequential(module)) == (3 if four else 0)
    for child, was in zip(children, before):
        now = _codes.codes_of("now", child)
        assert torch.equal(now.codes, was.codes)
        if not four:
            assert torch.equal(now.scales, was.scales)
        assert ((now.scales.double() / was.scales.double() - 1).abs() <= 2.0**-5).all()
        assert not four or not torch.equal(now.scales, was.scales)
        assert not four or (now.scales.double().frexp()[0] * 32 % 1 == 0).all()
    assert twell.round_scales(module) == 0
    module.freeze()
    if four:
        assert dtypes_of(module)[:2] == [torch.uint8, torch.uint8]


def test_scales_are_rounded_before_the_first_pass(tmp_path: Path) -> None:
    model = model_of(tmp_path / "a", "pack-quantized")
    assert twell.round_scales(model) == 0
    with torch.inference_mode():
        model(torch.arange(4)[None])
    with pytest.raises(ValueError, match="q_proj: its codes have become numbers; round scales before"):
        twell.round_scales(model)


@pytest.mark.parametrize("to", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("way", ["int8", "int4"])
def test_autocast(way: str, to: torch.dtype) -> None:
    """As nn.Linear: y in autocast's type. An operator's x is in that type or, where codes do not go with
    it, wider; a frozen layer's in the type that the layer has."""
    module = quantised(way, torch.float32).freeze()
    x = torch.randn(5, WIDTH)
    kind = to if to == torch.bfloat16 else torch.float32
    weight = module._unpack()[0]
    gate = twell.ops.pack_weight(weight)

    def results(x: Tensor) -> list[Tensor]:
        return [twell.ops.linear(x, gate), twell.ops.linear_as_stored(x, weight)]

    want = [y.to(to) for y in (module(x), *results(x.to(kind)))]
    with torch.autocast("cpu", to):
        got = [module(x), *results(x)]
    assert all(torch.equal(y, z) for y, z in zip(got, want))


BENCH = Path(__file__).resolve().parents[2] / "bench"


def test_the_benchmark_of_layers_writes_its_page(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = python(BENCH / "quantised_layers.py", "--width", "256", "--neurons", "512", "--density", "0.05",
                  "--rows", "1", "8", "--long", "512", "--seconds", "0.001", "--out", tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "layers.md").read_text()
    assert page.count("| 5 % |") == 2 and "GB/s" in page
    cells = json.loads((tmp_path / "layers.json").read_text())["grid"][0]["us"]
    assert set(cells) == {"bf16", "int8", "int4", "int8, ATen", "int4, ATen", "bf16, dense", "f32, dense"}
