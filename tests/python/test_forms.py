"""Operators and gradients of layers with biases, an activation of up and a norm of the hidden
state."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import twell
from forms import ACTIVATIONS, NEURONS, SOME, VECTORS, WIDTH, inputs, vectors, weights
from layers import DTYPES, UNIT, assert_within, reference
from torch import Tensor, nn
from twell import dense
from twell.form import Form

# --- The operators --------------------------------------------------------------------------------


@pytest.mark.parametrize("up_activation", dense.UP_ACTIVATIONS)
@pytest.mark.parametrize(("activation", "threshold"), ACTIVATIONS)
@pytest.mark.parametrize("rows", [1, 300])
def test_ffn(
    rows: int, activation: str, threshold: float, up_activation: str, dtype: torch.dtype, gated: bool
) -> None:
    gate, up, down = weights(dtype, gated)
    x, form = inputs(dtype, rows), {"activation": activation, "threshold": threshold}
    if gated:
        form["up_activation"] = up_activation
    for names in SOME:
        given = {name: v for name, v in vectors(dtype, gated).items() if name in names} | form
        want = reference(x, gate, up, down, **given)
        screen = twell.ops.screen_weight(gate)
        assert_within(twell.ops.ffn(x, gate, up, down, screen, **given), want)
        packed = twell.ops.pack_weight(gate)
        y, row_nnz, neuron_nnz, _ = twell.ops.ffn_stats(x, packed, up, down, **given)
        assert_within(y, want)
        assert int(row_nnz.sum()) == int(neuron_nnz.sum())
        trained, _, *counts = twell.ops.ffn_train(x, gate, up, down, **given)[:4]
        # It keeps the pre-activation, rounded, whose square is off by twice that.
        assert_within(trained, want, 2.0 if activation == "relu_squared" else 1.0)
        assert torch.equal(counts[0], row_nnz) and torch.equal(counts[1], neuron_nnz)


def test_vectors_of_other_dtypes_and_strides() -> None:
    gate, up, down = weights(torch.bfloat16)
    x, wide = inputs(torch.bfloat16, 9), vectors(torch.float32)
    # float32 is taken as it is, beside weights of bfloat16.
    want = reference(x, gate, up, down, **wide)
    assert_within(twell.ops.ffn(x, twell.ops.pack_weight(gate), up, down, **wide), want)
    rounded = vectors(torch.bfloat16)
    y = twell.ops.ffn(x, twell.ops.pack_weight(gate), up, down, **rounded)
    same = {n: v.float() if isinstance(v, Tensor) else v for n, v in rounded.items()}
    strided = {
        n: torch.stack([v, -v], 1)[:, 0] if isinstance(v, Tensor) else v for n, v in same.items()
    }
    for other in (same, strided):
        assert torch.equal(twell.ops.ffn(x, twell.ops.pack_weight(gate), up, down, **other), y)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "size": ({"gate_bias": torch.ones(59)}, r"gate_bias: expected shape \[60\], got \[59\]"),
    "none": ({"up_bias": torch.ones(0)}, r"up_bias: expected shape \[60\], got \[0\]"),
    "matrix": ({"norm_weight": torch.ones(60, 1)}, r"norm_weight: expected shape \[60\]"),
    "of down": ({"down_bias": torch.ones(60)}, r"down_bias: expected shape \[24\], got \[60\]"),
    "double": ({"gate_bias": torch.ones(60).double()}, "gate_bias: expected dtype bfloat16 or float"),
    "bf16": ({"gate_bias": torch.ones(60).bfloat16()}, "gate_bias: expected f32, got bf16"),
    "no epsilon": ({"norm_epsilon": None}, "form.norm_weight: expected norm_epsilon with it, got none"),
    "epsilon": ({"norm_epsilon": 0.0}, "form.norm_epsilon: expected more than 0, got 0"),
    "NaN": ({"norm_epsilon": float("nan")}, "form.norm_epsilon: expected more than 0, got nan"),
    "up": ({"up_activation": "silu"}, 'up_activation: expected one of identity, relu.*got "silu"'),
    "fat": ({"up_activation": "fat_relu"}, "up_activation: expected one of identity"),
}


@pytest.mark.parametrize(("wrong", "message"), WRONG.values(), ids=WRONG.keys())
def test_operators_refuse(wrong: dict[str, Any], message: str) -> None:
    ops = twell.ops
    gate, up, down = weights(torch.float32)
    x, form = inputs(torch.float32, 5), {**vectors(torch.float32), **wrong}
    operands = {
        "ffn": (x, ops.pack_weight(gate), up, down),
        "ffn_stats": (x, ops.pack_weight(gate), up, down),
        "ffn_train": (x, gate, up, down),
        "ffn_train_backward": (x, x, gate, up, down, *ops.ffn_train(x, gate, up, down)[4:], None),
    }
    for name, arguments in operands.items():
        with pytest.raises(RuntimeError, match=f"^twell::ffn[a-z_]*: {message}") as error:
            getattr(ops, name)(*arguments, **form)
        assert "\n" not in str(error.value).strip()


def test_text_of_scalars() -> None:
    texts = {
        "relu": Form(),
        "fat_relu threshold=0.1": Form("fat_relu", 0.1),
        "relu_squared up=relu norm=1e-05": Form("relu_squared", 0.0, "relu", norm_epsilon=1e-5),
    }
    for text, form in texts.items():
        assert form.text == text and Form.parse(text) == form


@pytest.mark.parametrize(
    ("weights", "form", "message"),
    [
        ([None] * 3, "relu", "gate: expected a tensor, got none"),
        ([torch.ones(60, 24, 1), None], "relu", "down: expected a tensor, got none"),
        ([torch.ones(60, 24, 1)] * 9, "relu", f"weights: expected at most {len(VECTORS) + 3}, .* got 9"),
        ([torch.ones(60, 24, 1)] * 3, "relu up", 'up_activation: expected .* got ""'),
        ([torch.ones(60, 24, 1)] * 3, "relu norm=1x", 'norm_epsilon: expected a number, got "1x"'),
        ([torch.ones(60, 24, 1)] * 3, "relu bias=1", 'form: expected an activation .* "relu bias=1"'),
    ],
)
def test_raw_operators_refuse(weights: list[Tensor | None], form: str, message: str) -> None:
    with pytest.raises(RuntimeError, match=f"twell::ffn: {message}"):
        torch.ops.twell.ffn(torch.ones(1, 24), weights, None, form)


def test_a_layer_without_a_gate_has_nothing_of_up() -> None:
    gate, _, down = weights(torch.float32, False)
    x = inputs(torch.float32, 5)
    for wrong in ({"up_activation": "relu"}, {"up_bias": torch.ones(NEURONS)}):
        with pytest.raises(RuntimeError, match=r"form.up.*: expected .*, in a layer without a gate"):
            twell.ops.ffn_train(x, gate, None, down, **wrong)
        with pytest.raises(ValueError, match=r"(up_activation|up_bias): expected .* without a gate"):
            twell.autograd.trained_ffn(x, gate, None, down, Form(**wrong))


def test_gradients_added_into_float32(dtype: torch.dtype, gated: bool) -> None:
    ops, form = torch.ops.twell, Form(**vectors(dtype, gated))
    x, l1, given = inputs(dtype, 90), torch.tensor(0.5), form.weights(*weights(dtype, gated))
    operands = (torch.ones_like(x), x, given, ops.ffn_train(x, given, None, form.text)[4:], l1)
    dx, *once = ops.ffn_train_backward(*operands, form.text)

    def add(sums: list[Tensor | None]) -> Tensor:
        return ops.ffn_train_backward_add(*operands, sums, form.text)

    assert [g.dtype for g in once] == [dtype] * (3 + len(VECTORS))
    assert [g.shape for g in once] == [(0,) if t is None else t.shape for t in given]
    sums = [None if t is None else torch.ones(t.shape) for t in given]
    for _ in range(2):
        assert torch.equal(add(sums), dx)
    for got, want in zip(sums, once):
        if got is not None:
            # `want` is rounded once to the dtype, each of two sums a few times to float32.
            bound = (2 * UNIT[dtype] + 8 * UNIT[torch.float32]) * (1 + 2 * want.float().abs())
            assert bool(((got - 1 - 2 * want.float()).abs() <= bound).all())
    # Those of vectors may be left out.
    assert torch.equal(add(sums[:3]), dx)
    with pytest.raises(RuntimeError, match=r"dgate_bias: expected Float \[60\], got Float \[59\]"):
        add([*sums[:3], torch.ones(59)])


def test_opcheck(gated: bool) -> None:
    ops = torch.ops.twell
    form = Form("relu", 0.0, "relu" if gated else "identity", norm_epsilon=0.05)
    x, *given = leaves(torch.float32, gated)
    checks = ("test_schema", "test_faketensor")  # nothing is written to the lists' ends
    torch.library.opcheck(ops.ffn_train.default, (x, given, None, form.text), test_utils=checks)
    x, *given = [None if t is None else t.detach() for t in (x, *given)]
    lists = list(ops.ffn_train(x, given, None, form.text)[4:])
    operands = (torch.ones_like(x), x, given, lists, torch.tensor(0.5))
    torch.library.opcheck(ops.ffn_train_backward.default, (*operands, form.text))
    sums = [None if t is None else torch.zeros_like(t) for t in given]
    torch.library.opcheck(
        ops.ffn_train_backward_add.default, (*operands, sums, form.text), test_utils=checks
    )


# --- Gradients ------------------------------------------------------------------------------------


def definition(x: Tensor, gate: Tensor, up: Tensor | None, down: Tensor, form: Form) -> tuple:
    """y and l1 in PyTorch's own words."""
    linear = nn.functional.linear
    v = linear(x, gate, form.gate_bias)
    h = torch.where(v > form.threshold, v, 0.0)
    h = h.square() if form.activation == "relu_squared" else h
    if up is not None:
        u = linear(x, up, form.up_bias)
        h = h * {"identity": u, "relu": u.relu(), "relu_squared": u.relu().square()}[
            form.up_activation
        ]  # fmt: skip
    l1 = h.abs().sum() / x.shape[:-1].numel()
    if form.norm_epsilon is not None:
        h = nn.functional.rms_norm(h, h.shape[-1:], form.norm_weight, form.norm_epsilon)
    return linear(h, down.t(), form.down_bias), l1


