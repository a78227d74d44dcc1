"""What a model's configuration says of its activations: written while they change, and read again.

What transformers cannot say is said in names that it refuses to read: fatrelu and drelu, whose threshold is
``hidden_act_param`` (a number, or one for each layer by name), and silu_to_relu_0.25 for 0.75 of the one
plus 0.25 of the other.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from twell.dense import FatRelu
from twell.hf.activations import Annealed
from twell.hf.kinds import CHILD, owners_of
from twell.modules import SparseFfn

_PARAM = "hidden_act_param"
# Names of FATReLU and dReLU, and the key of the threshold.
_PARAMS = {"fatrelu": _PARAM, "drelu": _PARAM, "fat_relu": "twell_fat_relu_threshold"}
PARAMS = frozenset(_PARAMS.values())
"""Keys of thresholds, which the configurations of transformers lack."""
_PATH = re.compile(r"(\w+)_to_(relu|drelu)_([01]\.\d*)")
_GATED = "gated-"  # T5's, in front of the name
_PROBE = "twell_probe"


def _act2fn() -> Any:
    from transformers.activations import ACT2FN

    return ACT2FN


def _bare(value: object) -> str:
    return value.removeprefix(_GATED) if isinstance(value, str) else ""


def _is_own(name: str) -> bool:
    return name in _PARAMS or _PATH.fullmatch(name) is not None


@contextmanager
def _known(makers: Mapping[str, Any]) -> Iterator[None]:
    """transformers makes these activations meanwhile, wherever a configuration names them."""
    table = _act2fn()
    new = {name: maker for name, maker in makers.items() if name not in table}
    table.update(new)
    try:
        yield
    finally:
        for name in new:
            del table[name]


# --- Reading --------------------------------------------------------------------------------------


@contextmanager
def readable(config: dict[str, Any], where: str) -> Iterator[bool]:
    """Lets transformers read the activations that it lacks; whether the config.json ``where`` names any.
    :func:`finish` belongs behind it. Raises ValueError for a threshold that is missing."""
    makers: dict[str, Any] = {}
    for node in _dicts(config):
        for name in filter(_is_own, map(_bare, node.values())):
            maker = _maker(name, node, where)
            if makers.setdefault(name, maker) != maker:
                raise ValueError(f"{where}: {_PARAM}: expected the same threshold wherever {name} is said")
    with _known(makers):
        yield bool(makers)


def _dicts(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield config
    for value in config.values():
        if isinstance(value, dict):
            yield from _dicts(value)


def _maker(name: str, node: dict[str, Any], where: str) -> tuple[Callable[..., nn.Module], dict[str, Any]]:
    if (path := _PATH.fullmatch(name)) is not None:
        return _on_the_way, {"start": path[1], "up": path[2] == "drelu", "share": float(path[3])}
    threshold = node.get(_PARAMS[name])
    up = name == "drelu"
    if isinstance(threshold, dict) or (threshold is None and up):
        threshold = 0.0  # of layers by name: sparsify gives each its own
    if not isinstance(threshold, (int, float)) or isinstance(threshold, bool):
        raise ValueError(
            f"{where}: {_PARAMS[name]}: expected the threshold of {name}, a number, got {threshold}"
        )
    return _with_zeros, {"threshold": float(threshold), "up": up}


def _with_zeros(threshold: float, up: bool) -> nn.Module:
    act = FatRelu(threshold) if threshold else nn.ReLU()
    return _marked(act, nn.ReLU()) if up else act


def _on_the_way(start: str, up: bool, share: float) -> nn.Module:
    act = Annealed(_act2fn()[start], nn.ReLU(), share)
    return _marked(act, Annealed(nn.Identity(), nn.ReLU(), share)) if up else act


def _marked(act: nn.Module, up: nn.Module) -> nn.Module:
    act.__dict__["of_up"] = up  # no child: what it hangs on is no state of it
    return act


def finish(model: nn.Module) -> bool:
    """Gives up the activations that belong to it. Whether the model has zeros to skip, and is not on its
    way from another activation."""
    from twell.hf.drelu import activate_up

    marked = {name: m.__dict__["of_up"] for name, m in model.named_modules() if "of_up" in m.__dict__}
    if marked:
        owners = {name.rpartition(".")[0]: up for name, up in marked.items()}
        activate_up("twell.hf.from_pretrained", model, owners.get)
    return not any(isinstance(m, Annealed) for m in model.modules())


def thresholds_of(config: Any) -> dict[str, float]:
    """Those that a configuration has by the names of layers."""
    found: dict[str, float] = {}
    for node in _nodes(config):
        said = vars(node).get(_PARAM)
        if isinstance(said, dict) and any(_bare(name) in _PARAMS for name in vars(node).values()):
            found |= said
    return found


# --- Writing --------------------------------------------------------------------------------------


class Computed(NamedTuple):
    """What a layer computes, as a configuration names it."""

    name: str
    threshold: float = 0.0

    @staticmethod
    def by(layer: SparseFfn) -> Computed | None:
        """None for what has no name."""
        threshold = layer.threshold if layer.activation == "fat_relu" else 0.0
        squared = layer.activation == "relu_squared"
        if layer.up_activation == "relu" and not squared:
            return Computed("drelu", threshold)
        if layer.up_activation == "identity":
            return Computed("relu2" if squared else "relu", threshold)
        return None

    @staticmethod
    def on_the_way(start: str, end: str, share: float) -> Computed:
        # Without an exponent, whose minus would look like T5's "gated-".
        return Computed(end if share >= 1 else f"{start}_to_{end}_{Decimal(repr(share)):f}")


class _Probe(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class _Key(NamedTuple):
    """A key by which a configuration says what some layers compute."""

    name: str
    node: Any
    """The configuration that has it."""
    places: list[tuple[Any, str, str]]
    """All that is to be set: configurations, attributes, and what stands in front of the name."""
    layers: list[str]
    others: list[str]
    """Modules that are none of the layers, and would change too."""
    front: str
    """Of their names, before those in the files of the model that has the configuration."""


class Sayings:
    """Where the configuration of a model says what each of its layers computes. That is tried: a model
    is made, without data, of the configuration with another name in one place after the other."""

    def __init__(self, model: nn.Module, layers: list[str]) -> None:
        self.roots = {f"{at}." if at else "": root for at, root in written(model)}
        self.keys: list[_Key] = []
        for front, root in self.roots.items():
            own = [layer.removeprefix(front) for layer in layers if layer.startswith(front)]
            self.keys += _keys_of(root, own, front)

    def root_of(self, layer: str) -> Any:
        """The model whose configuration speaks of a layer; None of a layer outside of all."""
        return next((root for front, root in self.roots.items() if layer.startswith(front)), None)

    def check(self, operation: str, model: nn.Module, computed: Mapping[str, Computed | None]) -> None:
        """Raises ValueError where these, or others with thresholds, cannot be written."""
        if any("save_pretrained" in vars(root) for root in self.roots.values()):
            raise ValueError(
                f"{operation}: expected a model whose files can say what it comes to compute; the layout of "
                "SparseLM has ReLU alone: save it with the plain class of its model_type first"
            )
        said = {layer for key in self.keys for layer in key.layers}
        for layer, what in computed.items():
            root = self.root_of(layer)
            if root is not None and (layer not in said or what is None):
                raise ValueError(
                    f"{operation}: {layer}: the configuration ({type(root.config).__name__}) has no key that "
                    "says its activation, so that what is saved would compute something else"
                )
        for key in self.keys:
            names = {what.name for n in key.layers if (what := computed.get(n)) is not None}
            rest = [*key.others, *(n for n in key.layers if n not in computed)]
            if names and (rest or len(names) > 1):
                other = f"that of {rest[0] or type(model).__name__}" if rest else "several of them"
                raise ValueError(
                    f"{operation}: {key.layers[0]}: {key.name} of the configuration says its activation and "
                    f"{other}, which would differ"
                )

    def untrue_of(self, computed: Mapping[str, Computed]) -> dict[str, Computed]:
        """The layers of which it says something else."""
        found: dict[str, Computed] = {}
        for key in self.keys:
            name = _bare(getattr(key.node, key.name))
            threshold = getattr(key.node, _PARAMS.get(name, _PARAM), None) if name in _PARAMS else 0.0
            mine = {layer: computed[layer] for layer in key.layers if layer in computed}
            for layer, what in mine.items():
                own = threshold.get(_in_file(key, layer), 0.0) if isinstance(threshold, dict) else threshold or 0.0
                if Computed({"fatrelu": "relu", "fat_relu": "relu"}.get(name, name), own) != what:
                    found |= mine
        return found

    def write(self, computed: Mapping[str, Computed]) -> None:
        """Of layers that :meth:`check` has let through."""
        thresholds: dict[int, dict[str, float]] = {}
        nodes: dict[int, list[Any]] = {}
        for key in self.keys:
            mine = {layer: computed[layer] for layer in key.layers if layer in computed}
            if not mine:
                continue
            (name,) = {what.name for what in mine.values()}
            own = thresholds.setdefault(id(key.node), {})
            own |= {_in_file(key, layer): what.threshold for layer, what in mine.items()}
            nodes.setdefault(id(key.node), []).extend(node for node, _, _ in key.places)
            if name == "relu" and any(own.values()):
                name = "fatrelu"
            for node, attribute, front in key.places:
                setattr(node, attribute, front + name)
        # Whoever reads it makes one activation of a name, wherever it stands.
        alike = len({v for own in thresholds.values() if any(own.values()) for v in own.values()}) == 1
        for place, own in thresholds.items():
            for node in nodes[place]:
                _say_thresholds(node, own, alike)


def untrue_in(model: nn.Module, layers: Mapping[str, SparseFfn]) -> tuple[Sayings | None, dict[str, Computed]]:
    """The layers of which a configuration says something else than they compute, as behind
    ``sparsify(model, activation=...)``, and where it says so."""
    computed = {n: c for n, m in layers.items() if (c := Computed.by(m)) is not None}
    said = {Computed(name) for _, root in written(model) for name in names_in(root.config)}
    if said == set(computed.values()):
        return None, {}
    sayings = Sayings(model, list(computed))
    return sayings, sayings.untrue_of(computed)


def written(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Models that write a configuration beside their weights, of which others make a model, by name: this
    one, or those within one of somebody's own."""
    inside: list[str] = []
    for name, module in model.named_modules():
        if any(f"{name}.".startswith(front) for front in inside):
            continue
        if hasattr(getattr(module, "config", None), "to_diff_dict") and hasattr(module, "save_pretrained"):
            inside.append(f"{name}." if name else "")
            yield name, module


