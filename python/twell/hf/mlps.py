"""Makes a GatedFfn or Ffn of a module that is a feed-forward layer and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from twell import _attached, dense
from twell._children import linear_of
from twell.form import Form
from twell.hf.activations import activation_of
from twell.hf.kinds import KINDS, Kind, described, kind_of
from twell.modules import Ffn, GatedFfn, SparseFfn


def from_mlp(
    mlp: nn.Module,
    *,
    activation: str | None = None,
    threshold: float = 0.0,
    name: str = "mlp",
    names: Mapping[str, str] | None = None,
    config: object = None,
) -> SparseFfn:
    """Makes a layer whose children are a module's linear layers. A module with gate_proj, up_proj,
    down_proj and act_fn (Llama, Qwen2) becomes a GatedFfn; one without gate_proj (Arcee) becomes an
    Ffn. twell.hf.kinds has the names that it knows; ``names`` gives others, under the keys gate, up,
    down and act. A module without act_fn, whose code calls torch.relu, is tried too. The layer also takes
    an RMSNorm before down (BitNet), dropout of the hidden state and of the output, and an activation of
    up. Weights that are transposed (Conv1D) or two in one (gate_up_proj) stay as they are.

    ``activation`` overrides act_fn. ``config`` is the model's configuration, which may have an
    activation's threshold. The layer takes over the module's hooks of forward and backward. Anything
    attached to the linear layers stays there.

    Raises ValueError for an activation that yields no zeros, for further layers in the module, for a
    module of another kind or one that computes something else, and if anything else is attached to
    the module or to act_fn and would be lost. The message calls the module ``name``.
    """
    kinds = KINDS if names is None else (Kind.of(names),)
    kind = kind_of(mlp, kinds)
    if kind is None or not kind.has_linears:
        raise ValueError(
            f"{name}: expected linear layers {described(kinds)}, got {type(mlp).__name__}"
        )
    return layer_of(mlp, kind, activation, threshold, name, config)


def layer_of(
    mlp: nn.Module,
    kind: Kind,
    activation: str | None,
    threshold: float,
    name: str,
    config: object = None,
) -> SparseFfn:
    """:func:`from_mlp` of a module of that kind."""
    if type(mlp).__name__ == "OptimizedModule":
        raise ValueError(f"{name}: is compiled (torch.compile); compile the model afterwards")
    act_name, norm = kind.act(mlp), kind.norm(mlp)
    if others := kind.others(mlp):
        known = ", ".join(kind.linears) + (f" and {act_name}" if act_name else "")
        raise ValueError(
            f"{name}: expected {known} alone, got {', '.join(others)} too, which the layer would lack"
        )
    parts = kind.parts_of(mlp, name)
    says = activation is None
    if activation is None and not kind.in_code:
        activation, threshold = activation_of(name, kind.act_of(mlp), config)
    kept = {*kind.linears, norm}
    lost = {f"{name}.{c}": m for c, m in mlp.named_children() if c not in kept}
    for where, module in {name: mlp, **lost}.items():
        if hangs := _attached.what(module, hooks=module is not mlp):
            raise ValueError(
                f"{where} has {hangs}, which the layer would lose; remove that first"
            )
    tried = _try_forward(name, mlp, kind, threshold)
    activation = activation or tried.activation
    up_activation = activation if tried.up == "same" else tried.up
    if up_activation not in dense.UP_ACTIVATIONS:
        raise ValueError(
            f"{name}: applies {activation} to up as well, which may have "
            f"{', '.join(dense.UP_ACTIVATIONS)}"
        )
    layer = made_of(
        name,
        mlp,
        kind,
        parts,
        says,
        activation=activation,
        threshold=threshold,
        up_activation=up_activation,
        hidden_dropout=tried.hidden_dropout,
        output_dropout=tried.output_dropout,
        **({} if norm is None else {"norm": getattr(mlp, norm), "norm_name": norm}),
    )
    # As they were, in their order; dropout among them.
    layer._modules = {n: layer._modules.get(n, m) for n, m in mlp._modules.items()}
    _attached.take_over(layer, mlp)
    return layer


def made_of(
    name: str,
    module: nn.Module,
    kind: Kind,
    parts: Mapping[str, Any],
    says: bool,
    classes: tuple[type[SparseFfn], type[SparseFfn]] = (GatedFfn, Ffn),
    **options: Any,
) -> SparseFfn:
    """A layer of a module's parts, which runs as the module. ``says``: the activation is what the module
    says. Raises ValueError, with the name, where parts do not go together."""
    try:
        layer = classes[0 if kind.gated else 1]._of_parts(
            parts, fused=kind.fused, act=(kind.act(module), kind.act_of(module), says), **options
        )
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    own = set(module.modules())
    for part in layer.modules():
        if part not in own:  # which keep what they have
            part.training = module.training
    return layer


def computes_nothing_else(name: str, mlp: nn.Module, kind: Kind) -> bool:
    """Whether the module is down(act(gate(x)) * up(x)), without a norm and dropout. Raises ValueError
    where it computes something else than a layer may."""
    if kind.norm(mlp) is not None or kind.others(mlp):
        return False
    tried = _try_forward(name, mlp, kind)
    dropped = [getattr(mlp, d).p if isinstance(d, str) else d for d in tried[2:]]
    return tried[:2] == ("", "identity") and not any(dropped)


def _has_bias(module: nn.Module) -> bool:
    bias = getattr(module, "bias", None)
    return (bias() if callable(bias) else bias) is not None  # a method, of PyTorch's quantized layers


class _Tried(NamedTuple):
    activation: str
    """Of code that applies it itself; otherwise empty."""
    up: str = "identity"
    """Of up: identity, the "same" as the gate's, or relu beside another."""
    hidden_dropout: float | str = 0.0
    """A share, or the name of a module."""
    output_dropout: float | str = 0.0