def leaves(dtype: torch.dtype, gated: bool, names: tuple[str, ...] = SOME[-1]) -> list[Any]:
    """x, gate, up, down and the vectors of a form, None where there is none; of few rows, and away
    from the kinks by more than what bfloat16 rounds."""
    given = vectors(torch.bfloat16, gated)
    for seed in range(200):
        x, (gate, up, down) = inputs(torch.bfloat16, 3, seed=seed), weights(torch.bfloat16, gated)
        wide = [t.double() for t in (x, gate, given["gate_bias"])]
        distance = (nn.functional.linear(*wide) - 0.2).abs().min()
        distance = min(distance, nn.functional.linear(*wide).abs().min())
        if up is not None:
            wide = [x.double(), up.double(), given["up_bias"].double()]
            distance = min(distance, nn.functional.linear(*wide).abs().min())
        if distance > 2.0**-8:
            break
    else:
        raise AssertionError("no seed keeps its distance")
    tensors = [x, gate, up, down, *(given.get(n) if n in names else None for n in VECTORS)]
    return [None if t is None else t.to(dtype).requires_grad_() for t in tensors]


def form_of(tensors: list[Any], scalars: tuple[Any, ...], epsilon: float | None = 0.05) -> Form:
    return Form(*scalars, norm_epsilon=epsilon).with_vectors(tensors[4:])


