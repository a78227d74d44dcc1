"""Replaces the feed-forward layers of a model by GatedFfn and Ffn, all or none."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from twell import _attached, _frozen
from twell._block import check_path
from twell._weights import FEWEST_INPUTS
from twell.hf import experts, inline
from twell.hf.activations import activation_of
from twell.hf.experts import from_experts
from twell.hf.inline import from_owner
from twell.hf.kinds import KINDS, Kind, Stays, described, kind_of
from twell.hf.mlps import layer_of
from twell.hf.said import thresholds_of, untrue_in
from twell.hf.unchanged import as_it_was, rescale
from twell.modules import SparseFfn
from twell.sparsity import sparse_layers


def sparsify(
    model: nn.Module,
    *,
    activation: str | None = None,
    threshold: float = 0.0,
    freeze: bool = True,
    sample: Tensor | Mapping[str, Any] | None = None,
    mlp: Mapping[str, str] | None = None,
    path: str | None = None,
) -> nn.Module:
    """Replaces every feed-forward layer of a model by a :class:`GatedFfn` or :class:`Ffn`, in place, and
    returns the model. Its outputs stay the same up to rounding.

    A layer is its own module (:func:`from_mlp`), or two linear layers and an activation among the parts
    of another module, as in ``torch.nn.TransformerEncoderLayer`` and OPT. In the second case the layer is
    a further child ``sparse_ffn`` of that module. Each expert, of whatever layout, becomes a layer.
    Linear layers, parameters and the keys of the state_dict keep their names, places and order.

    With ``freeze`` the layers keep only packed weights (for inference). Without it they stay
    trainable. ``sample`` is representative text: ids [batch, tokens] or a tokenizer's result, of 32
    tokens or more (on a GPU, 1,024 or more). The model is called with it once, and
    :meth:`GatedFfn.freeze` then takes the faster gate form of each layer. ``activation`` (relu,
    relu_squared, fat_relu with ``threshold``) is for models whose configuration does not say what
    they were trained with. ``mlp`` is for models with other names, such as
    ``{"gate": "w1", "up": "w3", "down": "w2", "act": "act_fn"}``; leave out act if their code calls
    ``torch.relu``. ``path`` is that of :meth:`GatedFfn.freeze`.

    It replaces all layers or none, with one exception. A whole stack of layers (of one class and place)
    that has an activation without exact zeros, or linear layers that do not fit, stays as it is if other
    stacks are taken, and a warning says so in one line.
    It raises ValueError, and leaves the model as it was, if :func:`from_mlp` refuses one of the others,
    if there is none, or if the sample is too short or comes without ``freeze``. With ``freeze`` it
    also refuses a dtype that the operators lack, and a linear layer that has hooks, an adapter, a
    parametrization or another module's weight, or keeps its weight elsewhere. Without ``freeze`` such
    a layer computes densely, by its linear layers.

    On a CPU it takes linear layers whose weights alone compressed-tensors or torchao has quantised to
    int8 or int4 (docs/quantised.md). Codes that the operators multiply as they are stay codes. A sample
    is not run if all layers have codes. Call this before the model's first forward pass, in which
    compressed-tensors makes numbers of all codes that it finds.
    """
    if sample is not None and not freeze:
        raise ValueError("sparsify: sample: chooses the form of frozen layers; expected freeze=True")
    if path is not None and not freeze:
        raise ValueError("sparsify: path: is that of frozen layers; expected freeze=True")
    check_path("sparsify: path", path)
    kinds = KINDS if mlp is None else (Kind.of(mlp),)
    with as_it_was(model):  # activations are tried
        sites, stay = _sites_of(judge(model, kinds, activation, threshold, freeze))
    if not sites:
        raise ValueError(
            f"sparsify: {type(model).__name__} has no MLP with {described(kinds)}; mlp= "
            "says what its layers are called"
        )
    for what, why in _lines(model, stay).items():
        warnings.warn(f"sparsify: {what}: {why}", stacklevel=2)
    try:
        for site in sites:
            site.put(model)
        # Of codes no screen is made; and compressed-tensors would make numbers of them.
        coded = all(layer.has_codes for site in sites for layer in site.layers.values())
        inputs = {} if sample is None or coded else _inputs_of(sites, model, sample)
    except BaseException:
        for site in sites:
            site.take_back(model)
        raise
    for what, why in ({} if freeze else _dense(sites)).items():
        warnings.warn(f"sparsify: {what} computes densely: {why}", stacklevel=2)
    if activation is not None:
        _say(model)
    if freeze:
        rescale(model)
        _freeze(model, sites, inputs, path)
    return model


def _dense(sites: Iterable[Site]) -> dict[str, str]:
    """One line for each kind of layer whose calls stay dense, as its parts do more than multiply."""
    lines: dict[str, str] = {}
    for site in sites:
        for name, layer in site.layers.items():
            if (part := layer._special_child()) is None:
                continue
            kind, place = _stack(name, site.module)
            found = type(layer.part(part)).__name__
            why = f"its {part} is a {found} that does more than an nn.Linear"
            if found == "Linear":
                why = f"its {part} has hooks, another forward, or a weight of another class"
            lines.setdefault(f"{place} ({kind})", why)
    return lines


def _say(model: nn.Module) -> None:
    """In the configuration, that the layers have another activation."""
    sayings, untrue = untrue_in(model, sparse_layers(model))
    if sayings is None or not untrue:
        return
    try:
        sayings.check("sparsify", model, untrue)
    except ValueError as why:
        warnings.warn(f"{why}; save it with what says so", stacklevel=3)
    else:
        sayings.write(untrue)


class Site:
    """Where layers stand, or are to stand, in a model: here one in place of a module."""

    def __init__(self, names: list[str], module: nn.Module, kind: Kind, *made: SparseFfn) -> None:
        self.names = names
        """All of the module: blocks may share one."""
        self.name = names[0]
        self.module = module
        self.kind = kind
        self.layers = {f"{self.name}.{i}" if kind.stacked else self.name: m for i, m in enumerate(made)}

    @property
    def layer(self) -> SparseFfn:
        """The one that there is, or the first expert."""
        return next(iter(self.layers.values()))

    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Of the module's linear layers and norm, or of all experts."""
        return list(self.layer.part_parameters().items())

    def put(self, model: nn.Module) -> None:
        for name in self.names:
            model.set_submodule(name, self.layer)

    def take_back(self, model: nn.Module) -> None:
        for name in self.names:
            model.set_submodule(name, self.module)

    def freeze(self, inputs: dict[str, Tensor], path: str | None) -> None:
        for name, layer in self.layers.items():
            SparseFfn.freeze(layer, inputs.pop(name, None), path=path)

    def thaw(self) -> None:
        for layer in self.layers.values():
            layer.thaw()

    def let_go(self) -> None:
        """Keeps the module without its weights, which may go."""
        self.module = _attached.twin_of(self.module, dict.fromkeys(self.layer._child_names))

    def refill(self) -> None:
        """Gives the module the layer's children."""
        self.module._modules.update(self.layer._parts())