def _keys_of(model: Any, layers: list[str], front: str) -> Iterator[_Key]:
    """Of a model that is written, whose names of layers stand behind ``front`` elsewhere."""
    copies = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
    tree = {id(node) for node in _nodes(model.config)}
    for path, name in _said_in(model.config):
        read, changed = _as_read(model.config, path, name)
        owners = _probed(model, read) if changed else []
        mine = [layer for layer in layers if any(owner in owners for owner in owners_of(layer))]
        known = {owner for layer in mine for owner in owners_of(layer)}
        if not owners:
            continue
        places = []
        for at, attribute in changed:
            node = _at(model.config, at)
            value = getattr(node, attribute)
            same = [
                c for key, c in copies.items()
                if key not in tree and type(c) is type(node) and getattr(c, attribute, None) == value
            ]  # fmt: skip
            gated = _GATED if str(value).startswith(_GATED) else ""
            places += [(each, attribute, gated) for each in (node, *same)]
        full = [front + layer for layer in mine]
        others = [front + owner for owner in owners if owner not in known]
        yield _Key(name, _at(model.config, path), places, full, others, front)


def _say_thresholds(node: Any, thresholds: dict[str, float], alike: bool) -> None:
    values = set(thresholds.values())
    if values != {0.0}:
        setattr(node, _PARAM, values.pop() if alike else dict(thresholds))
    elif _PARAM in vars(node):
        delattr(node, _PARAM)


