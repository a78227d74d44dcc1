"""Gradients of gradients, torch.func and forward mode: right, or refused; the operators' own too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import twell
from layers import UNIT, make_layer
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.utils.checkpoint import checkpoint
from twell.form import Form

ACTIVATIONS = [("relu", 0.0), ("relu_squared", 0.0), ("fat_relu", 0.2)]
FLOATS = [torch.float32, torch.bfloat16, torch.float64]
KINDS = [twell.GatedFfn, twell.Ffn]


def away_from_kinks(threshold: float) -> list[Tensor]:
    """x [2, 3, D], gate, up and down [H, D] in bfloat16; no rounding crosses the threshold."""
    for seed in range(100):
        layer = make_layer(9, 20, torch.bfloat16, density=0.4, seed=seed)
        x = layer.inputs(2, 3)
        distance = (x.double() @ layer.gate.double().t() - threshold).abs().min()
        if distance > 2.0**-6:
            return [x, layer.gate, layer.up, layer.down]
    raise AssertionError("no seed keeps its distance")


def penalty(
    function: Callable[..., tuple[Tensor, Tensor]], leaves: list[Tensor], order: int
) -> list[Tensor]:
    """Gradients of the squares of gradients (of the squares of gradients) of a loss with L1 term."""
    y, l1 = function(*leaves)
    loss = y.square().mean() + 0.1 * l1
    for _ in range(order - 1):
        first = torch.autograd.grad(loss, leaves, create_graph=True)
        loss = sum(g.square().mean() for g in first)
    return list(torch.autograd.grad(loss, leaves))


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize(("activation", "threshold"), ACTIVATIONS)
@pytest.mark.parametrize("kind", FLOATS, ids=["f32", "bf16", "f64"])
def test_penalty_on_gradients(
    kind: torch.dtype, activation: str, threshold: float, order: int, gated: bool
) -> None:
    def sparse(x: Tensor, gate: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        up = rest[0] if gated else None
        out = twell.autograd.trained_ffn(x, gate, up, rest[-1], Form(activation, threshold))
        return out.y, out.l1

    def dense(x: Tensor, gate: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        up = rest[0] if gated else None
        y, h, _ = twell.dense.ffn(x, gate, up, rest[-1], Form(activation, threshold))
        return y, twell.dense.l1(h)

    tensors = away_from_kinks(threshold)
    tensors = tensors if gated else [tensors[0], tensors[1], tensors[3]]

    def leaves(dtype: torch.dtype) -> list[Tensor]:
        return [t.to(dtype).requires_grad_() for t in tensors]

    exact = penalty(dense, leaves(torch.float64), order)
    for got, plain, want in zip(
        penalty(sparse, leaves(kind), order), penalty(dense, leaves(kind), order), exact
    ):
        # Both are chains of the same roundings: no worse than twice PyTorch's own.
        unit = UNIT.get(kind, 2.0**-53)
        allowed = 2 * (plain.double() - want).norm() + 4 * unit * want.norm()
        assert want.any() and (got.double() - want).norm() <= allowed


def layer_of(kind: type[nn.Module], freeze: bool) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """A layer, and what it computes by PyTorch's operations."""
    layer = make_layer(9, 20, density=0.4)
    weights = [layer.gate, layer.up, layer.down.t().contiguous()][3 - len(kind.NAMES) :]
    module = kind.from_dense(*weights)

    def definition(x: Tensor) -> Tensor:
        h = torch.relu(x @ weights[0].t())
        return (h if len(weights) == 2 else h * (x @ weights[1].t())) @ weights[-1].t()

    return (module.freeze() if freeze else module.requires_grad_()), definition


def vector() -> Tensor:
    return make_layer(9, 20, density=0.4).inputs(1)[0]


