"""What a model's feed-forward layers would gain, before anything is changed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from twell import dense
from twell.hf.kinds import Kind
from twell.hf.replace import Verdict, judge, refusal, run_sample
from twell.hf.unchanged import as_it_was
from twell.modules import SparseFfn


@dataclass(frozen=True)
class LayerReport:
    """One feed-forward layer. See :func:`report`."""

    name: str
    module: str
    """Its class."""
    activation: str
    gated: bool
    width: int
    neurons: int
    tokens: int
    """Tokens of the sample that the layer saw."""
    nnz_mean: float
    """Neurons that a token fires, on average: those whose hidden state is not 0."""
    nnz_max: int
    never: float
    """The share of the neurons that no token fired."""
    gain: float | None
    """The factor by which a token reads less of the weights, without a screen; None if the layer saw no
    token or nothing is 0."""
    taken: bool
    """Whether ``twell.sparsify(model)`` takes it; a frozen or unfrozen layer of twell is taken already."""
    why: str
    """Why not, in one line, as sparsify says it."""

    @property
    def share(self) -> float:
        """The share of the neurons that fire for a token."""
        return self.nnz_mean / self.neurons


@dataclass(frozen=True)
class Report:
    """What :func:`report` found; as text, a table for people."""

    model: str
    layers: list[LayerReport]
    parameters: int
    in_layers: int
    """Parameters of the feed-forward layers."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        layers = [{**asdict(layer), "share": layer.share} for layer in self.layers]
        return {**asdict(self), "layers": layers}

    def __str__(self) -> str:
        if not self.layers:
            return f"{self.model}: no feed-forward layer with names that twell knows (twell.hf.kinds)"
        head = ["layer", "activation", "D", "H", "fire", "at most", "never", "reads less"]
        rows = [head, *(_row(layer) for layer in self.layers)]
        sizes = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = [
            "  ".join(c.ljust(n) if i < 2 else c.rjust(n) for i, (c, n) in enumerate(zip(row, sizes)))
            for row in rows
        ]
        share = self.in_layers / max(self.parameters, 1)
        title = (
            f"{self.model}: {len(self.layers)} feed-forward layers, {share:.0%} of the parameters"
        )
        return "\n".join([title, *lines, *_notes(self.layers)])


def _row(layer: LayerReport) -> list[str]:
    seen = layer.tokens > 0
    return [
        layer.name,
        layer.activation,
        str(layer.width),
        str(layer.neurons),
        f"{layer.share:.1%}" if seen else "-",
        str(layer.nnz_max) if seen else "-",
        f"{layer.never:.1%}" if seen else "-",
        "-" if layer.gain is None else f"{layer.gain:.2f}x",
    ]


def _notes(layers: list[LayerReport]) -> list[str]:
    """One line for each kind of layer and reason."""
    notes: dict[tuple[str, str], int] = {}
    for layer in layers:
        # Without the layer's own name, which differs.
        why = layer.why.replace(layer.name, "").lstrip(".: ")
        notes[layer.module, why] = notes.get((layer.module, why), 0) + 1
    lines = [
        f"{count} {module}: {'taken' if not why else 'not taken: ' + why}"
        for (module, why), count in notes.items()
    ]
    if any(layer.tokens and layer.gain is None for layer in layers):
        lines.append(
            "Where every neuron fires there is nothing to gain. Training with ReLU in place of the "
            "activation, and an L1 term (twell.set_l1, twell.hf.SparsityCallback), gets there."
        )
    return lines


def report(model: nn.Module, sample: Any = None) -> Report:
    """Says for every feed-forward layer of a model, of whatever activation, how many neurons fire for a
    token of the ``sample``, how much less the layer would read of its weights, and why :func:`sparsify`
    would not take it, if so. It changes nothing. ``print(report(…))`` shows a table, ``to_dict()`` is for
    JSON. ``twell stats`` counts the same on the command line.

    The model is called once with ``sample``, in evaluation mode: a tensor, a tuple of arguments, or named
    ones, such as a tokenizer's result. Without it, nothing is counted. Codes of compressed-tensors become
    numbers meanwhile, which takes memory.

    A layer with a gate reads (1 + 2·share) / 3 of its weights, one without a gate (1 + share) / 2. A screen
    may leave less. This bounds the speedup of a call of one token; `twell bench` measures it.
    """
    found: list[_Found] = []
    verdicts: list[Verdict] = []
    with as_it_was(model):  # activations are tried
        for verdict in judge(model):
            found.append(_found(verdict))
            verdicts.append(verdict._replace(site=None))  # whose layer may have copies of weights
    refused = refusal(verdicts)
    counts = [_Counted() for _ in found]
    hooks = [each.watch(seen) for each, seen in zip(found, counts)]
    try:
        if sample is not None and found:
            run_sample("report", model, sample)
    finally:
        for hook in hooks:
            hook.remove()
    judged = zip(found, counts, verdicts)
    layers = [each.result(seen, verdict, refused) for each, seen, verdict in judged]
    own = {id(p): p.numel() for each in found for p in each.parameters}
    total = {id(p): p.numel() for p in [*model.parameters(), *model.buffers()]}
    return Report(type(model).__name__, layers, sum(total.values()), sum(own.values()))


