"""What others do to a layer's weights and to its linear layers is seen: optimizers, adapters, hooks."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import twell
from layers import UNIT, Reference, assert_within, make_layer, reference, tiny_llama
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint

KINDS = [twell.GatedFfn, twell.Ffn]


def layer_of(kind: type[nn.Module], **options: object) -> nn.Module:
    layer = make_layer(24, 60, density=0.3)
    weights = [layer.gate, layer.up, layer.down.t().contiguous()]
    return kind.from_dense(*weights[3 - len(kind.NAMES) :], **options).requires_grad_()


def inputs(rows: int) -> Tensor:
    return make_layer(24, 60, density=0.3).inputs(rows)


def by_definition(module: nn.Module, x: Tensor) -> Tensor:
    """What the children compute, as transformers' MLPs call them."""
    *into, down = (getattr(module, name) for name in module.names)
    h = torch.relu(into[0](x))
    return down(h if len(into) == 1 else h * into[1](x))


def check(module: nn.Module, x: Tensor) -> None:
    """Both sides round, each within the bound; a bias of down rounds once more."""
    with torch.no_grad():
        children = [getattr(module, name) for name in module.names]
        biases = [child(torch.zeros(1, child.in_features)) for child in children]
        matrices = [
            child(torch.eye(child.in_features)).t() - bias.t()
            for child, bias in zip(children, biases)
        ]
        gate, *up, down = matrices
        bound = reference(x, gate, *(up or [None]), down.t()).bound
        bound += UNIT[torch.float32] * biases[-1].abs()
        assert_within(module(x), Reference(by_definition(module, x).double(), bound), slack=2)


# --- Weights that change ------------------------------------------------------------------------


def step(make: Callable[..., torch.optim.Optimizer], **options: object) -> Callable[..., None]:
    def change(module: nn.Module) -> None:
        optimizer = make(module.parameters(), lr=0.3, **options)
        module(inputs(300)).square().mean().backward()
        optimizer.step()

    return change


def through_numpy(module: nn.Module) -> None:
    module.gate_proj.weight.detach().numpy()[:] *= -1


def inference_mode(module: nn.Module) -> None:
    with torch.inference_mode():
        module.gate_proj.weight.mul_(-1)


def new_child(module: nn.Module) -> None:
    module.gate_proj = nn.Linear(24, 60, bias=False)


def swapped_data(module: nn.Module) -> None:
    module.gate_proj.weight.data = -module.gate_proj.weight.data


CHANGES = {
    "SGD": step(torch.optim.SGD),
    "fused SGD": step(torch.optim.SGD, fused=True),
    "fused Adam": step(torch.optim.Adam, fused=True),
    "fused AdamW": step(torch.optim.AdamW, fused=True),
    "data.copy_": lambda m: m.gate_proj.weight.data.copy_(-m.gate_proj.weight.data),
    "data.mul_": lambda m: m.gate_proj.weight.data.mul_(-1),
    "numpy": through_numpy,
    "inference_mode": inference_mode,
    "new child": new_child,
    "swapped data": swapped_data,
    "vector_to_parameters": lambda m: nn.utils.vector_to_parameters(
        -nn.utils.parameters_to_vector(m.parameters()), m.parameters()
    ),
    "load_state_dict": lambda m: m.load_state_dict({k: -v for k, v in m.state_dict().items()}),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("rows", [5, 300])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_changed_weights_are_seen(
    change: Callable[[nn.Module], None], rows: int, training: bool
) -> None:
    module, x = layer_of(twell.GatedFfn).train(training), inputs(rows)
    with torch.no_grad():
        before = module(x)
    for _ in range(3):  # an address may be used again
        change(module)
        check(module, x)
    assert not torch.equal(module(x).detach(), before)


# --- Children that do more than multiply ---------------------------------------------------------


@pytest.mark.parametrize("rows", [5, 300])
@pytest.mark.parametrize("kind", KINDS)
def test_parametrizations(kind: type[nn.Module], rows: int) -> None:
    module, x = layer_of(kind), inputs(rows)
    parametrizations.weight_norm(module.up_proj)
    parametrizations.orthogonal(module.down_proj)
    check(module, x)
    with torch.no_grad():
        module.up_proj.parametrizations.weight.original0.mul_(-2)
    check(module, x)
    module(x).sum().backward()
    assert module.up_proj.parametrizations.weight.original0.grad.any()


@pytest.mark.parametrize("kind", KINDS)
def test_pruning(kind: type[nn.Module]) -> None:
    module, x = layer_of(kind), inputs(300)
    prune.l1_unstructured(module.up_proj, "weight", amount=0.5)
    check(module, x)
    module(x).sum().backward()
    assert not module.up_proj.weight_orig.grad[module.up_proj.weight == 0].any()


@pytest.mark.parametrize("rows", [5, 300])
@pytest.mark.parametrize("kind", KINDS)
def test_hooks_fire(kind: type[nn.Module], rows: int) -> None:
    x = inputs(rows)
    for name in kind.NAMES:
        for register in (
            "register_forward_hook",
            "register_forward_pre_hook",
            "register_full_backward_hook",
            "register_full_backward_pre_hook",
        ):
            module, calls = layer_of(kind), []
            getattr(getattr(module, name), register)(lambda *_, c=calls: c.append(1))
            module(x).sum().backward()
            assert len(calls) == 1, (name, register)


def test_replaced_forward_and_biases() -> None:
    module, x = layer_of(twell.GatedFfn), inputs(300)
    plain = module.up_proj.forward
    module.up_proj.forward = lambda x: 2 * plain(x)  # as accelerate puts its hooks in place
    check(module, x)
    module = layer_of(twell.GatedFfn)
    module.down_proj.bias = nn.Parameter(torch.ones(24))
    check(module, x)


def test_a_special_child_is_not_frozen_away() -> None:
    module = layer_of(twell.GatedFfn)
    parametrizations.weight_norm(module.up_proj)
    with pytest.raises(ValueError, match=r"freeze: up_proj is ParametrizedLinear.*merge it first"):
        module.freeze()
    assert not module.frozen


def test_counts_and_l1_through_children() -> None:
    x = inputs(300)
    plain, special = layer_of(twell.GatedFfn), layer_of(twell.GatedFfn)
    special.up_proj.register_forward_hook(lambda *_: None)
    for module in (plain, special):
        twell.collect_metrics(module)
        twell.set_l1(module, 0.5)
        module(x).square().mean().backward()
    for a, b in zip(plain.parameters(), special.parameters()):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6)
    (one,), (other,) = twell.metrics(plain), twell.metrics(special)
    assert one.tokens == other.tokens == 300 and one.nnz_max == other.nnz_max
    assert one.nnz_mean == other.nnz_mean and one.dead == other.dead
    assert one.l1 == pytest.approx(other.l1, rel=1e-5)


