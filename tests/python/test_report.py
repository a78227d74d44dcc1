"""twell.report: what it counts and says, and that it changes nothing."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable

import pytest
import torch
import twell
from layers import TINY_SIZES, tiny_llama
from tiny_models import AMONG_OTHERS, MODULES_OF_THEIR_OWN, STACKED, Tiny, features, ids, of, text
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

transformers = pytest.importorskip("transformers")

SILU = Tiny(of("LlamaForCausalLM", "LlamaConfig", TINY_SIZES), text, 0)
BERT = Tiny(
    of("BertModel", "BertConfig", {**TINY_SIZES, "hidden_act": "relu"}), text, 0, "last_hidden_state"
)
MODELS = {
    "opt": AMONG_OTHERS["opt"],
    "torch encoder": AMONG_OTHERS["torch encoder"],
    "t5 with a gate": MODULES_OF_THEIR_OWN["t5 with a gate"],
    "phi3": MODULES_OF_THEIR_OWN["phi3"],
    "bitnet": MODULES_OF_THEIR_OWN["bitnet"],
    "decision transformer": MODULES_OF_THEIR_OWN["decision transformer"],
    **STACKED,
    "silu": SILU,
    "bert": BERT,
}


def everything(model: nn.Module) -> list[object]:
    hooks = [
        [dict(getattr(m, h)) for h in ("_forward_hooks", "_forward_pre_hooks")] for m in model.modules()
    ]
    kinds = [(n, type(m), m.training, sorted(m.__dict__)) for n, m in model.named_modules()]
    return [hooks, kinds, [(n, id(p)) for n, p in model.named_parameters()]]


@pytest.mark.parametrize("tiny", MODELS.values(), ids=MODELS.keys())
def test_report(tiny: Tiny) -> None:
    model = tiny.model().train()
    before, state = everything(model), copy.deepcopy(model.state_dict())
    found = twell.report(model, tiny.inputs())
    assert everything(model) == before
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    places = {layer.name: layer for layer in found.layers}
    for layer in found.layers:
        assert layer.tokens > 0 and 0 <= layer.never <= 1
        assert layer.nnz_mean <= layer.nnz_max <= layer.neurons and 0 < layer.share <= 1
        assert layer.taken == (not layer.why)
    assert json.loads(json.dumps(found.to_dict()))["layers"][0]["share"] == found.layers[0].share
    assert 0 < found.in_layers < found.parameters
    lines = str(found).splitlines()
    assert lines[0].startswith(f"{type(model).__name__}: {len(places)} feed-forward layers, ")
    assert all(any(line.startswith(name + " ") for line in lines) for name in places)
    if tiny is SILU:
        assert {(layer.share, layer.gain) for layer in found.layers} == {(1.0, None)}
        assert lines[-2].startswith("2 LlamaMLP: not taken: its activation SiLUActivation yields no ex")
        assert lines[-1].startswith("Where every neuron fires there is nothing to gain. Training with")
    elif tiny is BERT:
        assert lines[-1] == "2 BertLayer: not taken: its two linear layers stand in two modules"
        assert all(1 < layer.gain < 2 for layer in found.layers)
    else:
        # As the layers themselves say, once they are there.
        assert {layer.why for layer in found.layers} == {""}
        sparse = twell.report(twell.sparsify(copy.deepcopy(model)), tiny.inputs())
        if tiny not in STACKED.values():
            for mine, theirs in zip(sparse.layers, found.layers, strict=True):
                assert mine.name.removesuffix(".sparse_ffn") == theirs.name
                assert mine.nnz_mean == pytest.approx(theirs.nnz_mean, rel=0.01)
                assert mine.gain == pytest.approx(theirs.gain, rel=0.01)


def test_what_is_counted() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2, self.act = nn.Linear(24, 60), nn.Linear(60, 24), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.fc2(self.act(self.fc1(x)))

    torch.manual_seed(3)
    model, x = nn.Sequential(Block()), features(7, 24)
    with torch.no_grad():
        model[0].fc1.bias[:5] = -100
    fired = torch.relu(model[0].fc1(x)) != 0
    (layer,) = twell.report(model, (x,)).layers
    assert (layer.name, layer.module, layer.activation) == ("0", "Block", "ReLU")
    assert (layer.width, layer.neurons, layer.tokens) == (24, 60, 7)
    assert layer.nnz_mean == pytest.approx(float(fired.sum(1).float().mean()))
    assert layer.nnz_max == int(fired.sum(1).max())
    assert layer.never == pytest.approx(float((~fired.any(0)).float().mean())) and layer.never >= 5 / 60
    assert layer.gain == pytest.approx(2 / (1 + layer.share))
    # Without a sample nothing is counted.
    (layer,) = twell.report(model).layers
    assert layer.tokens == 0 and layer.gain is None and layer.taken
    assert "no feed-forward layer" in str(twell.report(nn.Linear(3, 3), features(2, 3)))


def test_padding_in_nested_tensors_is_not_counted() -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(24, 2, 60, batch_first=True), 1)
    mask = torch.arange(20) >= torch.tensor([20, 7, 12])[:, None]
    sample = {"src": features(3, 20, 24), "src_key_padding_mask": mask}
    assert twell.report(model, sample).layers[0].tokens == 39


def test_layers_that_train() -> None:
    model = twell.sparsify(MODULES_OF_THEIR_OWN["arcee"].model(), freeze=False)
    assert [layer.taken for layer in twell.report(model, ids()).layers] == [True, True]


def mlp(model: nn.Module, block: int = 0) -> nn.Module:
    return model.get_submodule(f"model.layers.{block}.mlp")


def tie(model: nn.Module) -> None:
    mlp(model).up_proj.weight = mlp(model, 1).up_proj.weight


def adapter(model: nn.Module) -> None:
    peft = pytest.importorskip("peft")
    peft.inject_adapter_in_model(peft.LoraConfig(target_modules=["up_proj"]), model)


def share(model: nn.Module) -> None:
    model.get_submodule("model.layers.1").mlp = mlp(model)


def another_activation(*blocks: int) -> Callable[[nn.Module], None]:
    def change(model: nn.Module) -> None:
        for block in blocks:
            mlp(model, block).act_fn = nn.SiLU()

    return change


def compile_it(model: nn.Module) -> None:
    model.get_submodule("model.layers.0").mlp = torch.compile(mlp(model), backend="eager")


DEFORMED: dict[str, Callable[[nn.Module], object]] = {
    "plain": lambda model: None,
    "half": lambda model: model.half(),
    "double": lambda model: model.double(),
    "two dtypes": lambda model: mlp(model).down_proj.bfloat16(),
    "tied": tie,
    "adapter": adapter,
    "pruned": lambda model: prune.l1_unstructured(mlp(model).up_proj, "weight", 0.5),
    "weight norm": lambda model: parametrizations.weight_norm(mlp(model).up_proj),
    "hook on a linear layer": lambda model: mlp(model).down_proj.register_forward_hook(print),
    "hook on the MLP": lambda model: mlp(model).register_forward_hook(lambda *_: None),
    "hook on the activation": lambda model: mlp(model).act_fn.register_forward_hook(print),
    "shared": share,
    "one of another activation": another_activation(1),
    "all of another activation": another_activation(0, 1),
    "compiled": compile_it,
    "more in it": lambda model: mlp(model).add_module("norm", nn.LayerNorm(8)),
    "sparse already": twell.sparsify,
    "without data": lambda model: model.to("meta"),
}


@pytest.mark.parametrize("change", DEFORMED.values(), ids=DEFORMED.keys())
def test_taken_is_what_sparsify_takes(change: Callable[[nn.Module], object]) -> None:
    model = tiny_llama()
    change(model)
    before = everything(model)
    found = {layer.name: layer for layer in twell.report(model).layers}
    assert everything(model) == before and len(found) in (1, 2)
    sparse = twell.sparse_layers(model)
    said = ""
    try:
        twell.sparsify(model)
    except ValueError as error:
        said = str(error)
    taken = twell.sparse_layers(model).keys()
    if not sparse:
        assert {name for name, layer in found.items() if layer.taken} == set(taken) & set(found)
        assert not said or said in {layer.why for layer in found.values()}
        assert all(layer.why.endswith(said) for layer in found.values() if "or none" in layer.why)


class Restless(nn.Module):
    """Changes all that a forward pass may change."""

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 24, max_norm=0.1)
        self.up, self.down, self.act = nn.Linear(24, 60), nn.Linear(60, 24), nn.ReLU()
        self.mlp = nn.Sequential(self.up, self.act, self.down)
        self.register_buffer("calls", torch.zeros(1))
        self.past: list[Tensor] = []
        self.fails = fails
        self.handle = self.register_forward_pre_hook(self.unpacked)

    @staticmethod
    def unpacked(model: Restless, given: object) -> None:
        model.handle.remove()
        del model.handle
        model.up.weight = nn.Parameter(model.up.weight.detach() * 1)
        model.up.packed = None

    def eval(self) -> Restless:
        raise AssertionError

    def forward(self, x: Tensor) -> Tensor:
        assert not any(m.training for m in self.modules())
        y = self.words(x) + torch.rand(1) + random.random()
        self.calls += 1
        self.past.append(y)
        self.up.bias.requires_grad_(False)
        if self.fails:
            raise RuntimeError("it fails")
        return self.mlp[2](input=self.act(self.up(y)))


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_as_it_was(fails: bool) -> None:
    model = Restless(fails)
    model.mlp.eval()
    before = [vars(m).copy() for m in model.modules()]
    kept, state = everything(model), copy.deepcopy(model.state_dict())
    random_states = torch.get_rng_state(), random.getstate()
    if fails:
        with pytest.raises(RuntimeError, match="it fails"):
            twell.report(model, ids() % 9)
    else:
        assert [layer.tokens for layer in twell.report(model, ids() % 9).layers] == [48]
    assert everything(model) == kept and [vars(m) for m in model.modules()] == before
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert model.up.bias.requires_grad and not model.past
    assert torch.equal(torch.get_rng_state(), random_states[0]) and random.getstate() == random_states[1]
    model.handle.remove()
    assert not model._forward_pre_hooks


def test_compiled_code_is_counted_and_a_model_that_is_the_layer() -> None:
    model = tiny_llama()
    compile_it(model)
    with torch.no_grad():
        model(ids())
    assert [layer.tokens for layer in twell.report(model, ids()).layers] == [48, 48]
    (layer,) = twell.report(nn.Sequential(nn.Linear(8, 20), nn.ReLU(), nn.Linear(20, 8))).layers
    assert not layer.taken and layer.why.startswith("Sequential: the model itself is the layer")


class Observes(nn.Module):
    """A ReLU that notes what it sees, as observers of ranges do, and draws numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("most", torch.zeros(()))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.most.copy_(x.max())
        self.calls += 1
        torch.rand(1)
        return torch.relu(x)


@pytest.mark.parametrize("sample", [None, torch.arange(8)[None]])
@pytest.mark.parametrize("call", ["report", "sparsify"])
def test_an_activation_that_is_tried_is_as_it_was(call: str, sample: Tensor | None) -> None:
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, vocab_size=50
    )
    model = transformers.LlamaForCausalLM(config)
    act = model.model.layers[0].mlp.act_fn = Observes()
    drawn = torch.get_rng_state()
    try:
        getattr(twell, call)(model, sample=sample)
    except ValueError:
        assert call == "sparsify"
    assert act.calls == 0 and act.most == 0
    assert torch.equal(torch.get_rng_state(), drawn)
