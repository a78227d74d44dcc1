"""Replaces the MLPs of Hugging Face models by GatedFfn and Ffn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from twell import _attached, _frozen, _norm, dense
from twell._children import linear_of
from twell._frozen import FEWEST_INPUTS
from twell.form import Form
from twell.modules import Ffn, GatedFfn, SparseFfn

# The children of an MLP of Llama, Qwen2 and many others, and of one without a gate (Arcee,
# Nemotron).
_GATED = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj", "act": "act_fn"}
_PLAIN = {"up": "up_proj", "down": "down_proj", "act": "act_fn"}


@dataclass(frozen=True)
class _Kind:
    """What the children of an MLP are called."""

    linears: tuple[str, ...]
    act: str

    @staticmethod
    def of(names: Mapping[str, str]) -> _Kind:
        if set(names) not in (set(_GATED), set(_PLAIN)):
            raise ValueError(
                f"mlp: expected names for {', '.join(_GATED)}, or for these without gate, "
                f"got {', '.join(names) or 'none'}"
            )
        return _Kind(tuple(names[k] for k in _GATED if k in names and k != "act"), names["act"])

    def norm(self, module: nn.Module) -> str | None:
        """The child that is an RMSNorm, if there is one; whatever it is called."""
        names = {*self.linears, self.act}
        found = (n for n, m in module.named_children() if n not in names and _norm.is_rms_norm(m))
        return next(found, None)

    @property
    def gated(self) -> bool:
        return len(self.linears) == 3

    def __str__(self) -> str:
        return f"{', '.join(self.linears)} and {self.act}"

    def fits(self, module: nn.Module) -> bool:
        """Whether the module has these children, of whatever class. A module without a gate must
        have no other layer: that would be a gate by another name."""
        if not hasattr(module, self.act):
            return False
        if not all(isinstance(getattr(module, name, None), nn.Module) for name in self.linears):
            return False
        return self.gated or not self.others(module)

    def others(self, module: nn.Module) -> list[str]:
        """The children that the layer would lose."""
        names = {*self.linears, self.act, self.norm(module)}
        return [n for n, m in module.named_children() if n not in names and not _does_nothing(m)]


def _does_nothing(module: nn.Module) -> bool:
    return isinstance(module, nn.Identity) or (isinstance(module, nn.Dropout) and module.p == 0)


def _kinds(mlp: Mapping[str, str] | None) -> list[_Kind]:
    return [_Kind.of(_GATED), _Kind.of(_PLAIN)] if mlp is None else [_Kind.of(mlp)]


def _activation_of(name: str, act_fn: object) -> tuple[str, float]:
    if isinstance(act_fn, dense.FatRelu):
        return "fat_relu", act_fn.threshold
    # transformers has its own class for x → relu(x)² (hidden_act "relu2"); by name, so that the
    # package need not be installed.
    known = {"ReLU": "relu", "ReLUSquaredActivation": "relu_squared"}
    kind = type(act_fn).__name__
    if kind not in known:
        raise ValueError(
            f"{name}: its activation {kind} yields no exact zeros, so there is nothing to skip; "
            f"expected ReLU, squared ReLU or twell.FatRelu. If the weights were trained with one "
            f"of these and the configuration does not say so, pass activation="
        )
    return known[kind], 0.0


def from_mlp(
    mlp: nn.Module,
    *,
    activation: str | None = None,
    threshold: float = 0.0,
    name: str = "mlp",
    names: Mapping[str, str] | None = None,
) -> SparseFfn:
    """Makes a layer whose children are a module's linear layers. A module with gate_proj, up_proj,
    down_proj and act_fn (Llama, Qwen2) becomes a GatedFfn; one without gate_proj (Arcee) becomes an
    Ffn. ``names`` gives other names, under the keys gate, up, down and act. The layer also takes an
    RMSNorm before down (BitNet), and applies act_fn to up if the module does.

    ``activation`` overrides what act_fn says. The layer takes over the module's hooks of forward
    and backward. What is attached to the linear layers stays there.

    Raises ValueError for an activation that yields no zeros, for further layers in the module, for a
    module of another kind or one that computes something else, and if anything else is attached to
    the module or to act_fn and would be lost. The message calls the module ``name``.
    """
    kinds = _kinds(names)
    kind = next((k for k in kinds if k.fits(mlp)), None)
    if kind is None:
        raise ValueError(
            f"{name}: expected linear layers {', or '.join(map(str, kinds))}, got {type(mlp).__name__}"
        )
    if type(mlp).__name__ == "OptimizedModule":
        raise ValueError(f"{name}: is compiled (torch.compile); compile the model afterwards")
    if others := kind.others(mlp):
        raise ValueError(
            f"{name}: expected {kind} alone, got {', '.join(others)} too, which the layer would lack"
        )
    linears = [_child_of(f"{name}.{child}", getattr(mlp, child)) for child in kind.linears]
    if activation is None:
        activation, threshold = _activation_of(name, getattr(mlp, kind.act))
    norm = kind.norm(mlp)
    kept = {*kind.linears, norm}
    lost = {f"{name}.{c}": m for c, m in mlp.named_children() if c not in kept}
    for where, module in {name: mlp, **lost}.items():
        if hangs := _attached.what(module, hooks=module is not mlp):
            raise ValueError(
                f"{where} has {hangs}, which the layer would lose; remove that first"
            )
    up_activation = "identity"
    if _try_forward(name, mlp, kind):
        up_activation = activation
        if activation not in dense.UP_ACTIVATIONS:
            raise ValueError(
                f"{name}: applies {activation} to up as well, which may have "
                f"{', '.join(dense.UP_ACTIVATIONS)}"
            )
    options: dict[str, Any] = {}
    if norm is not None:
        options = {"norm": _norm_of(getattr(mlp, norm)), "norm_name": norm}
    try:
        layer = (GatedFfn if kind.gated else Ffn)._of_linears(
            linears,
            activation=activation,
            threshold=threshold,
            up_activation=up_activation,
            names=kind.linears,
            **options,
        )
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    layer.train(mlp.training)
    _attached.take_over(layer, mlp)
    return layer


def _child_of(name: str, module: nn.Module) -> nn.Module:
    """The child that the layer gets for this module."""
    if not (hasattr(module, "in_features") and hasattr(module, "out_features")):
        raise ValueError(f"{name}: expected a linear layer, got {type(module).__name__}")
    if type(module) is nn.Linear and _attached.moves_inputs_alone(module):
        # The layer moves its inputs itself, and without the hook it is sparse.
        return linear_of(module.weight, module.bias)
    return module


def _norm_of(module: nn.Module) -> nn.Module:
    """The child that a layer has for an RMSNorm."""
    if not _attached.moves_inputs_alone(module):
        return module
    twin = _norm.with_weight(module, module._parameters["weight"])
    for name in ("forward", "_hf_hook", "_old_forward"):
        twin.__dict__.pop(name, None)
    return twin


def _has_bias(module: nn.Module) -> bool:
    bias = getattr(module, "bias", None)
    return (bias() if callable(bias) else bias) is not None  # a method, of PyTorch's quantized layers


def _try_forward(name: str, mlp: nn.Module, kind: _Kind) -> bool:
    """Whether the module applies its activation to up as well. Raises ValueError unless the code of an
    MLP computes what its children say. It is tried with small weights in place of its own, so that
    it costs nothing and no hook fires."""
    width, neurons = 6, 10
    generator = torch.Generator("cpu").manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")

    *into, down = kind.linears
    children: dict[str, nn.Module | None] = {}
    for child in kind.linears:
        weight = random(width, neurons) if child == down else random(neurons, width)
        bias = random(weight.shape[0]) if _has_bias(getattr(mlp, child)) else None
        children[child] = linear_of(weight, bias)
    norm = kind.norm(mlp)
    form = Form()
    if norm is not None:
        # What the module's own norm computes is known.
        twin_norm = nn.RMSNorm(neurons, 0.1, device="cpu", dtype=torch.float64)
        twin_norm.weight = nn.Parameter(random(neurons))
        children[norm] = twin_norm
        form = Form(norm_weight=twin_norm.weight, norm_epsilon=0.1)
    twin = _with_children(mlp, children)
    x = random(1, 5, width)
    with torch.no_grad():
        act = getattr(mlp, kind.act)
        g, *u = (children[child](x) for child in into)  # type: ignore[misc]
        wanted = [act(g) * u[0], act(g) * act(u[0])] if u else [act(g)]
        try:
            got = type(mlp).forward(twin, x)
        except Exception as error:
            raise ValueError(
                f"{name}: {type(mlp).__name__} takes or needs more than one tensor: "
                f"{(str(error) or type(error).__name__).splitlines()[0]}"
            ) from error
        # In float64, or rounded to float32 on its way.
        same = isinstance(got, Tensor) and got.shape == x.shape
        for both, h in enumerate(wanted):
            want = children[down](dense.normalise(h, form))  # type: ignore[misc]
            if same and torch.allclose(got.double(), want, rtol=1e-4):
                return both == 1
    times_up = f" * {into[1]}(x)" if kind.gated else ""
    h = f"{kind.act}({into[0]}(x)){times_up}"
    raise ValueError(
        f"{name}: {type(mlp).__name__} computes something else than "
        f"{down}({h if norm is None else f'{norm}({h})'})"
    )


def _with_children(module: nn.Module, children: Mapping[str, nn.Module | None]) -> nn.Module:
    """A copy of the module that differs only in these children."""
    twin = object.__new__(type(module))
    twin.__dict__.update(module.__dict__, _modules={**module._modules, **children})
    return twin


def sparsify(
    model: nn.Module,
    *,
    activation: str | None = None,
    threshold: float = 0.0,
    freeze: bool = True,
    sample: Tensor | Mapping[str, Any] | None = None,
    mlp: Mapping[str, str] | None = None,
) -> nn.Module:
    """Replaces every MLP of a model by a :class:`GatedFfn` or :class:`Ffn` (:func:`from_mlp`), in
    place, and returns the model. Its outputs stay the same up to rounding.

    With ``freeze`` the layers keep only packed weights (for inference). Without, they stay
    trainable. ``sample`` is text like that to come: ids [batch, tokens] or a tokenizer's result, of
    32 tokens or more (on a GPU, 1,024 or more). The model is called with it once, and
    :meth:`GatedFfn.freeze` then takes the faster form of each layer. ``activation`` (relu,
    relu_squared, fat_relu with ``threshold``) is for models whose configuration does not say what
    they were trained with. ``mlp`` is for models with other names, such as
    ``{"gate": "w1", "up": "w3", "down": "w2", "act": "act_fn"}``.

    It replaces all MLPs or none. It raises ValueError, and leaves the model as it was, if
    :func:`from_mlp` refuses one of the MLPs, if there is none, or if the sample is too short or
    comes without ``freeze``. With ``freeze`` it also refuses a dtype that the operators lack, and a
    linear layer that has hooks, an adapter, a parametrization or another module's weight, is
    quantized, or keeps its weight elsewhere. Without ``freeze`` such a layer computes densely, by
    its linear layers.
    """
    if sample is not None and not freeze:
        raise ValueError("sparsify: sample: chooses the form of frozen layers; expected freeze=True")
    kinds = _kinds(mlp)
    # By all their names: blocks may share one.
    mlps = {
        name: module
        for name, module in model.named_modules(remove_duplicate=False)
        if name and any(kind.fits(module) for kind in kinds)
    }
    if not mlps:
        raise ValueError(
            f"sparsify: {type(model).__name__} has no MLP with {', or '.join(map(str, kinds))}; mlp= "
            "says what its layers are called"
        )
    made: dict[nn.Module, SparseFfn] = {}
    for name, module in mlps.items():
        if module not in made:
            made[module] = from_mlp(
                module, activation=activation, threshold=threshold, name=name, names=mlp
            )
    layers = {name: made[module] for name, module in mlps.items()}
    first: dict[SparseFfn, str] = {}
    for name, layer in layers.items():
        first.setdefault(layer, name)
    del made, module
    if freeze:
        _check_freezable(model, layers)
    _put(model, layers)
    try:
        named = {name: layer for layer, name in first.items()}
        inputs = {} if sample is None else _inputs_of(named, model, sample)
    except BaseException:
        _put(model, mlps)
        raise
    # Without their linear layers, which may go.
    shells = {m: _with_children(mlps[n], dict.fromkeys(m._child_names)) for m, n in first.items()}
    mlps.clear()
    if freeze:
        _freeze(model, layers, shells, {m: inputs.pop(n) for m, n in first.items() if n in inputs})
    return model


def _put(model: nn.Module, modules: Mapping[str, nn.Module]) -> None:
    for name, module in modules.items():
        model.set_submodule(name, module)


def _check_freezable(model: nn.Module, layers: Mapping[str, SparseFfn]) -> None:
    parents = Counter(child for m in model.modules() for child in m._modules.values())
    owners = Counter(id(w) for m in model.modules() for w in m._parameters.values())
    for name, layer in layers.items():
        layer._check_children(f"{name}.")
        for child in layer._child_names:
            module = getattr(layer, child)
            for own, tensor in module.named_parameters():
                if tensor.is_meta:
                    raise ValueError(f"{name}.{child}: its {own} has no data, on the meta device")
                if parents[module] > 1 or owners[id(tensor)] > 1:
                    raise ValueError(
                        f"{name}.{child}: another module has the same {own}, of which a frozen layer "
                        "keeps a copy of its own; untie them, or use freeze=False"
                    )
        try:
            _frozen.check(layer._described())
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error


def _freeze(
    model: nn.Module,
    layers: Mapping[str, SparseFfn],
    shells: Mapping[SparseFfn, nn.Module],
    inputs: dict[SparseFfn, Tensor],
) -> None:
    """Freezes layer by layer, so that the memory that one gives up is free for the next. If one
    fails, as memory may not suffice, the MLPs come back, with the weights that the layers were
    frozen with."""
    wanted = {
        layer: {name: w.requires_grad for name, w in layer.named_parameters()} for layer in shells
    }
    try:
        for layer in shells:
            layer.freeze(inputs.pop(layer, None))
    except BaseException:
        for layer, shell in shells.items():
            for name, weight in layer.thaw().named_parameters():
                weight.requires_grad_(wanted[layer][name])
            for child in layer._child_names:
                shell._modules[child] = getattr(layer, child)
        _put(model, {name: shells[layer] for name, layer in layers.items()})
        raise


def _inputs_of(
    layers: Mapping[str, SparseFfn], model: nn.Module, sample: Tensor | Mapping[str, Any]
) -> dict[str, Tensor]:
    """The inputs of each layer when the model runs the sample, for layers that see enough of
    them."""
    device = next(model.parameters()).device
    for tensor in sample.values() if isinstance(sample, Mapping) else (sample,):
        spread = hasattr(model, "hf_device_map")  # over several devices; it moves its inputs itself
        if isinstance(tensor, Tensor) and tensor.device != device and not spread:
            raise ValueError(
                f"sparsify: sample: expected it on {device}, as the model, got {tensor.device}"
            )
    seen: dict[str, list[Tensor]] = {name: [] for name in layers}

    def keep(name: str) -> Callable[..., None]:
        def hook(
            layer: SparseFfn, arguments: tuple[Any, ...], options: dict[str, Any], _: Any
        ) -> None:
            x = arguments[0] if arguments else options["x"]
            seen[name].append(x.detach().reshape(-1, layer.width).clone())

        return hook

    hooks = [
        layer.register_forward_hook(keep(name), with_kwargs=True) for name, layer in layers.items()
    ]
    try:
        with torch.no_grad():
            model(**sample) if isinstance(sample, Mapping) else model(sample)
    finally:
        for hook in hooks:
            hook.remove()
    inputs = {name: torch.cat(rows) for name, rows in seen.items() if rows}
    most = max((len(x) for x in inputs.values()), default=0)
    if most < FEWEST_INPUTS:
        raise ValueError(
            f"sparsify: sample: expected {FEWEST_INPUTS} or more tokens, of which the MLPs saw {most}"
        )
    return {name: x for name, x in inputs.items() if len(x) >= FEWEST_INPUTS}