class InlineSite(Site):
    """Among the parts of a module, which they stay."""

    _take_back: Callable[[], None] | None = None

    def put(self, model: nn.Module) -> None:
        parts = self.kind.parts_of(self.module, self.name)
        self._take_back = inline.put(self.module, parts, self.layer)

    def take_back(self, model: nn.Module) -> None:
        if self._take_back is not None:
            self._take_back()

    def let_go(self) -> None:
        pass

    def refill(self) -> None:
        pass


class ExpertsSite(InlineSite):
    """In a module that has the weights of all its experts as one parameter."""

    def put(self, model: nn.Module) -> None:
        self._take_back = experts.put(self.module, list(self.layers.values()))

    def freeze(self, inputs: dict[str, Tensor], path: str | None) -> None:
        super().freeze(inputs, path)
        self.module.let_go()  # type: ignore[operator]


# --- Finding --------------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """Of a module that is a feed-forward layer, or has the parts of one."""

    names: list[str]
    """All of the module."""
    module: nn.Module
    kind: Kind | None
    """None for layers of twell."""
    site: Site | None = None
    """Where its layer is to stand; none where it stays dense, or is a layer of twell."""
    why: ValueError | None = None
    """Why it stays dense (Stays), or is refused."""

    @property
    def is_taken(self) -> bool:
        return self.why is None and not isinstance(self.module, SparseFfn)

    @property
    def is_refused(self) -> bool:
        return self.why is not None and not isinstance(self.why, Stays)