class _NoDropout(TorchFunctionMode):
    """Lets dropout do nothing, and keeps what it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Tensor, float]] = []

    def __torch_function__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        options = options or {}
        if function not in (functional.dropout, torch.dropout):
            return function(*arguments, **options)
        given = {"p": 0.5, **dict(zip(("input", "p"), arguments)), **options}
        self.calls.append((given["input"], float(given["p"])))
        return given["input"]


def _try_forward(name: str, mlp: nn.Module, kind: Kind, threshold: float = 0.0) -> _Tried:
    """How the module differs from down(act(gate) * up). Raises ValueError unless the code of an MLP
    computes what its children say. It is tried with small weights in place of its own, so that it
    costs nothing and no hook fires; in training too, which may add dropout. Some of what its linear layers
    yield is below the threshold, some above."""
    width, neurons = 6, 10
    generator = torch.Generator("cpu").manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")

    scale = 10 * threshold if threshold > 0 else 1.0
    children: dict[str, nn.Module | None] = {}
    for child in kind.linears:
        rows = 2 * neurons if kind.fused else neurons
        weight = random(width, neurons) if child == kind.linears[-1] else random(rows, width)
        bias = random(weight.shape[0]) * scale if _has_bias(getattr(mlp, child)) else None
        children[child] = linear_of(weight, bias)
    for child, module in mlp.named_children():
        if isinstance(module, nn.Dropout):  # with a share by which it is known
            children[child] = nn.Dropout(0.5 + 2.0**-20 * (1 + len(children)))
    norm = kind.norm(mlp)
    form = Form()
    if norm is not None:
        # What the module's own norm computes is known.
        twin_norm = nn.RMSNorm(neurons, 0.1, device="cpu", dtype=torch.float64)
        twin_norm.weight = nn.Parameter(random(neurons))
        children[norm] = twin_norm
        form = Form(norm_weight=twin_norm.weight, norm_epsilon=0.1)
    twin = _attached.twin_of(mlp, children)
    # Two sequences, because code may mix tokens or sequences; some large, because it may clamp, but not
    # where float16 would end.
    x = random(2, 5 if threshold == 0 else 50, width) * scale
    x[:, -1] *= 16
    *into, down = (children[child] for child in kind.linears)
    act_name = kind.act(mlp)
    refused = kind.refusal
    with torch.no_grad():
        pre = [linear(x) for linear in into]  # type: ignore[misc]
        g, *u = pre[0].chunk(2, dim=-1) if kind.fused else pre
        hidden: list[tuple[str, str, Tensor]] = []
        for called, act in _acts_of(mlp, kind):
            ups = {"identity": u[0], "same": act(u[0]), "relu": u[0].relu()} if u else {}
            made = {of: act(g) * up for of, up in ups.items()} or {"identity": act(g)}
            hidden += [(called, of, dense.normalise(h, form)) for of, h in made.items()]
        found: _Tried | None = None
        for training in (False, True):
            twin.training = training
            try:
                with _NoDropout() as dropped:
                    got = type(mlp).forward(twin, x)
            except Exception as error:
                raise refused(
                    f"{name}: {type(mlp).__name__} takes or needs more than one tensor: "
                    f"{(str(error) or type(error).__name__).splitlines()[0]}"
                ) from error
            found = None
            # In float64, or rounded to float32 on its way.
            same = isinstance(got, Tensor) and got.shape == x.shape
            for called, of, h in hidden:
                want = down(h)  # type: ignore[misc]
                if same and found is None and torch.allclose(got.double(), want, rtol=1e-4):
                    found = _Tried(called, of, *_dropout_of(name, mlp, h, want, dropped, children))
            if found is None:
                break
    if found is not None:
        return found
    names = ("gate_proj", "up_proj", *kind.linears[1:]) if kind.fused else kind.linears
    times_up = f" * {names[1]}(x)" if kind.gated else ""
    text = f"{act_name or 'relu'}({names[0]}(x)){times_up}"
    raise refused(
        f"{name}: {type(mlp).__name__} computes something else than "
        f"{names[-1]}({text if norm is None else f'{norm}({text})'})"
    )


def _acts_of(mlp: nn.Module, kind: Kind) -> list[tuple[str, Any]]:
    """The activation that the module has, or those that its code may apply by itself."""
    if not kind.in_code:
        return [("", kind.act_of(mlp))]
    return [(name, partial(dense.activate, activation=name)) for name in ("relu", "relu_squared")]


def _dropout_of(
    name: str,
    mlp: nn.Module,
    h: Tensor,
    y: Tensor,
    dropped: _NoDropout,
    children: Mapping[str, nn.Module | None],
) -> tuple[float | str, float | str]:
    """Of the hidden state and of the output: shares, or the names of the modules that drop."""
    modules = {m.p: n for n, m in children.items() if isinstance(m, nn.Dropout)}
    found: dict[str, list[float | str]] = {"hidden": [], "output": []}
    for x, share in dropped.calls:
        child = modules.get(share)
        p: float = share if child is None else getattr(mlp, child).p
        places = {"hidden": h, "output": y}.items()
        like = (w for w, e in places if x.shape == e.shape and torch.allclose(x.double(), e, rtol=1e-4))
        place = next(like, None)
        if place is not None and (p > 0 or child is not None):
            found[place].append(p if child is None else child)
        elif p > 0:
            raise ValueError(
                f"{name}: {type(mlp).__name__} has dropout (p = {p}) in a place that the layer lacks; "
                "set its p to 0"
            )
    if any(len(each) > 1 for each in found.values()):
        raise ValueError(f"{name}: {type(mlp).__name__} has dropout twice in one place")
    hidden, output = ((each or [0.0])[0] for each in found.values())
    return hidden, output
