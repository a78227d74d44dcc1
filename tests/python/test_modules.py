"""GatedFfn and sparsify: checkpoints, freezing, training, Hugging Face models."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import pytest
import torch
import twell
from layers import Layer, assert_within, let_screens_pay, make_layer, reference
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def module_of(layer: Layer, **options: object) -> twell.GatedFfn:
    down = layer.down.t().contiguous()
    return twell.GatedFfn.from_dense(layer.gate, layer.up, down, **options)


def test_frozen_inference_is_the_operator(dtype: torch.dtype) -> None:
    layer = make_layer(40, 100, dtype)
    module = module_of(layer).freeze()
    x = layer.inputs(2, 5)
    y = module(x)
    with torch.inference_mode():
        assert torch.equal(module(x), y)
    packed = twell.ops.pack_weight(layer.gate)
    assert torch.equal(y, twell.ops.ffn(x, packed, layer.up, layer.down))


@pytest.mark.parametrize("tokens", [0, 1, 300])
def test_unfrozen_inference(tokens: int, dtype: torch.dtype, gated: bool) -> None:
    layer = make_layer(40, 100, dtype)
    up, down = (layer.up if gated else None), layer.down.t().contiguous()
    weights = [w for w in (layer.gate, up, down) if w is not None]
    module = (twell.GatedFfn if gated else twell.Ffn).from_dense(*weights)
    x = layer.inputs(tokens)
    want = reference(x, layer.gate, up, layer.down)
    with torch.inference_mode():
        # PyTorch's dense products round each result, u among them, once more.
        assert_within(module(x), want, 1.0 if dtype == torch.float32 else 2.0)
        assert_within(module.freeze()(x), want)


def test_training_leaves_the_l1_term() -> None:
    layer = make_layer(40, 100)
    module = module_of(layer).requires_grad_()
    x = layer.inputs(5)
    y = module(x)
    assert y.requires_grad and module.l1 is None
    module.collect_l1 = True
    y = module(x)
    h = torch.relu(x @ layer.gate.t()) * (x @ layer.up.t())
    torch.testing.assert_close(module.l1.detach(), h.abs().sum() / 5)
    (y.square().mean() + 1e-2 * twell.l1_term(module)).backward()
    assert all(p.grad is not None and p.grad.any() for p in module.parameters())


def gradients_of(module: nn.Module, run: Callable[[], Tensor]) -> list[Tensor]:
    module.zero_grad()
    run().backward()
    return [p.grad.clone() for p in module.parameters()]


@pytest.mark.parametrize("weight", [0.25, torch.tensor(0.25)])
def test_l1_weight_is_the_term_in_the_loss(weight: float | Tensor) -> None:
    layer = make_layer(40, 100)
    module = module_of(layer).requires_grad_()
    x = layer.inputs(5)

    def plain() -> Tensor:
        return module(x).square().mean()

    none = gradients_of(module, plain)
    module.collect_l1 = True
    term = gradients_of(module, lambda: plain() + 0.25 * twell.l1_term(module))
    twell.set_l1(module, weight)
    module(x).add_(1.0)  # as a residual may be
    assert all(map(torch.equal, gradients_of(module, plain), term))
    assert not module.l1.requires_grad and module.l1 > 0
    x.requires_grad_()  # the reentrant kind wants an input with a gradient
    for reentrant in (False, True):
        again = gradients_of(
            module,
            lambda r=reentrant: checkpoint(module, x, use_reentrant=r).square().mean(),
        )
        assert all(map(torch.equal, again, term))
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    for got, want in zip(gradients_of(module, lambda: compiled(x).square().mean()), term):
        torch.testing.assert_close(got, want)
    twell.set_l1(module, 0.0)
    assert all(map(torch.equal, gradients_of(module, plain), none))
    assert not torch.equal(none[0], term[0])
    for model in (nn.Linear(2, 2), module_of(layer).freeze()):
        with pytest.raises(ValueError, match="has no GatedFfn or Ffn layer that is not frozen"):
            twell.set_l1(model, 1.0)
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="set_l1: coefficient: expected 0 or more, got"):
            twell.set_l1(module, wrong)


def test_state_dict_keeps_the_checkpoint_layout(dtype: torch.dtype) -> None:
    layer = make_layer(40, 100, dtype)
    want = {
        "gate_proj.weight": layer.gate,
        "up_proj.weight": layer.up,
        "down_proj.weight": layer.down.t(),
    }
    module = module_of(layer)
    for state in (module.state_dict(), module.freeze().state_dict(), module.thaw().state_dict()):
        assert list(state) == list(want)
        assert all(torch.equal(state[key], want[key]) for key in want)
        assert all(value.is_contiguous() for value in state.values())


@pytest.mark.parametrize("freeze", [False, True])
def test_load_state_dict(freeze: bool, dtype: torch.dtype) -> None:
    source, target = make_layer(40, 100, dtype, seed=1), make_layer(40, 100, dtype, seed=2)
    module = module_of(target)
    fresh = module_of(source)
    if freeze:
        module.freeze()
        fresh.freeze()
    outer = nn.ModuleDict({"mlp": module})
    state = nn.ModuleDict({"mlp": module_of(source)}).state_dict()
    x = source.inputs(4)
    with torch.no_grad():
        module(x)
        outer.load_state_dict(state)
        assert torch.equal(module(x), fresh(x))
    with pytest.raises(RuntimeError, match=r"Missing key.*mlp.up_proj.weight"):
        outer.load_state_dict({k: v for k, v in state.items() if "up" not in k})
    with pytest.raises(RuntimeError, match=r"Unexpected key.*mlp.bias_proj.weight"):
        outer.load_state_dict({**state, "mlp.bias_proj.weight": state["mlp.up_proj.weight"]})
    with pytest.raises(RuntimeError, match=r"size mismatch|expected shape"):
        outer.load_state_dict({**state, "mlp.up_proj.weight": torch.zeros(3, 4)})
    with torch.no_grad():
        assert torch.equal(module(x), fresh(x))


def test_who_wants_gradients() -> None:
    layer = make_layer(8, 20)
    assert not any(p.requires_grad for p in module_of(layer).parameters())
    layer.up.requires_grad_()
    wanting = {name for name, p in module_of(layer).named_parameters() if p.requires_grad}
    assert wanting == {"up_proj.weight"}
    assert all(p.requires_grad for p in twell.GatedFfn(8, 20).parameters())
    held = nn.Parameter(layer.gate)
    assert twell.GatedFfn.from_dense(held, layer.up, layer.down.t()).gate_proj.weight is held


def test_frozen_keeps_one_copy() -> None:
    layer = make_layer(64, 160, torch.bfloat16)
    module = module_of(layer).freeze()
    assert not list(module.parameters())
    held = sum(b.nbytes for b in module.buffers())
    # A block's header; with AMX the rows of up and down lie an odd number of cache lines apart, 3 for 2.
    weight = 2 * 64 * 160
    assert 0 <= held - 3 * weight < 512 + (weight if twell.ops.cpu_tier() == "amx" else 0)


def test_conversions_of_a_frozen_module() -> None:
    layer = make_layer(40, 100)
    module = module_of(layer).freeze().to(torch.bfloat16)
    rounded = Layer(*(w.bfloat16() for w in (layer.gate, layer.up, layer.down)), layer.shift)
    x = rounded.inputs(6)
    with torch.no_grad():
        assert module.frozen and torch.equal(module(x), module_of(rounded).freeze()(x))
        twin = copy.deepcopy(module)
        assert torch.equal(twin(x), module(x))
        buffer = io.BytesIO()
        torch.save(module, buffer)
        buffer.seek(0)
        assert torch.equal(torch.load(buffer, weights_only=False)(x), module(x))
    # What cannot be converted stays as it was.
    with pytest.raises(RuntimeError, match="expected dtype bfloat16 or float32"):
        module.half()
    assert module.frozen and module._dtype == torch.bfloat16
    assert torch.equal(module(x), twin(x))


# A screen of this layer leaves some 3 % of the neurons.
def sparse_layer(dtype: torch.dtype = torch.float32) -> Layer:
    return make_layer(300, 600, dtype, density=0.005)


@pytest.fixture(params=[0.0, 0.25])
def limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """What tiers say that never screen, and those that do."""
    let_screens_pay(monkeypatch, request.param)
    return request.param


def test_sample_lets_freeze_screen(limit: float, dtype: torch.dtype) -> None:
    layer = sparse_layer(dtype)
    module, packed = module_of(layer).freeze(layer.inputs(4, 16)), module_of(layer).freeze()
    assert module.screened == (limit > 0) and not packed.screened
    x = layer.inputs(7, seed=1)
    assert_within(module(x), reference(x, layer.gate, layer.up, layer.down))
    state = module.state_dict()
    assert torch.equal(state["gate_proj.weight"], layer.gate)
    state["gate_proj.weight"].neg_()  # the caller's own
    assert_within(module(x), reference(x, layer.gate, layer.up, layer.down))
    # What conversions and checkpoints do to a packed layer, they do to this one.
    other = next(d for d in (torch.float32, torch.bfloat16) if d != dtype)
    twin = copy.deepcopy(module).to(other)
    assert twin.screened == module.screened
    weights = (w.to(other) for w in (layer.gate, layer.up, layer.down))
    assert_within(twin(x.to(other)), reference(x.to(other), *weights))
    fresh = make_layer(300, 600, dtype, density=0.005, seed=3)
    module.load_state_dict(module_of(fresh).state_dict())
    assert_within(module(x), reference(x, fresh.gate, fresh.up, fresh.down))
    # Who holds the tensors of the checkpoint may do with them what they like.
    held = layer.gate.clone()
    module = module_of(Layer(held, layer.up, layer.down, layer.shift)).freeze(layer.inputs(64))
    held.zero_()
    assert_within(module(x), reference(x, layer.gate, layer.up, layer.down))
    # Thawed it is as if it had never been frozen.
    assert torch.equal(module.thaw().gate_proj.weight, layer.gate)
    assert not module.freeze().screened


def test_sample_of_dense_inputs_packs(limit: float) -> None:
    layer = make_layer(300, 600, density=0.5)
    assert not module_of(layer).freeze(layer.inputs(64)).screened


def test_frozen_layer_chooses_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    let_screens_pay(monkeypatch, 0.25)
    layer = sparse_layer()
    module = module_of(layer).freeze()
    assert module.freeze(layer.inputs(64)).screened and module.freeze().screened
    assert not module.freeze(-layer.inputs(64)).screened  # where nearly all fire
    assert module.frozen


def test_gradient_of_the_input_of_a_frozen_layer(limit: float) -> None:
    layer = sparse_layer()
    grads = []
    for module in (module_of(layer), module_of(layer).freeze(layer.inputs(64))):
        x = layer.inputs(40).requires_grad_()
        module(x).square().sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads)
    assert grads[0].any()


def test_wrong_samples_are_refused() -> None:
    layer = make_layer(8, 20)
    module = module_of(layer)
    for sample in (layer.inputs(31), torch.zeros(32, 9), torch.zeros(0, 8), torch.zeros(())):
        with pytest.raises(ValueError, match="sample: expected 32 or more inputs of size 8"):
            module.freeze(sample)
    for sample in (torch.zeros(40, 8, device="meta"), torch.zeros(40, 8, dtype=torch.long)):
        with pytest.raises(ValueError, match="sample: expected floating-point numbers on cpu, as the"):
            module.freeze(sample)
    assert not module.frozen


def test_two_modules_do_not_meet() -> None:
    first, second = make_layer(32, 70, seed=1), make_layer(48, 500, torch.bfloat16, seed=2)
    modules = [module_of(first).freeze(), module_of(second).freeze()]
    with torch.no_grad():
        alone = [m(layer.inputs(9)) for m, layer in zip(modules, (first, second))]
        for _ in range(3):
            for module, layer, want in zip(modules, (first, second), alone):
                assert torch.equal(module(layer.inputs(9)), want)


def test_fat_relu_module() -> None:
    layer = make_layer(32, 70, density=0.5)
    module = module_of(layer, activation="fat_relu", threshold=0.3)
    x = layer.inputs(9)
    with torch.no_grad():
        y = module(x)
    assert_within(y, reference(x, layer.gate, layer.up, layer.down, "fat_relu", 0.3))
    torch.testing.assert_close(module.requires_grad_()(x), y)
    assert "fat_relu, threshold=0.3" in repr(module)


def test_wrong_weights_are_refused() -> None:
    layer = make_layer(8, 20)
    with pytest.raises(ValueError, match=r"expected shapes \[H, D\], \[H, D\], \[D, H\]"):
        twell.GatedFfn.from_dense(layer.gate, layer.up, layer.down)
    with pytest.raises(ValueError, match="expected one dtype"):
        twell.GatedFfn.from_dense(layer.gate, layer.up.double(), layer.down.t())
    with pytest.raises(ValueError, match='got "silu"'):
        twell.GatedFfn(8, 20, activation="silu")
    with pytest.raises(RuntimeError, match="no layer holds an L1 term"):
        twell.l1_term(module_of(layer))


# --- Hugging Face models -----------------------------------------------------------------------

transformers = pytest.importorskip("transformers")


def tiny_model(
    kind: str, hidden_act: str, dtype: torch.dtype = torch.float32, **extra: object
) -> nn.Module:
    torch.manual_seed(7)
    config = {
        "vocab_size": 97,
        "hidden_size": 48,
        "intermediate_size": 130,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "hidden_act": hidden_act,
        **extra,
    }
    if kind == "llama":
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config))
    else:
        model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**config))
    return model.to(dtype).eval()


def tokens() -> Tensor:
    return torch.randint(0, 97, (2, 17), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize("hidden_act", ["relu", "relu2"])
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_sparsified_model_equals_dense(kind: str, hidden_act: str, freeze: bool) -> None:
    model = tiny_model(kind, hidden_act)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        want = model(tokens()).logits
        wide = copy.deepcopy(model).double()(tokens()).logits
        assert twell.sparsify(model, freeze=freeze) is model
        got = model(tokens()).logits
        generated = model.generate(tokens(), max_new_tokens=5, do_sample=False, pad_token_id=0)
    assert sum(isinstance(m, twell.GatedFfn) for m in model.modules()) == 3
    # Both are float32 roundings of the same function: the sparse one errs no more than twice what
    # the dense one does, which is itself a sum of some thousand roundings.
    assert (got.double() - wide).abs().max() <= 2 * (want.double() - wide).abs().max() + 2.0**-22
    assert generated.shape == (2, 22)
    after = model.state_dict()
    assert list(after) == list(state)
    assert all(torch.equal(after[name], state[name]) for name in state)


def test_sparsified_bf16_model() -> None:
    model = tiny_model("llama", "relu", torch.bfloat16)
    with torch.no_grad():
        want = model(tokens()).logits.float()
        wide = copy.deepcopy(model).double()(tokens()).logits
        got = twell.sparsify(model)(tokens()).logits.float()
    assert (got - wide).norm() <= 1.05 * (want - wide).norm()


@pytest.mark.parametrize("mapping", [False, True])
def test_sparsify_with_a_sample(mapping: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    let_screens_pay(monkeypatch)
    model = tiny_model("llama", "relu")
    twin, sample = twell.sparsify(copy.deepcopy(model), freeze=False), tokens().repeat(1, 2)
    seen = []
    for block in twin.model.layers:
        block.mlp.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    with torch.no_grad():
        twin(sample)
        twell.sparsify(model, sample={"input_ids": sample} if mapping else sample)
        got, want = model(tokens()).logits, twin(tokens()).logits
    torch.testing.assert_close(got, want)
    # Each layer's screen is the one that its own inputs make.
    for block, other, x in zip(model.model.layers, twin.model.layers, seen):
        assert torch.equal(block.mlp.block, other.mlp.freeze(x).block)


def test_sparsify_refuses_a_useless_sample() -> None:
    model = tiny_model("llama", "relu")
    modules = dict(model.named_modules())
    with pytest.raises(ValueError, match="expected 32 or more tokens, of which the MLPs saw 17"):
        twell.sparsify(model, sample=tokens()[:1])
    with pytest.raises(ValueError, match="expected freeze=True"):
        twell.sparsify(model, sample=tokens(), freeze=False)
    with pytest.raises(ValueError, match="sample: expected it on cpu, as the model, got meta"):
        twell.sparsify(model, sample=tokens().to("meta"))
    with pytest.raises(ValueError, match="must specify exactly one"):
        twell.sparsify(model, sample={"no_such_argument": tokens()})
    with pytest.raises(IndexError):
        twell.sparsify(model, sample=tokens() + 97)
    assert dict(model.named_modules()) == modules
    assert not any(m._forward_hooks for m in model.modules())


def test_sample_meets_the_stated_activation(monkeypatch: pytest.MonkeyPatch) -> None:
    let_screens_pay(monkeypatch)
    mislabelled, honest = tiny_model("llama", "silu"), tiny_model("llama", "relu")
    sample = tokens().repeat(1, 2)
    twell.sparsify(mislabelled, activation="relu", sample=sample)
    twell.sparsify(honest, sample=sample)
    for got, want in zip(mislabelled.model.layers, honest.model.layers):
        assert torch.equal(got.mlp.block, want.mlp.block)


class Experts(nn.Module):
    """Two MLPs, one of which sees a single token, and by keyword."""

    def __init__(self) -> None:
        super().__init__()
        blocks = tiny_model("llama", "relu").model.layers
        self.busy, self.idle = blocks[0].mlp, blocks[1].mlp

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.busy(x[:40]) + self.busy(x[1:]), self.idle(x=x[:1])])


def test_a_layer_that_sees_little_of_the_sample_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    let_screens_pay(monkeypatch)
    x = torch.randn(41, 48, generator=torch.Generator().manual_seed(1))
    model = twell.sparsify(Experts(), sample=x)
    assert model.busy.screened and model.idle.frozen and not model.idle.screened
    # Of both calls.
    twin = twell.from_mlp(Experts().busy).freeze(torch.cat([x[:40], x[1:]]))
    assert torch.equal(model.busy.block, twin.block)


def test_saved_model_is_an_ordinary_checkpoint(tmp_path: object) -> None:
    model = tiny_model("llama", "relu")
    with torch.no_grad():
        want = model(tokens()).logits
    twell.sparsify(model).save_pretrained(tmp_path)
    again = transformers.LlamaForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(again(tokens()).logits, want)


def test_trainable_model_learns() -> None:
    model = twell.sparsify(tiny_model("llama", "relu"), freeze=False).train()
    for module in model.modules():
        if isinstance(module, twell.GatedFfn):
            module.collect_l1 = True
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(20):
        loss = model(tokens(), labels=tokens()).loss
        (loss + 1e-3 * twell.l1_term(model)).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("hidden_act", ["silu", "gelu"])
def test_dense_activations_are_refused(hidden_act: str) -> None:
    model = tiny_model("llama", hidden_act)
    with pytest.raises(
        ValueError, match=r"model.layers.0.mlp: its activation .* yields no exact zeros"
    ):
        twell.sparsify(model)
    assert not any(isinstance(m, twell.GatedFfn) for m in model.modules())


def test_stated_activation_wins() -> None:
    # A checkpoint trained with ReLU whose configuration still says silu.
    mislabelled, honest = tiny_model("llama", "silu"), tiny_model("llama", "relu")
    with torch.no_grad():
        got = twell.sparsify(mislabelled, activation="relu")(tokens()).logits
        assert torch.equal(got, twell.sparsify(honest)(tokens()).logits)


def test_a_model_without_gated_mlps_is_refused() -> None:
    with pytest.raises(ValueError, match="Sequential has no MLP with gate_proj"):
        twell.sparsify(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
    with pytest.raises(ValueError, match=r"ffn: expected linear layers gate_proj.*got Linear"):
        twell.from_mlp(nn.Linear(3, 3), name="ffn")


def test_fat_relu_is_recognised() -> None:
    model = tiny_model("llama", "silu")
    for block in model.model.layers:
        block.mlp.act_fn = twell.FatRelu(0.05)
    with torch.no_grad():
        want = model(tokens()).logits
        twell.sparsify(model)
        torch.testing.assert_close(model(tokens()).logits, want, rtol=0, atol=1e-5)
    assert model.model.layers[0].mlp.threshold == 0.05