def judge(
    model: nn.Module,
    kinds: tuple[Kind, ...] = KINDS,
    activation: str | None = None,
    threshold: float = 0.0,
    freeze: bool = True,
) -> Iterator[Verdict]:
    """What becomes of each feed-forward layer of a model, one after the other. Nothing is changed. See
    :func:`refusal`."""
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    config = getattr(model, "config", None)
    thresholds = {} if activation else thresholds_of(config)
    check = _check_freezable(model) if freeze else None
    compiled: set[nn.Module] = set()
    for module, called in names.items():
        within = getattr(module, "_orig_mod", None)  # of a compiled one
        if isinstance(module, SparseFfn):
            yield Verdict(called, module, None)
        kind = None if module in compiled else kind_of(module, kinds)
        if kind is None:
            continue
        alone = kind.stands_alone(within or module)
        if within is not None:
            if not alone:
                continue  # which sees what becomes of the parts
            compiled.add(within)
        given = (module, kind, activation, threshold, called[0], config)
        try:
            if kind.split:
                raise _why_split(*given)
            if kind.stacked:
                site: Site = ExpertsSite(called, module, kind, *from_experts(*given))
            else:
                place, made_of = (Site, layer_of) if alone else (InlineSite, from_owner)
                site = place(called, module, kind, made_of(*given))
            if alone and called == [""]:
                raise Stays(
                    f"{type(module).__name__}: the model itself is the layer, which nothing can replace in "
                    "place; twell.from_mlp makes a layer of it"
                )
            for name, layer in site.layers.items():
                if name in thresholds:
                    layer.activation, layer.threshold = "fat_relu", thresholds[name]
            if check is not None:
                check(site)
        except ValueError as why:
            yield Verdict(called, module, kind, why=why)
        else:
            yield Verdict(called, module, kind, site)


def _sites_of(
    judged: Iterable[Verdict],
) -> tuple[list[Site], list[tuple[str, ValueError]]]:
    """All that are to be layers, and the names of what stays dense, with the reasons. Raises ValueError
    if there is a refusal."""
    verdicts: list[Verdict] = []
    for verdict in judged:
        verdicts.append(verdict)
        if verdict.is_refused:
            break
    if (why := refusal(verdicts)) is not None:
        raise ValueError(str(why))
    sites = [v.site for v in verdicts if v.site is not None]
    return sites, [(v.names[0], v.why) for v in verdicts if v.why is not None]


def refusal(verdicts: list[Verdict]) -> ValueError | None:
    """Why sparsify takes none of the layers that were judged: one is refused, or stays dense though others
    of its stack do not, or all stay dense. None where it takes all that have a site."""
    taken = {_stack(name, v.module) for v in verdicts if v.is_taken for name in v.names}
    whys = [v.why for v in verdicts if v.is_refused]
    stay = [v for v in verdicts if v.why is not None]
    whys += [v.why for v in stay if not taken or _stack(v.names[0], v.module) in taken]
    return whys[0] if whys else None


def _why_split(
    module: nn.Module, kind: Kind, activation: str | None, _: float, name: str, config: object
) -> Stays:
    if activation is None:
        try:
            activation_of(name, kind.act_of(module), config)
        except ValueError as why:
            return Stays(str(why))
    return Stays(f"{name}: its two linear layers stand in two modules")