def _in_file(key: _Key, layer: str) -> str:
    """What sparsify calls it there: by the module whose parts it is made of."""
    return layer.removeprefix(key.front).removesuffix(f".{CHILD}")


def _nodes(config: Any) -> Iterator[Any]:
    """A configuration and those within it."""
    if hasattr(config, "to_diff_dict"):
        yield config
        for value in vars(config).values():
            yield from _nodes(value)


def names_in(config: Any) -> set[str]:
    """Of activations, wherever they stand."""
    return {_bare(getattr(_at(config, path), name)) for path, name in _said_in(config)}


def _at(config: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        config = getattr(config, name)
    return config


def _said_in(config: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Where names of activations stand."""
    known = _act2fn()
    for key, value in vars(config).items():
        if hasattr(value, "to_diff_dict"):
            yield from _said_in(value, (*path, key))
        elif (name := _bare(value)) in known or _is_own(name):
            yield path, key


def _as_read(config: Any, path: tuple[str, ...], key: str) -> tuple[Any, list[tuple[tuple[str, ...], str]]]:
    """The configuration that a reader has if that key names another activation, and the keys that do so
    then: reading may set some by others."""
    said = config.to_dict()
    for node in _dicts(said):
        for name, value in node.items():
            if _is_own(_bare(value)):
                node[name] = value.replace(_bare(value), "relu")
    node = said
    for name in path:
        node = node[name]
    node[key] = (_GATED if node[key].startswith(_GATED) else "") + _PROBE
    with _known({_PROBE: _Probe}):
        read = type(config).from_dict(said)
        return read, [at for at in _said_in(read) if _bare(getattr(_at(read, at[0]), at[1])) == _PROBE]


def _probed(model: nn.Module, config: Any) -> list[str]:
    """The modules that would have that activation."""
    try:
        with _known({_PROBE: _Probe}), torch.device("meta"):
            twin = type(model)(config)
    except Exception:  # it is no activation that the code looks up
        return []
    found = [name.rpartition(".") for name, m in twin.named_modules(remove_duplicate=False) if type(m) is _Probe]
    return [owner for owner, _, name in found if _uses(twin.get_submodule(owner), name)]


def _uses(module: nn.Module, child: str) -> bool:
    """Whether its code looks at the child: some have activations that another module applies."""
    if isinstance(module, (nn.Sequential, nn.ModuleList, nn.ModuleDict)):
        return True
    kinds = [kind for kind in type(module).__mro__ if kind is not nn.Module]
    methods = [f for kind in kinds for n, f in vars(kind).items() if callable(f) and n != "__init__"]
    codes = [getattr(inspect.unwrap(f), "__code__", None) for f in methods]
    return any(child in code.co_names for code in codes if code is not None)


def name_of(act: nn.Module, sayings: Sayings, layer: str) -> str | None:
    """What the configuration calls the activation that a layer has; None if it computes another."""
    x = torch.linspace(-6, 6, 97, device="cpu")
    for key in sayings.keys:
        if layer in key.layers:
            for node, attribute, _ in key.places:
                name = _bare(getattr(node, attribute))
                if path := _PATH.fullmatch(name):
                    name = path[1]
                with torch.no_grad():
                    if name in _act2fn() and torch.equal(_act2fn()[name](x), act(x)):
                        return name
    return None
