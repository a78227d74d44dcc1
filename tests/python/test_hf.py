"""Loading: transformers' checkpoints, SparseLM's layout, MLPs of other names and without a gate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import twell
from layers import TINY_SIZES, tiny_llama
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

def ids() -> Tensor:
    return torch.randint(0, 97, (2, 40), generator=torch.Generator().manual_seed(1))


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(ids()).logits


def test_from_pretrained(tmp_path: Path) -> None:
    want = tiny_llama()
    want.save_pretrained(tmp_path)
    model = twell.hf.from_pretrained(tmp_path)
    assert all(layer.frozen for layer in twell.sparse_layers(model).values())
    torch.testing.assert_close(logits(model), logits(want), rtol=1e-5, atol=1e-6)
    model = twell.hf.from_pretrained(tmp_path, freeze=False, dtype=torch.bfloat16)
    assert len(twell.sparse_layers(model)) == 2 and model.dtype == torch.bfloat16
    model = twell.hf.from_pretrained(tmp_path, sample=ids())
    torch.testing.assert_close(logits(model), logits(want), rtol=1e-5, atol=1e-6)
    model.save_pretrained(tmp_path / "again")
    again = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "again").eval()
    assert torch.equal(logits(again), logits(want))


# --- SparseLM -------------------------------------------------------------------------------------


def write_sparse_lm(path: Path, model: nn.Module, gated: bool, turned: bool, suffix: str) -> dict:
    names = {"gate_proj.weight": "GATE", "up_proj.weight": "UP", "down_proj.weight": "DOWN"}
    state = {}
    for name, tensor in model.state_dict().items():
        last = ".".join(name.split(".")[-2:])
        if ".mlp." in name and not gated and last.startswith("gate"):
            continue
        if last in names:
            name = name.removesuffix(last) + names[last] + suffix
            tensor = tensor.t() if turned else tensor
        state[name] = tensor.contiguous()
    path.mkdir()
    safetensors.save_file(state, path / "model.safetensors", {"format": "pt"})
    config = {
        **model.config.to_dict(), "model_type": "llama_sparse_relu", "hidden_act": "silu",
        "architectures": ["SparseLlamaForCausalLM"], "sparsity_gated_mlp": gated,
        "sparsity_new_intermediate_size": 130, "intermediate_size": 64,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config))
    return json.loads(json.dumps(config))  # keys are texts there


@pytest.mark.parametrize("suffix", ["", ".weight"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("gated", [False, True])
def test_sparse_lm(gated: bool, turned: bool, suffix: str, tmp_path: Path) -> None:
    dense = tiny_llama()
    config = write_sparse_lm(tmp_path / "in", dense, gated, turned, suffix)
    for block in dense.model.layers:
        if not gated:
            weights = block.mlp.up_proj.weight, block.mlp.down_proj.weight
            block.mlp = nn.Sequential(nn.Linear(48, 130, bias=False), nn.ReLU(),
                                      nn.Linear(130, 48, bias=False))  # fmt: skip
            block.mlp[0].weight, block.mlp[2].weight = weights
    for freeze in (True, False):
        model = twell.hf.from_pretrained(tmp_path / "in", freeze=freeze)
        kinds = {type(layer) for layer in twell.sparse_layers(model).values()}
        assert kinds == {twell.GatedFfn if gated else twell.Ffn}
        assert len(twell.sparse_layers(model)) == 2
        torch.testing.assert_close(logits(model), logits(dense), rtol=1e-5, atol=1e-6)
    # Saved as it was read.
    model.save_pretrained(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == config
    got, want = (safetensors.load_file(tmp_path / d / "model.safetensors") for d in ("out", "in"))
    assert set(got) == set(want)
    assert all(torch.equal(got[name], want[name]) for name in want)


def test_sparse_lm_in_shards(tmp_path: Path) -> None:
    """The index says which file a tensor is taken from; what ends a text is in a file of its own."""
    dense = tiny_llama()
    write_sparse_lm(tmp_path / "in", dense, True, False, "")
    tensors = safetensors.load_file(tmp_path / "in" / "model.safetensors")
    (tmp_path / "in" / "model.safetensors").unlink()
    owner = {name: ("a" if "layers.0" in name else "b") + ".safetensors" for name in tensors}
    stale = {name: torch.zeros_like(t) for name, t in tensors.items()}
    for file in ("a.safetensors", "b.safetensors"):
        state = {name: t if owner[name] == file else stale[name] for name, t in tensors.items()}
        safetensors.save_file(state, tmp_path / "in" / file, {"format": "pt"})
    index = json.dumps({"metadata": {}, "weight_map": owner})
    (tmp_path / "in" / "model.safetensors.index.json").write_text(index)
    (tmp_path / "in" / "generation_config.json").write_text('{"eos_token_id": [3, 5]}')
    model = twell.hf.from_pretrained(tmp_path / "in")
    torch.testing.assert_close(logits(model), logits(dense), rtol=1e-5, atol=1e-6)
    assert model.generation_config.eos_token_id == [3, 5]


def test_sparse_lm_that_cannot_be_told(tmp_path: Path) -> None:
    write_sparse_lm(tmp_path / "square", tiny_llama(intermediate_size=48), True, False, "")
    config = json.loads((tmp_path / "square" / "config.json").read_text())
    config["sparsity_new_intermediate_size"] = 48
    (tmp_path / "square" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"does not tell rows of neurons.*plain layout"):
        twell.hf.from_pretrained(tmp_path / "square")
    write_sparse_lm(tmp_path / "wrong", tiny_llama(intermediate_size=99), True, False, "")
    with pytest.raises(ValueError, match=r"DOWN: expected shape \[48, 130\] or its transpose"):
        twell.hf.from_pretrained(tmp_path / "wrong")
    (tmp_path / "wrong" / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no .*safetensors"):
        twell.hf.from_pretrained(tmp_path / "wrong")


# --- FATReLU ---------------------------------------------------------------------------------------


def test_fat_relu_of_the_configuration(tmp_path: Path) -> None:
    dense = tiny_llama()
    dense.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for said in ({"hidden_act": "fatrelu", "hidden_act_param": 0.01},
                 {"hidden_act": "fat_relu", "twell_fat_relu_threshold": 0.01}):  # fmt: skip
        (tmp_path / "config.json").write_text(json.dumps({**config, **said}))
        for freeze in (True, False):
            model = twell.hf.from_pretrained(tmp_path, freeze=freeze)
            layers = twell.sparse_layers(model).values()
            assert {(m.activation, m.threshold) for m in layers} == {("fat_relu", 0.01)}
            for block in dense.model.layers:
                block.mlp.act_fn = twell.FatRelu(0.01)
            torch.testing.assert_close(logits(model), logits(dense), rtol=1e-5, atol=1e-6)
            for block in dense.model.layers:
                block.mlp.act_fn = nn.ReLU()
            assert not torch.allclose(logits(model), logits(dense), rtol=1e-4, atol=1e-5)
        model.save_pretrained(tmp_path / "again")
        again = json.loads((tmp_path / "again" / "config.json").read_text())
        assert said.items() <= again.items()
    for wrong in ({}, {"hidden_act_param": None}, {"hidden_act_param": "0.01"}):
        (tmp_path / "config.json").write_text(json.dumps({**config, "hidden_act": "fatrelu", **wrong}))
        with pytest.raises(ValueError, match=r"config.json: hidden_act_param: expected the threshold"):
            twell.hf.from_pretrained(tmp_path)


def act(forward: object, **attributes: object) -> nn.Module:
    module = type("FATReLU", (nn.Module,), {"forward": forward})()
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


@pytest.mark.parametrize(
    ("module", "said", "want"),
    [
        (nn.Threshold(0.25, 0.0), None, ("fat_relu", 0.25)),
        (act(lambda s, v: torch.where(v > s.t, v, 0.0), t=0.25), None, ("fat_relu", 0.25)),
        (act(lambda s, v: torch.where(v > 0.25, v, 0.0)), 0.25, ("fat_relu", 0.25)),
        (act(lambda s, v: v * (v > s.t), t=torch.tensor(0.25)), None, ("fat_relu", 0.25)),
        (act(lambda s, v: torch.clamp(v, min=0)), 0.25, ("relu", 0.0)),
        (act(lambda s, v: torch.relu(v) ** 2), None, ("relu_squared", 0.0)),
        (torch.relu, None, ("relu", 0.0)),
        (nn.functional.relu, None, ("relu", 0.0)),
        (nn.functional.silu, None, "its activation silu yields no exact zeros"),
        (nn.ReLU6(), None, "its activation ReLU6 yields no exact zeros"),
        (nn.Hardswish(), None, "its activation Hardswish yields no exact zeros"),
        (nn.LeakyReLU(), None, "its activation LeakyReLU yields no exact zeros"),
        (nn.Threshold(0.25, 1.0), None, "its activation Threshold yields no exact zeros"),
        (act(lambda s, v: torch.where(v > 0.25, v, 0.0)), None, "FATReLU has a threshold that neither"),
        (act(lambda s, v: torch.where(v > 0.25, v, 0.0)), 0.5, "FATReLU has a threshold that neither"),
    ],
)
def test_activations_by_what_they_compute(module: object, said: object, want: object) -> None:
    from types import SimpleNamespace

    from twell.hf.activations import activation_of

    config = SimpleNamespace(hidden_act_param=said) if said is not None else None
    if isinstance(want, str):
        with pytest.raises(ValueError, match=f"^mlp: .*{want}"):
            activation_of("mlp", module, config)
    else:
        assert activation_of("mlp", module, config) == want
    kept = act(lambda s, v: torch.where(v >= 0.25, v, 0.0))
    name, threshold = activation_of("mlp", kept, SimpleNamespace(hidden_act_param=0.25))
    v = torch.tensor([0.25, torch.nextafter(torch.tensor(0.25), torch.tensor(0.0))])
    assert twell.dense.activate(v, name, threshold).tolist() == [0.25, 0.0]


# --- Other MLPs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("freeze", [False, True])
def test_arcee_has_no_gate(freeze: bool, tmp_path: Path) -> None:
    torch.manual_seed(7)
    config = transformers.ArceeConfig(**TINY_SIZES, hidden_act="relu2")
    model = transformers.ArceeForCausalLM(config).eval()
    want = logits(model)
    twell.sparsify(model, freeze=freeze)
    layers = twell.sparse_layers(model).values()
    assert [type(layer) for layer in layers] == [twell.Ffn] * 2
    assert {layer.activation for layer in layers} == {"relu_squared"}
    torch.testing.assert_close(logits(model), want, rtol=1e-5, atol=1e-6)
    model.save_pretrained(tmp_path)
    again = transformers.ArceeForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(logits(again), want)


def test_a_model_without_layers() -> None:
    with pytest.raises(ValueError, match="Linear has no MLP with gate_proj, up_proj, down_proj; or"):
        twell.sparsify(nn.Linear(8, 8))
    with pytest.raises(ValueError, match="Sequential: the model itself is the layer"):
        twell.sparsify(nn.Sequential(nn.Linear(8, 20), nn.ReLU(), nn.Linear(20, 8)))
    names = {"up": "first", "down": "second", "act": "act"}
    with pytest.raises(ValueError, match="Linear has no MLP with first, second and act; mlp= says"):
        twell.sparsify(nn.Linear(8, 8), mlp=names)


def test_a_method_is_no_activation() -> None:
    class Agent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(8, 20), nn.Linear(20, 8)

        def act(self, x: Tensor) -> Tensor:
            raise AssertionError("called")

    with pytest.raises(ValueError, match="Sequential has no MLP with"):
        twell.sparsify(nn.Sequential(Agent()))


class OtherNames(nn.Module):
    def __init__(self, *children: str, bias: bool = False) -> None:
        super().__init__()
        for name in children[:-1]:
            setattr(self, name, nn.Linear(48, 130, bias=bias))
        setattr(self, children[-1], nn.Linear(130, 48, bias=bias))
        self.order = children
        self.act = nn.ReLU()
        self.drop = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        *into, _ = (getattr(self, name) for name in self.order)
        h = self.act(into[0](x))
        return getattr(self, self.order[-1])(h if len(into) == 1 else h * into[1](x))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("children", [("w1", "w3", "w2"), ("gate", "up", "down"), ("fc1", "fc2")])
def test_other_names(children: tuple[str, ...], bias: bool) -> None:
    keys = ("gate", "up", "down")[3 - len(children) :]
    names = {**dict(zip(keys, children)), "act": "act"}
    model = nn.Sequential(*(OtherNames(*children, bias=bias) for _ in range(2)))
    x = torch.randn(300, 48, generator=torch.Generator().manual_seed(1))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        want = model(x)
        for freeze in (False, True):
            twin = nn.Sequential(*(OtherNames(*children, bias=bias) for _ in range(2)))
            twin.load_state_dict(state)
            twell.sparsify(twin, mlp=names, freeze=freeze)
            torch.testing.assert_close(twin(x), want, rtol=1e-4, atol=1e-5)
            assert list(twin.state_dict()) == list(state)
            assert all(torch.equal(v, state[k]) for k, v in twin.state_dict().items())
            twin.load_state_dict({k: -v for k, v in state.items()})
            assert not torch.allclose(twin(x), want)


def test_what_an_mlp_may_not_have() -> None:
    names = {"gate": "w1", "up": "w3", "down": "w2", "act": "act"}
    module = OtherNames("w1", "w3", "w2")
    module.norm = nn.LayerNorm(48)
    with pytest.raises(ValueError, match="mlp: expected w1, w3, w2 and act alone, got norm too"):
        twell.from_mlp(module, names=names)
    del module.norm
    with pytest.raises(ValueError, match="mlp: expected names for gate, up, down, act, or for these"):
        twell.sparsify(nn.Sequential(module), mlp={"gate": "w1"})
    with pytest.raises(ValueError, match="names: expected 3 different ones"):
        twell.GatedFfn(8, 20, names=("a", "a", "b"))
    # A gate by another name is none that may be left out.
    module = OtherNames("my_gate", "up_proj", "down_proj")
    module.act_fn = module.act
    with pytest.raises(ValueError, match=r"^0: OtherNames computes something else than down_proj"):
        twell.sparsify(nn.Sequential(module))