def _stack(name: str, module: nn.Module) -> tuple[str, str]:
    """What layers are counted as of one kind: the class, and the name without the numbers of blocks."""
    return type(module).__name__, re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", name)


def _lines(model: nn.Module, stay: list[tuple[str, ValueError]]) -> dict[str, str]:
    """One line for each kind of what stays."""
    lines: dict[str, str] = {}
    for name, why in stay:
        kind, place = _stack(name, model.get_submodule(name))
        lines.setdefault(f"{place} ({kind}) stay as they are", str(why))
    return lines


# --- Freezing -------------------------------------------------------------------------------------


def _check_freezable(model: nn.Module) -> Callable[[Site], None]:
    """What raises ValueError for layers of that model that cannot be frozen."""
    parents = Counter(child for m in model.modules() for child in m._modules.values())
    owners = Counter(id(w) for m in model.modules() for w in m._parameters.values())

    def check(site: Site) -> None:
        for name, layer in site.layers.items():
            dot = f"{name}." if name else ""
            layer._check_children(dot)
            for child, module in layer._parts().items():
                if isinstance(module, nn.Module) and parents[module] > 1:
                    own = next((own for own, _ in module.named_parameters()), "weight")
                    raise _shared(f"{dot}{child}", own)
            for own, tensor in layer.part_parameters().items():
                part, _, kind = own.rpartition(".")
                where = f"{dot}{part}" if part else site.name
                if tensor.is_meta:
                    raise ValueError(f"{where}: its {kind} has no data, on the meta device")
                if owners[id(tensor)] > 1:
                    raise _shared(where, kind)
            try:
                _frozen.check(layer._described())
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error

    return check


def _shared(name: str, own: str) -> ValueError:
    return ValueError(
        f"{name}: another module has the same {own}, of which a frozen layer keeps a copy of its own; "
        "untie them, or use freeze=False"
    )


def _freeze(
    model: nn.Module, sites: list[Site], inputs: dict[str, Tensor], path: str | None
) -> None:
    """Freezes layer by layer, so that the memory that one gives up is free for the next. If one
    fails, as memory may not suffice, the modules come back, with the weights that the layers were
    frozen with."""
    wanted = [[w.requires_grad for _, w in site.parameters()] for site in sites]
    for site in sites:
        site.let_go()
    try:
        for site in sites:
            site.freeze(inputs, path)
    except BaseException:
        for site, wants in zip(sites, wanted):
            site.thaw()
            site.refill()
            for (_, weight), want in zip(site.parameters(), wants, strict=True):
                weight.requires_grad_(want)
            site.take_back(model)
        raise


def _inputs_of(
    sites: Iterable[Site], model: nn.Module, sample: Tensor | Mapping[str, Any]
) -> dict[str, Tensor]:
    """The inputs of each layer when the model runs the sample, for layers that see enough of
    them."""
    layers = {name: layer for site in sites for name, layer in site.layers.items()}
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
        run_sample("sparsify", model, sample)
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


def run_sample(operation: str, model: nn.Module, sample: Any) -> None:
    """Calls the model once as for inference: a tensor or a tuple are its arguments, a mapping its named
    ones. It is as it was afterwards."""
    first = next(model.parameters(), None)
    values = sample.values() if isinstance(sample, Mapping) else sample
    for tensor in [sample] if isinstance(sample, Tensor) else values:
        spread = hasattr(model, "hf_device_map")  # over several devices; it moves its inputs itself
        misplaced = isinstance(tensor, Tensor) and first is not None and tensor.device != first.device
        if misplaced and not spread:
            raise ValueError(
                f"{operation}: sample: expected it on {first.device}, as the model, got {tensor.device}"  # type: ignore[union-attr]
            )
    with as_it_was(model), torch.no_grad():
        for module in model.modules():
            if module.training:
                module.training = False  # eval() may do more
        if isinstance(sample, Mapping):
            model(**sample)
        elif isinstance(sample, tuple):
            model(*sample)
        else:
            model(sample)
