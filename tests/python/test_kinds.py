"""Every kind of the table is taken by whoever reads the table: sparsify, report, and the plug-in in classes
like vLLM's. What vLLM itself computes is tested in tests/stack."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import twell
from tiny_models import features
from torch import Tensor, nn
from twell.hf.kinds import KINDS, InVllm, Kind, kind_of

WIDTH, NEURONS, EXPERTS = 24, 60, 3


def called(kind: Kind) -> str:
    form = "experts" if kind.stacked else "in code" if kind.in_code else "fused" if kind.fused else ""
    return f"{kind.linears[0]} {form}".strip()


class Layer(nn.Module):
    """Of a kind: its code does what the parts say."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.kind = kind
        *into, down = kind.linears
        for name in into:
            setattr(self, name, nn.Linear(WIDTH, NEURONS * (2 if kind.fused else 1)))
        setattr(self, down, nn.Linear(NEURONS, WIDTH))
        if kind.acts:
            setattr(self, kind.acts[0], nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        *into, down = self.kind.linears
        v, *u = [getattr(self, name)(x) for name in into]
        if self.kind.fused:
            v, *u = v.chunk(2, -1)
        h = getattr(self, self.kind.acts[0])(v) if self.kind.acts else torch.relu(v)
        return getattr(self, down)(h * u[0] if u else h)


class Block(Layer):
    """The same among other parts."""

    def __init__(self, kind: Kind) -> None:
        super().__init__(kind)
        self.attention = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        first, down = self.kind.linears
        h = getattr(self, self.kind.acts[0])(getattr(self, first)(x + self.attention(x)))
        return getattr(self, down)(h) + x


class Experts(nn.Module):
    """Whose weights are one parameter of all; every token goes to all of them."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.kind = kind
        into, down = kind.linears
        sizes = (EXPERTS, NEURONS * (2 if kind.fused else 1), WIDTH), (EXPERTS, WIDTH, NEURONS)
        for name, size in zip((into, down), sizes):
            self.register_parameter(name, nn.Parameter(torch.randn(size) / size[2] ** 0.5))
        setattr(self, kind.acts[0], nn.ReLU())

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        into, down = (getattr(self, name) for name in self.kind.linears)
        y = torch.zeros_like(x)
        for expert, (first, last) in enumerate(zip(into, down)):
            v, *u = (x @ first.t()).chunk(2 if self.kind.fused else 1, -1)
            h = getattr(self, self.kind.acts[0])(v)
            y += ((h * u[0] if u else h) @ last.t()) * (weights * (chosen == expert)).sum(-1, keepdim=True)
        return y


class ToAll(nn.Module):
    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.experts = Experts(kind)

    def forward(self, x: Tensor) -> Tensor:
        chosen = torch.arange(EXPERTS).expand(len(x), -1)
        return self.experts(x, chosen, torch.full(chosen.shape, 0.5))


class Split(nn.Module):
    """BERT's: the layer stands in two modules."""

    def __init__(self) -> None:
        super().__init__()
        self.intermediate, self.output = nn.Module(), nn.Module()
        self.intermediate.dense = nn.Linear(WIDTH, NEURONS)
        self.intermediate.intermediate_act_fn = nn.ReLU()
        self.output.dense = nn.Linear(NEURONS, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = self.intermediate.intermediate_act_fn(self.intermediate.dense(x))
        return self.output.dense(h)


def taken(model: nn.Module, layers: int = 1) -> None:
    """By sparsify, trainable and frozen, as report says."""
    x = features(7, WIDTH)
    with torch.no_grad():
        want = model(x)
        (found,) = twell.report(model, x).layers
        assert found.taken
        assert (found.activation.lower(), found.width, found.neurons) == ("relu", WIDTH, NEURONS)
        twell.sparsify(model, freeze=False)
        assert len(twell.sparse_layers(model)) == layers
        torch.testing.assert_close(model(x), want, rtol=1e-4, atol=1e-5)
        for layer in twell.sparse_layers(model).values():
            layer.freeze()
        torch.testing.assert_close(model(x), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [k for k in KINDS if k.has_linears], ids=called)
def test_a_module_of_its_own(kind: Kind) -> None:
    model = nn.Sequential(Layer(kind))
    assert kind_of(model[0]) == kind
    taken(model)


@pytest.mark.parametrize(
    "kind", [k for k in KINDS if k.has_linears and not k.gated and not k.in_code], ids=called
)
def test_among_other_parts(kind: Kind) -> None:
    taken(nn.Sequential(Block(kind)))


@pytest.mark.parametrize("kind", [k for k in KINDS if k.stacked], ids=called)
def test_experts(kind: Kind) -> None:
    taken(ToAll(kind), EXPERTS)


def test_of_two_modules() -> None:
    """Is found to say why it stays."""
    (kind,) = (k for k in KINDS if k.split)
    model = nn.Sequential(Split())
    assert kind_of(model[0]) == kind
    (found,) = twell.report(model, features(7, WIDTH)).layers
    assert not found.taken
    assert found.why == "0: its two linear layers stand in two modules"
    with pytest.raises(ValueError, match="stand in two modules"):
        twell.sparsify(model)


# --- vLLM -----------------------------------------------------------------------------------------


class Linear(nn.Linear):
    """As the plug-in sees vLLM's, of one rank."""

    reduce_results, tp_size, tp_rank, skip_bias_add = True, 1, 0, False

    def __init__(self, cols: int, rows: int) -> None:
        super().__init__(cols, rows)
        self.input_size, self.output_size, self.quant_method = cols, rows, Unquantized()

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return super().forward(x), None


class Unquantized:
    pass


class AndMul(nn.Module):
    def __init__(self, threshold: float) -> None:
        super().__init__()
        self.threshold = threshold

    def forward(self, v: Tensor) -> Tensor:
        g, u = v.chunk(2, -1)
        return torch.where(g > self.threshold, g, 0.0) * u


class Squared(nn.Module):
    def forward(self, v: Tensor) -> Tensor:
        return torch.relu(v).square()


def owner_of(kind: Kind, known: InVllm) -> Any:
    """A class with the names of vLLM's."""

    def __init__(self: Any, hidden_act: str, prefix: str = "") -> None:
        nn.Module.__init__(self)
        if hidden_act in known.refuses:
            raise ValueError(f"Unsupported activation: {hidden_act}")
        first, last = kind.linears
        setattr(self, first, Linear(WIDTH, NEURONS * (2 if kind.fused else 1)))
        setattr(self, last, Linear(NEURONS, WIDTH))
        acts = {"silu": nn.SiLU(), "relu": nn.ReLU(), "relu2": Squared(), "fatrelu": AndMul(0.01)}
        setattr(self, "activation_fn" if first == "fc1" else "act_fn", acts[hidden_act])

    def forward(self: Any, x: Tensor) -> Tensor:
        v, _ = getattr(self, kind.linears[0])(x)
        y, _ = getattr(self, kind.linears[1])(kind.act_of(self)(v))
        return y

    return type(known.name, (nn.Module,), {"__init__": __init__, "forward": forward})


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The plug-in beside what it reads of vLLM."""
    read: dict[str, dict[str, Any]] = {
        "config": {
            "get_current_vllm_config": lambda: SimpleNamespace(
                model_config=SimpleNamespace(hf_config=SimpleNamespace(hidden_act_param=0.01), model="none"),
                lora_config=None,
            )
        },
        "distributed": {},
        "logger": {"init_logger": lambda _: SimpleNamespace(info_once=lambda *_: None)},
        "platforms": {"PlatformEnum": SimpleNamespace(CPU=0)},
        "scalar_type": {"scalar_types": None},
        "model_executor.kernels.linear": {"MPLinearKernel": object, "_POSSIBLE_KERNELS": {}},
        "model_executor.layers.activation": {"FatreluAndMul": AndMul, "ReLUSquaredActivation": Squared},
        "model_executor.layers.linear": {"UnquantizedLinearMethod": Unquantized},
        "model_executor.layers.quantization.base_config": {"QuantizeMethodBase": object},
        "model_executor.layers.quantization.compressed_tensors.schemes": {"CompressedTensorsWNA16": Squared},
        "model_executor.layers.vocab_parallel_embedding": {},
        "model_executor.layers.utils": {"dispatch_cpu_unquantized_gemm": lambda *_: None},
    }
    for kind in KINDS:
        for known in kind.vllm:
            read[f"model_executor.models.{known.models}"] = {known.name: owner_of(kind, known)}
    for name, members in read.items():
        module = ModuleType(f"vllm.{name}")
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delenv("TWELL_VLLM", raising=False)
    found = importlib.import_module("twell.vllm")
    found.register()
    yield found
    for name in ("vllm", "_vllm_linear"):
        del sys.modules[f"twell.{name}"]
        delattr(twell, name)


@pytest.mark.parametrize(
    ("kind", "known"), [pytest.param(k, v, id=v.name) for k in KINDS for v in k.vllm]
)
def test_in_vllm(plugin: Any, kind: Kind, known: InVllm) -> None:
    owner = getattr(sys.modules[f"vllm.model_executor.models.{known.models}"], known.name)
    for act in (*known.refuses, "fatrelu") if kind.gated else ("relu", "relu2"):
        layer, x = owner(hidden_act=act), features(7, WIDTH)
        want = layer(x)
        layer.quant_method.process_weights_after_loading(layer)
        assert getattr(layer, kind.linears[0]).sparse.frozen
        torch.testing.assert_close(layer(x), want, rtol=1e-4, atol=1e-5)
    assert not hasattr(owner(hidden_act="silu"), "quant_method")