def grads(
    function: Callable[..., tuple[Tensor, Tensor]], tensors: list[Any], form: Form, order: int = 1
) -> list[Tensor]:
    """Of a loss with an L1 term, or of the squares of its gradients; with y and l1."""
    there = [t for t in tensors if t is not None]
    y, l1 = function(*tensors[:4], form)
    dy = torch.cos(torch.arange(y.numel(), dtype=torch.float64)).reshape(y.shape)
    loss = (y * dy.to(y.dtype)).sum() + 0.3 * l1
    for _ in range(order - 1):
        first = torch.autograd.grad(loss, there, create_graph=True, materialize_grads=True)
        loss = sum(g.square().mean() for g in first)
    found = torch.autograd.grad(loss, there, materialize_grads=True)
    return [y.detach(), l1.detach(), *found]


def trained(x: Tensor, gate: Tensor, up: Tensor | None, down: Tensor, form: Form) -> tuple:
    return twell.autograd.trained_ffn(x, gate, up, down, form)[:2]


FORMS = [
    (*gate, up) for gate, up in itertools.product(ACTIVATIONS, dense.UP_ACTIVATIONS)
]


@pytest.mark.parametrize("scalars", FORMS)
@pytest.mark.parametrize("kind", [*DTYPES, torch.float64])
def test_gradients(kind: torch.dtype, scalars: tuple[Any, ...], gated: bool) -> None:
    """No worse than twice what PyTorch's own operations round in the same dtype."""
    if not gated and scalars[2] != "identity":
        pytest.skip("no up")
    for names in SOME:
        epsilon = 0.05 if "norm_epsilon" in names else None
        runs = [
            grads(function, tensors, form_of(tensors, scalars, epsilon))
            for function, tensors in (
                (trained, leaves(kind, gated, names)),
                (definition, leaves(kind, gated, names)),
                (definition, leaves(torch.float64, gated, names)),
            )
        ]
        for got, plain, want in zip(*runs, strict=True):
            unit = UNIT.get(kind, 2.0**-53)
            allowed = 2 * (plain.double() - want).norm() + 4 * unit * want.norm()
            assert want.any() and (got.double() - want).norm() <= allowed


