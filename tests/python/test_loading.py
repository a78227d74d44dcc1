"""State that comes into a frozen layer: as into nn.Linear, or refused with the layer as it was."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import twell
from layers import let_screens_pay, make_layer
from torch import Tensor, nn
from twell import _frozen

OTHER = {torch.float32: torch.bfloat16, torch.bfloat16: torch.float32}


@pytest.fixture(params=[0.0, 1.0], ids=["packed", "screened"], autouse=True)
def limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    let_screens_pay(monkeypatch, request.param)
    return request.param


def weights(dtype: torch.dtype, seed: int = 0) -> dict[str, Tensor]:
    layer = make_layer(24, 60, dtype, density=0.3, seed=seed)
    tensors = (layer.gate, layer.up, layer.down.t().contiguous())
    return {f"{name}.weight": t for name, t in zip(twell.GatedFfn.NAMES, tensors)}


def inputs(dtype: torch.dtype) -> Tensor:
    return make_layer(24, 60, dtype, density=0.3).inputs(40)


def unfrozen(state: dict[str, Tensor]) -> twell.GatedFfn:
    return twell.GatedFfn.from_dense(*(t.clone() for t in state.values()))


def frozen(state: dict[str, Tensor]) -> twell.GatedFfn:
    dtype = next(iter(state.values())).dtype
    return unfrozen(state).freeze(inputs(dtype))


def held(module: nn.Module) -> list[Tensor]:
    return [b for name, b in module.named_buffers() if name != "own"]


def assert_same(module: twell.GatedFfn, twin: twell.GatedFfn) -> None:
    """In dtype, form and every bit, of what it holds and what it computes."""
    assert module.frozen and twin.frozen and module.screened == twin.screened
    assert [b.dtype for b in held(module)] == [b.dtype for b in held(twin)]
    x = inputs(twin._dtype)
    with torch.no_grad():
        assert torch.equal(module(x), twin(x))
    mine, other = module.state_dict(), twin.state_dict()
    assert all(torch.equal(mine[key], other[key]) for key in weights(torch.float32))


# --- load_state_dict ------------------------------------------------------------------------------


@pytest.mark.parametrize("assign", [False, True])
def test_of_another_dtype(assign: bool, dtype: torch.dtype) -> None:
    given = weights(OTHER[dtype], seed=1)
    module, plain = frozen(weights(dtype)), unfrozen(weights(dtype))
    memory = [b.data_ptr() for b in held(module)]
    for each in (module, plain):
        each.load_state_dict(given, assign=assign)
    twin = plain.freeze(inputs(plain.gate_proj.weight.dtype))
    if module.screened:  # its screen is in the direction of its own sample
        twin = unfrozen(twin.state_dict()).freeze(findings=module._findings)
    assert_same(module, twin)
    assert module._dtype == (OTHER[dtype] if assign else dtype)
    # A recorded graph reads the same memory; assign= brings its own, as to nn.Linear.
    assert assign or [b.data_ptr() for b in held(module)] == memory


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("names", [["up_proj"], ["gate_proj", "down_proj"], []])
def test_in_part(names: list[str], assign: bool, dtype: torch.dtype) -> None:
    given = {k: v for k, v in weights(dtype, seed=1).items() if k.split(".")[0] in names}
    module, plain = frozen(weights(dtype)), unfrozen(weights(dtype))
    missing = [each.load_state_dict(given, strict=False, assign=assign) for each in (module, plain)]
    assert missing[0] == missing[1] and len(missing[0].missing_keys) == 3 - len(names)
    assert_same(module, plain.freeze(findings=module._findings))


@pytest.mark.parametrize("assign", [False, True])
def test_of_a_wrong_shape(assign: bool, dtype: torch.dtype) -> None:
    given = {**weights(dtype, seed=1), "up_proj.weight": torch.zeros(3, 4)}
    module, plain = frozen(weights(dtype)), unfrozen(weights(dtype))
    said = []
    for each in (module, plain):
        with pytest.raises(RuntimeError) as error:
            each.load_state_dict(given, assign=assign)
        said.append(str(error.value))
    assert said[0] == said[1] and said[0].count("size mismatch") == 1
    assert_same(module, plain.freeze(findings=module._findings))


MIXED = {
    **weights(torch.float32, seed=1),
    "gate_proj.weight": weights(torch.bfloat16)["gate_proj.weight"],
}
UNUSABLE = {
    "of two dtypes": (
        MIXED,
        "expected weights of one dtype on one device, got torch.bfloat16 on cpu and",
    ),
    "of float16": (
        {k: v.half() for k, v in MIXED.items()},
        "expected weights of bfloat16 or float32 on a CPU.*got torch.float16 on cpu",
    ),
    "of float64": ({k: v.double() for k, v in MIXED.items()}, "got torch.float64 on cpu"),
    "on two devices": (
        {**weights(torch.float32), "up_proj.weight": torch.empty(60, 24, device="meta")},
        "one device, got torch.float32 on cpu and torch.float32 on meta",
    ),
}


@pytest.mark.parametrize(("given", "message"), UNUSABLE.values(), ids=UNUSABLE.keys())
def test_what_it_cannot_be_frozen_with_is_refused(
    given: dict[str, Tensor], message: str, dtype: torch.dtype
) -> None:
    model = nn.ModuleDict({"mlp": frozen(weights(dtype))})
    before = held(model)
    state = {f"mlp.{name}": tensor for name, tensor in given.items()}
    with pytest.raises(RuntimeError, match=f"mlp is frozen and stays as it was: .*{message}"):
        model.load_state_dict(state, assign=True)
    assert all(a is b for a, b in zip(held(model), before, strict=True))
    assert_same(model["mlp"], frozen(weights(dtype)))


class Stop(BaseException):
    pass


def stop(*_: Any, **__: Any) -> None:
    raise Stop


def stop_in_hook(module: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    module.register_load_state_dict_pre_hook(stop)


def stop_in_a_child(module: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    load = nn.Linear._load_from_state_dict

    def second(self: nn.Linear, *arguments: Any) -> None:
        seen.append(self)
        load(self, *arguments) if len(seen) < 2 else stop()

    monkeypatch.setattr(nn.Linear, "_load_from_state_dict", second)


def stop_in_packing(module: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_frozen, "held_of", stop)


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("where", [stop_in_hook, stop_in_a_child, stop_in_packing])
def test_interrupted(where: Callable[..., None], assign: bool) -> None:
    module, twin = frozen(weights(torch.float32)), frozen(weights(torch.float32))
    with pytest.MonkeyPatch.context() as patch:
        where(module, patch)
        with pytest.raises(Stop):
            module.load_state_dict(weights(torch.float32, seed=1), assign=assign)
    assert_same(module, twin)


# --- Conversions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("call", range(1, 5))
def test_a_conversion_that_fails_half_way(call: int) -> None:
    module, twin = frozen(weights(torch.float32)), frozen(weights(torch.float32))
    before, seen = held(module), []

    def convert(tensor: Tensor) -> Tensor:
        seen.append(tensor)
        if len(seen) == call:
            raise Stop
        return tensor.bfloat16()

    with pytest.raises(Stop):
        module._apply(convert)
    assert all(a is b for a, b in zip(held(module), before, strict=True))
    assert_same(module, twin)


def test_a_freeze_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for make in (frozen, unfrozen):
        module = make(weights(torch.float32))
        before = [*module.buffers(), *module.parameters()]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_frozen, "held_of", stop)
            with pytest.raises(Stop):
                module.freeze(inputs(torch.float32))
        assert all(a is b for a, b in zip([*module.buffers(), *module.parameters()], before))
        assert module.frozen == (make is frozen)
    for dtype in (torch.float16, torch.float64):
        module = unfrozen(weights(torch.float32)).to(dtype)
        for sample in (None, torch.zeros(32, 24, dtype=dtype)):
            with pytest.raises(
                ValueError, match=f"expected weights of bfloat16 .* got {dtype} on cpu"
            ):
                module.freeze(sample)
        assert not module.frozen and len(list(module.parameters())) == 3


@pytest.mark.parametrize("way", ["to_empty", "assign"])
def test_through_the_meta_device(way: str, dtype: torch.dtype) -> None:
    module, twin = frozen(weights(dtype)), frozen(weights(dtype))
    module.to("meta")
    assert module.frozen and all(b.is_meta for b in held(module))
    assert module(inputs(dtype).to("meta")).is_meta
    with pytest.raises(NotImplementedError, match="to_empty"):
        module.to("cpu")
    if way == "to_empty":
        module.to_empty(device="cpu").load_state_dict(weights(dtype))
    else:
        module.load_state_dict(weights(dtype), assign=True)
    assert_same(module, twin)


def test_shared_memory() -> None:
    module = frozen(weights(torch.float32))
    assert not any(b.is_shared() for b in held(module))
    nn.Sequential(module).share_memory()
    assert all(b.is_shared() for b in held(module))
    assert_same(module, frozen(weights(torch.float32)))


# --- Copies ---------------------------------------------------------------------------------------


def through_torch(module: nn.Module, **options: Any) -> nn.Module:
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False, **options)


COPIES = {
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "torch.save": through_torch,
}


@pytest.mark.parametrize("make", COPIES.values(), ids=COPIES.keys())
def test_copies(make: Callable[[nn.Module], nn.Module], dtype: torch.dtype) -> None:
    module = frozen(weights(dtype))
    module.register_buffer("own", torch.ones(3))
    twin = make(module)
    assert_same(twin, module)
    assert twin.own.tolist() == [1, 1, 1]
    twin.load_state_dict({**weights(dtype, seed=1), "own": torch.zeros(3)})
    assert_same(twin, unfrozen(weights(dtype, seed=1)).freeze(findings=module._findings))
    assert_same(make(unfrozen(weights(dtype))).freeze(inputs(dtype)), frozen(weights(dtype)))


def test_loaded_elsewhere_a_pickled_layer_is_packed_for_there(dtype: torch.dtype) -> None:
    """A file has the checkpoint's layout, since packed weights and screens are of their device."""
    module = frozen(weights(dtype))
    state = module.__getstate__()
    for tensor, want in zip(state["_weights"], weights(dtype).values(), strict=True):
        assert torch.equal(tensor, want)
    assert not set(state["_buffers"]) & {"gate", "up", "down", "screen", "order"}
    elsewhere = through_torch(module, map_location="meta")
    # As one that was moved there.
    moved = copy.deepcopy(module).to("meta")
    assert elsewhere.frozen and not elsewhere.screened
    assert [b.shape for b in held(elsewhere)] == [b.shape for b in held(moved)]
    elsewhere.load_state_dict(weights(dtype), assign=True)
    assert_same(elsewhere, module if not module.screened else unfrozen(weights(dtype)).freeze())


# --- Inference mode -------------------------------------------------------------------------------


AFTERWARDS: dict[str, Callable[[twell.GatedFfn], object]] = {
    "thaw": lambda m: m.thaw().freeze(inputs(torch.float32)),
    "load": lambda m: m.load_state_dict(weights(torch.float32)),
    "convert": lambda m: m.to(torch.float32),
    "deepcopy": copy.deepcopy,
    "freeze anew": lambda m: m.freeze(inputs(torch.float32)),
}


@pytest.mark.parametrize("change", AFTERWARDS.values(), ids=AFTERWARDS.keys())
def test_frozen_in_inference_mode(change: Callable[[twell.GatedFfn], object]) -> None:
    with torch.inference_mode():
        module = frozen(weights(torch.float32))
    twin = change(module)
    for each in (module, twin):
        if isinstance(each, nn.Module):
            assert_same(each, frozen(weights(torch.float32)))
    thawed = module.thaw().requires_grad_()
    thawed(inputs(torch.float32)).sum().backward()
    assert all(p.grad.any() for p in thawed.parameters())