# --- Adapters (peft) ------------------------------------------------------------------------------


def ids(seed: int = 1) -> Tensor:
    return torch.randint(0, 97, (2, 33), generator=torch.Generator().manual_seed(seed))


def adapted(model: nn.Module, targets: list[str]) -> nn.Module:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=targets, init_lora_weights=False)
    torch.manual_seed(3)
    return peft.get_peft_model(model, config)


def test_lora_on_the_layers_own_projections() -> None:
    targets = ["gate_proj", "up_proj", "down_proj"]
    models = [adapted(copy.deepcopy(tiny_llama()), targets)]
    models.append(adapted(twell.sparsify(tiny_llama(), freeze=False), targets))
    outs = []
    for model in models:
        out = model(ids(), labels=ids())
        out.loss.backward()
        outs.append((out.logits, {n: p.grad for n, p in model.named_parameters() if p.requires_grad}))
    torch.testing.assert_close(outs[1][0], outs[0][0], rtol=1e-4, atol=1e-5)
    assert len(outs[0][1]) == 2 * 3 * 2
    for name, want in outs[0][1].items():
        assert want.any()
        torch.testing.assert_close(outs[1][1][name], want, rtol=1e-3, atol=1e-6)
    layer = models[1].base_model.model.model.layers[0].mlp
    with pytest.raises(ValueError, match=r"freeze: gate_proj is Linear.*merge_and_unload\(\)"):
        layer.freeze()
    # Merged, the model is what it was with adapters, and the layers are sparse again.
    merged = models[1].merge_and_unload()
    for module in twell.sparse_layers(merged).values():
        module.freeze()
    with torch.no_grad():
        torch.testing.assert_close(merged(ids()).logits, outs[0][0].detach(), rtol=1e-3, atol=1e-4)


def test_lora_beside_frozen_layers() -> None:
    want = adapted(tiny_llama(), ["q_proj", "v_proj"])
    model = adapted(twell.sparsify(tiny_llama()), ["q_proj", "v_proj"])
    losses = []
    for each in (want, model):
        optimizer = torch.optim.AdamW((p for p in each.parameters() if p.requires_grad), lr=1e-2)
        losses.append([])
        for _ in range(10):
            loss = each(ids(), labels=ids()).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[-1].append(float(loss.detach()))
    assert losses[1] == pytest.approx(losses[0], rel=1e-3) and losses[1][-1] < losses[1][0]
    with torch.no_grad():
        torch.testing.assert_close(
            model.merge_and_unload()(ids()).logits,
            want.merge_and_unload()(ids()).logits,
            rtol=1e-2,
            atol=1e-3,
        )


# --- Other transforms -----------------------------------------------------------------------------


def test_l1_term_under_reentrant_checkpointing_is_refused() -> None:
    module, x = layer_of(twell.GatedFfn).train(), inputs(9).requires_grad_()
    module.collect_l1 = True
    module(x)
    assert twell.l1_term(module) > 0
    checkpoint(module, x, use_reentrant=True)
    with pytest.raises(RuntimeError, match=r"reentrant activation checkpointing.*use set_l1"):
        twell.l1_term(module)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_changes_no_bit(reentrant: bool) -> None:
    module, x = layer_of(twell.GatedFfn).train(), inputs(300).requires_grad_()
    twell.set_l1(module, 0.1)
    grads = []
    for run in (module, lambda x: checkpoint(module, x, use_reentrant=reentrant)):
        module.zero_grad()
        x.grad = None
        run(x).square().mean().backward()
        grads.append([x.grad, *(p.grad for p in module.parameters())])
    assert all(map(torch.equal, *grads))


@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("rows", [5, 300])
@pytest.mark.parametrize("kind", KINDS)
def test_forward_mode(kind: type[nn.Module], rows: int, freeze: bool) -> None:
    module, x, tangent = layer_of(kind), inputs(rows), torch.cos(inputs(rows))
    _, want = torch.func.jvp(lambda x: by_definition(module, x), (x,), (tangent,))
    if freeze:
        module.freeze()
    _, got = torch.func.jvp(module, (x,), (tangent,))
    assert want.any()
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    with torch.autograd.forward_ad.dual_level(), torch.no_grad():
        dual = torch.autograd.forward_ad.make_dual(x, tangent)
        got = torch.autograd.forward_ad.unpack_dual(module(dual)).tangent
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