@pytest.mark.parametrize("scalars", FORMS)
def test_gradcheck(scalars: tuple[Any, ...], gated: bool) -> None:
    if not gated and scalars[2] != "identity":
        pytest.skip("no up")
    tensors = leaves(torch.float64, gated)
    there = [i for i, t in enumerate(tensors) if t is not None]

    def function(*given: Tensor) -> tuple[Tensor, Tensor]:
        all_of = dict(zip(there, given))
        operands = [all_of.get(i) for i in range(len(tensors))]
        return trained(*operands[:4], form_of(operands, scalars))

    used = [tensors[i] for i in there]
    assert torch.autograd.gradcheck(function, used, eps=1e-6, atol=1e-6, fast_mode=True)


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("scalars", [FORMS[0], FORMS[4], FORMS[8]])
def test_gradients_of_gradients(
    kind: torch.dtype, scalars: tuple[Any, ...], order: int, gated: bool
) -> None:
    scalars = scalars if gated else (*scalars[:2], "identity")
    runs = [
        grads(function, tensors, form_of(tensors, scalars), order)[2:]
        for function, tensors in (
            (trained, leaves(kind, gated)),
            (definition, leaves(kind, gated)),
            (definition, leaves(torch.float64, gated)),
        )
    ]
    for got, plain, want in zip(*runs):
        unit = UNIT.get(kind, 2.0**-53)
        allowed = 2 * (plain.double() - want).norm() + 16 * unit * want.norm()
        assert (got.double() - want).norm() <= allowed