def square(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: function(x).square().sum()


TRANSFORMS: dict[str, Callable[..., object]] = {
    "grad": lambda f, x: grad(square(f))(x),
    "grad of grad": lambda f, x: grad(square(grad(square(f))))(x),
    "hessian": lambda f, x: hessian(square(f))(x),
    "jacrev of jacrev": lambda f, x: jacrev(jacrev(square(f)))(x),
    "jacrev of jacfwd": lambda f, x: jacrev(jacfwd(square(f)))(x),
    "jvp": lambda f, x: jvp(f, (x,), (x.cos(),)),
    "jvp of grad": lambda f, x: jvp(grad(square(f)), (x,), (x.cos(),)),
    "grad of jvp": lambda f, x: grad(lambda x: jvp(square(f), (x,), (x.cos(),))[1])(x),
    "vjp, called later": lambda f, x: torch.func.vjp(f, x)[1](x.cos()),
    "vmap": lambda f, x: vmap(f)(torch.stack([x, -x])),
    "vmap of grad": lambda f, x: vmap(grad(square(f)))(torch.stack([x, -x])),
    "functional.hessian": lambda f, x: torch.autograd.functional.hessian(square(f), x),
    "functional.hessian, vectorized": lambda f, x: torch.autograd.functional.hessian(
        square(f), x, vectorize=True
    ),
    "functional.hvp": lambda f, x: torch.autograd.functional.hvp(square(f), x, x.cos()),
    "functional.vhp": lambda f, x: torch.autograd.functional.vhp(square(f), x, x.cos()),
    "functional.jvp": lambda f, x: torch.autograd.functional.jvp(f, x, x.cos()),
}


@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
def test_transforms_of_the_input(
    transform: Callable[..., object], kind: type[nn.Module], freeze: bool
) -> None:
    module, definition = layer_of(kind, freeze)
    want = transform(definition, vector())
    torch.testing.assert_close(transform(module, vector()), want, rtol=1e-4, atol=1e-5)


WEIGHTS: dict[str, Callable[..., object]] = {
    "grad": lambda f, p, x: grad(f)(p, x),
    "hessian": lambda f, p, x: hessian(f)(p, x),
    "each sample's": lambda f, p, x: vmap(grad(f), (None, 0))(p, torch.stack([x, -x])),
    "ensemble": lambda f, p, x: vmap(grad(f), (0, None))(
        {name: torch.stack([v, 2 * v]) for name, v in p.items()}, x
    ),
}


@pytest.mark.parametrize("transform", WEIGHTS.values(), ids=WEIGHTS.keys())
def test_transforms_of_the_weights(transform: Callable[..., object]) -> None:
    module, _ = layer_of(twell.GatedFfn, False)
    weights = {name: w.detach() for name, w in module.named_parameters()}

    def by_layer(p: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(module, p, (x,)).square().sum()

    def by_definition(p: dict[str, Tensor], x: Tensor) -> Tensor:
        gate, up, down = p.values()
        return ((torch.relu(x @ gate.t()) * (x @ up.t())) @ down.t()).square().sum()

    got, want = (transform(f, weights, vector()) for f in (by_layer, by_definition))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def penalized(module: Callable[[Tensor], Tensor], weights: list[Tensor]) -> list[Tensor]:
    x = make_layer(9, 20, density=0.4).inputs(6).requires_grad_()
    (dx,) = torch.autograd.grad(square(module)(x), x, create_graph=True)
    return list(torch.autograd.grad(dx.square().sum(), [x, *weights]))


@pytest.mark.parametrize("kind", KINDS)
def test_on_every_path_of_a_layer(kind: type[nn.Module]) -> None:
    module, _ = layer_of(kind, False)
    weights = list(module.parameters())

    def definition(x: Tensor) -> Tensor:
        h = torch.relu(x @ weights[0].t())
        return (h if len(weights) == 2 else h * (x @ weights[1].t())) @ weights[-1].t()

    want = penalized(definition, weights)
    cases = [penalized(module, weights)]
    cases.append(penalized(lambda x: checkpoint(module, x, use_reentrant=False), weights))
    with torch.autograd.set_detect_anomaly(True):
        cases.append(penalized(module, weights))
    module.up_proj.register_forward_hook(lambda *_: None)  # children, one by one
    cases.append(penalized(module, weights))
    for got in cases:
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_compiled_layers_refuse() -> None:
    torch._dynamo.reset()
    module, _ = layer_of(twell.GatedFfn, False)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        penalized(compiled, list(module.parameters()))


# --- The L1 term ----------------------------------------------------------------------------------


def test_the_term_that_enters_by_itself_refuses() -> None:
    module, definition = layer_of(twell.GatedFfn, False)
    weights, x = list(module.parameters()), vector()
    # float64 and the children have paths of their own.
    wide = [module, layer_of(twell.GatedFfn, False)[0].double(), layer_of(twell.GatedFfn, False)[0]]
    wide[2].up_proj.register_forward_hook(lambda *_: None)
    for each in wide:
        twell.set_l1(each, 0.1)
        leaf = x.to(each.gate_proj.weight.dtype).requires_grad_()
        for transform in (grad(square(each)), hessian(square(each))):
            with pytest.raises(RuntimeError, match=r"differentiated again.*twell.l1_term\(model\)"):
                transform(leaf.detach())
        with pytest.raises(RuntimeError, match=r"set_l1.*differentiated again"):
            torch.autograd.grad(square(each)(leaf), leaf, create_graph=True)
    # Where no gradient of it is taken, it changes nothing.
    torch.testing.assert_close(*(jvp(f, (x,), (x.cos(),)) for f in (module, definition)))
    torch.testing.assert_close(*(vmap(f)(torch.stack([x, -x])) for f in (module, definition)))
    module(x).sum().backward()
    twell.set_l1(module, 0.0)
    penalized(module, weights)


def test_the_term_in_the_loss_has_all_derivatives() -> None:
    module, definition = layer_of(twell.GatedFfn, False)
    module.collect_l1 = True
    gate, up, _ = (w.detach() for w in module.parameters())

    def by_layer(x: Tensor) -> Tensor:
        return module(x).square().sum() + 0.1 * twell.l1_term(module)

    def by_definition(x: Tensor) -> Tensor:
        h = torch.relu(x @ gate.t()) * (x @ up.t())
        return definition(x).square().sum() + 0.1 * h.abs().sum()

    for transform in (hessian, lambda f: lambda x: torch.autograd.functional.hessian(f, x)):
        want = transform(by_definition)(vector())
        torch.testing.assert_close(transform(by_layer)(vector()), want, rtol=1e-4, atol=1e-5)


def test_counting_survives_a_transform() -> None:
    module, _ = layer_of(twell.GatedFfn, False)
    for transform in (
        grad,
        hessian,
        lambda f: lambda x: vmap(f)(x[None]),
        lambda f: lambda x: jvp(f, (x,), (x,)),
    ):
        twell.collect_metrics(module)
        transform(square(module))(vector())
        module(vector()).sum().backward()
        (found,) = twell.metrics(module)
        assert found.tokens >= 1 and 0 < found.nnz_mean < 20


# --- The operators --------------------------------------------------------------------------------

OPS = torch.ops.twell


def calls() -> dict[str, Callable[[Tensor], Tensor]]:
    layer = make_layer(9, 20, density=0.4)
    packed = OPS.pack_weight(layer.gate)
    triple = OPS.gemm_relu_twell(layer.inputs(6), packed)
    lists = OPS.ffn_train(layer.inputs(6), [layer.gate, layer.up, layer.down])[4:]
    sums = [torch.zeros(20, 9) for _ in range(3)]
    return {
        "linear": lambda x: OPS.linear(x, packed),
        "linear_as_stored": lambda x: OPS.linear_as_stored(x, layer.gate),
        "round_inputs": OPS.round_inputs,
        "twell_gated_ffn": lambda x: OPS.twell_gated_ffn(x, *triple, layer.up, layer.down),
        "twell_spmm": lambda x: OPS.twell_spmm(*triple, x.sum() + layer.down),
        "ffn_train_backward_add": lambda x: OPS.ffn_train_backward_add(
            x, x, [layer.gate, layer.up, layer.down], lists, None, sums
        ),
        "ffn": lambda x: OPS.ffn(x, [packed, layer.up, layer.down]),
        "ffn_train": lambda x: OPS.ffn_train(x, [layer.gate, layer.up, layer.down])[0],
        "pack_weight": OPS.pack_weight,
    }


@pytest.mark.parametrize("name", calls().keys())
def test_operators_differentiate_or_refuse(name: str) -> None:
    call = calls()[name]
    x = make_layer(9, 20, density=0.4).inputs(6)
    call(x)
    with torch.no_grad():
        call(x.clone().requires_grad_())
    leaf = x.clone().requires_grad_()
    if name in ("ffn", "ffn_train", "pack_weight"):
        assert torch.autograd.grad(call(leaf).sum(), leaf)[0].any()
    else:
        with pytest.raises(RuntimeError, match=f"twell::{name}: is not differentiable; "):
            call(leaf).sum().backward()
    if name != "ffn_train_backward_add":
        with forward_ad.dual_level():
            with pytest.raises(
                RuntimeError, match=f"twell::{name}: has no forward-mode derivative"
            ):
                call(forward_ad.make_dual(x, x.cos()))
            call(x)


def test_vectorized_operators() -> None:
    layer, x = make_layer(9, 20, density=0.4), make_layer(9, 20, density=0.4).inputs(6)
    bias = torch.stack([layer.gate[:, 0], layer.gate[:, 1]])
    weights = [OPS.pack_weight(layer.gate), layer.up, layer.down]
    want = torch.stack([OPS.ffn(t, [*weights, b]) for t, b in zip((x, -x), bias)])
    assert torch.equal(vmap(lambda t, b: OPS.ffn(t, [*weights, b]))(torch.stack([x, -x]), bias), want)
    assert torch.equal(vmap(lambda t: OPS.ffn_stats(t, weights)[1])(x), OPS.ffn_stats(x, weights)[1])