class _Counted:
    def __init__(self) -> None:
        self.tokens = self.nnz = self.most = 0
        self.neurons: Tensor | None = None

    def see(self, h: Tensor, part: int = 0, parts: int = 1) -> None:
        """``part`` of so many that have neurons of their own."""
        rows = torch.cat(h.unbind()) if h.is_nested else h.detach().reshape(-1, h.shape[-1])
        fired = rows != 0
        if len(fired) == 0:
            return
        each = fired.sum(-1)
        self.tokens += len(fired)
        self.nnz += int(each.sum())
        self.most = max(self.most, int(each.max()))
        if self.neurons is None:
            self.neurons = torch.zeros(parts, rows.shape[-1], dtype=torch.int64, device=h.device)
        self.neurons[part] += fired.sum(0)


@dataclass
class _Found:
    gated: bool
    sizes: tuple[int, int]
    parameters: list[Tensor]
    watch: Callable[[_Counted], Any]
    activation: str

    def result(self, seen: _Counted, verdict: Verdict, refused: ValueError | None) -> LayerReport:
        (width, neurons), tokens = self.sizes, max(seen.tokens, 1)
        share = seen.nnz / tokens / neurons
        gain = (3 / (1 + 2 * share)) if self.gated else 2 / (1 + share)
        never = 0.0 if seen.neurons is None else float((seen.neurons == 0).double().mean())
        why = "" if verdict.why is None else str(verdict.why)
        if verdict.is_taken and refused is not None:
            why = f"sparsify takes all layers or none, and refuses {refused}"
        return LayerReport(
            verdict.names[0], type(verdict.module).__name__, self.activation, self.gated, width, neurons,
            seen.tokens, seen.nnz / tokens, seen.most, never,
            gain if seen.tokens and share < 0.999 else None, not why, why,
        )  # fmt: skip


def _found(verdict: Verdict) -> _Found:
    module, kind = verdict.module, verdict.kind
    if isinstance(module, SparseFfn):
        return _of_layer(module)
    assert kind is not None
    return _of_experts(module, kind) if kind.stacked else _of_kind(verdict, module, kind)


def _first(given: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Of the arguments of a call."""
    return (*given, *options.values())[0]


def _sizes(linear: Any) -> tuple[int, int]:
    """Of down: width and neurons."""
    if hasattr(linear, "nf"):
        return linear.nf, linear.nx
    weight = getattr(linear, "weight", None)
    rows = weight.shape[0] if isinstance(weight, Tensor) else 0
    columns = weight.shape[1] if isinstance(weight, Tensor) and weight.dim() > 1 else 1
    return getattr(linear, "out_features", rows), getattr(linear, "in_features", columns)


def _called(act: object) -> str:
    if act is None:
        return "in its code"
    name = getattr(act, "__name__", type(act).__name__)
    return name if isinstance(act, nn.Module) or hasattr(act, "__name__") else "?"


def _of_kind(verdict: Verdict, module: nn.Module, kind: Kind) -> _Found:
    called = _called(kind.act_of(module))
    if kind.in_code and verdict.site is not None:
        called = verdict.site.layer.activation
    linears = kind.weights(module)
    down = linears[-1]

    def watch(seen: _Counted) -> Any:
        def hook(_: nn.Module, given: tuple[Any, ...], options: dict[str, Any]) -> None:
            seen.see(_first(given, options))

        return down.register_forward_pre_hook(hook, with_kwargs=True)

    parameters = [p for linear in linears for p in linear.parameters()]
    return _Found(kind.gated, _sizes(down), parameters, watch, called)


def _of_layer(layer: SparseFfn) -> _Found:
    def watch(seen: _Counted) -> Any:
        def hook(module: nn.Module, given: tuple[Any, ...], options: dict[str, Any], _: Any) -> None:
            gate, up, down = layer._unpack() if layer.frozen else layer._weights()
            x = _first(given, options).detach().reshape(-1, layer.width).to(gate.dtype)
            seen.see(dense.ffn(x, gate, up, down.t(), layer._form())[1])

        return layer.register_forward_hook(hook, with_kwargs=True)

    tensors: list[Tensor] = [*layer.buffers(), *layer.part_parameters().values()]
    sizes = (layer.width, layer.neurons)
    return _Found(layer.gated, sizes, tensors, watch, layer.activation)


def _of_experts(module: Any, kind: Kind) -> _Found:
    into, down = kind.weights(module)
    act = kind.act_of(module)
    called = inspect.signature(module.forward)

    def count(seen: _Counted, x: Tensor, chosen: Tensor) -> None:
        for expert in range(len(into)):
            rows = x[(chosen == expert).any(-1)]
            v = rows @ into[expert].t()
            g, *u = v.chunk(2, dim=-1) if kind.gated else (v,)
            h = act(g)
            seen.see(h * u[0] if u else h, expert, len(into))

    def watch(seen: _Counted) -> Any:
        def hook(_: nn.Module, given: tuple[Any, ...], options: dict[str, Any]) -> None:
            count(seen, *list(called.bind(*given, **options).arguments.values())[:2])

        return module.register_forward_pre_hook(hook, with_kwargs=True)

    return _Found(kind.gated, tuple(down.shape[1:]), list(module.parameters()), watch, _called(act))