def test_gradients_of_the_inference_operator(dtype: torch.dtype, gated: bool) -> None:
    scalars = ("relu", 0.0, "relu" if gated else "identity")

    def operator(x: Tensor, gate: Tensor, up: Tensor | None, down: Tensor, form: Form) -> tuple:
        packed = twell.ops.pack_weight(gate)
        y = torch.ops.twell.ffn(x, form.weights(packed, up, down), None, form.text)
        return y, y.new_zeros(())

    def plain(*operands: Any) -> tuple[Tensor, Tensor]:
        y = definition(*operands)[0]
        return y, y.new_zeros(())

    runs = [
        grads(function, tensors, form_of(tensors, scalars))
        for function, tensors in (
            (operator, leaves(dtype, gated)),
            (plain, leaves(dtype, gated)),
            (plain, leaves(torch.float64, gated)),
        )
    ]
    for got, rounded, want in zip(*runs, strict=True):
        allowed = 2 * (rounded.double() - want).norm() + 4 * UNIT[dtype] * want.norm()
        assert (got.double() - want).norm() <= allowed


def test_no_rows(dtype: torch.dtype) -> None:
    tensors = leaves(dtype, True)
    tensors[0] = tensors[0].detach()[:0].requires_grad_()
    y, l1, *found = grads(trained, tensors, form_of(tensors, ("relu", 0.0, "relu")))
    assert y.shape == (0, WIDTH) and float(l1) == 0
    assert not any(grad.any() for grad in found)


def test_every_operand_shows_in_outputs_and_gradients() -> None:
    """Each, changed a little at a neuron that fires for all inputs."""
    tensors = leaves(torch.float32, True)
    with torch.no_grad():
        tensors[4][7], tensors[5][7] = 5.0, 5.0
    form = form_of(tensors, ("fat_relu", 0.2, "relu"))
    x, gate, up, down = tensors[:4]
    packed = twell.ops.pack_weight

    def run(*operands: Any) -> list[Tensor]:
        x, gate, up, down, form = operands
        y, _ = trained(x, gate, up, down, form)
        dx = torch.autograd.grad(y.square().sum(), x)[0]
        inferred = torch.ops.twell.ffn(x, form.weights(packed(gate), up, down), None, form.text)
        return [y, dx, inferred]

    def nudged(t: Tensor) -> Tensor:
        twin = t.detach().clone()
        twin[7] += 0.5
        return twin

    before = run(x, gate, up, down, form)
    changes = {
        "gate": (x, nudged(gate), up, down, form),
        "up": (x, gate, nudged(up), down, form),
        "down": (x, gate, up, nudged(down), form),
        "activation": (x, gate, up, down, form._replace(activation="relu_squared", threshold=0.0)),
        "threshold": (x, gate, up, down, form._replace(threshold=0.4)),
        "up_activation": (x, gate, up, down, form._replace(up_activation="relu_squared")),
        "norm_epsilon": (x, gate, up, down, form._replace(norm_epsilon=0.5)),
        **{
            name: (x, gate, up, down, form._replace(**{name: nudged(getattr(form, name))}))
            for name in VECTORS
        },
    }
    for name, operands in changes.items():
        after = run(*operands)
        assert all(not torch.allclose(a, b, atol=1e-4) for a, b in zip(after, before)), name


def test_functional_form() -> None:
    tensors = leaves(torch.float32, True)
    form = form_of(tensors, ("relu", 0.0, "relu"))
    named = dict(zip(Form._fields[2:], form[2:]))
    y, l1 = twell.gated_ffn(*tensors[:4], **named)
    for got, want in zip((y, l1), trained(*tensors[:4], form)):
        assert torch.equal(got, want)
    for wrong, message in (
        ({"up_activation": "silu"}, "up_activation: expected one of identity"),
        ({"norm_epsilon": None}, "norm_weight: expected norm_epsilon"),
        ({"norm_epsilon": -1.0}, "norm_epsilon: expected more than 0, got -1"),
    ):
        with pytest.raises(ValueError, match=f"^{message}"):
            twell.gated_ffn(*tensors[:4], **{**named, **wrong})
    with pytest.raises(TypeError, match="bias"):
        twell.gated_ffn(*tensors[:4], bias=tensors[4])
