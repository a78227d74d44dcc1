"""twell.report: what it counts and says, and that it changes nothing."""

from __future__ import annotations

import copy
import json

import pytest
import torch
import twell
from layers import TINY_SIZES
from tiny_models import AMONG_OTHERS, MODULES_OF_THEIR_OWN, STACKED, Tiny, features, ids, of, text
from torch import Tensor, nn

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
