"""Two processes give the gradients of one: DDP, FSDP2 and accelerate, by Gloo."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import twell
from layers import in_two_processes, make_layer
from torch import Tensor, nn

KINDS = {"gated": twell.GatedFfn, "plain": twell.Ffn}


class Block(nn.Module):
    """What stands around a layer in a model."""

    def __init__(self, kind: type[nn.Module], seed: int) -> None:
        super().__init__()
        layer = make_layer(40, 100, density=0.2, seed=seed)
        weights = [layer.gate, layer.up, layer.down.t().contiguous()]
        self.proj = nn.Linear(40, 40, bias=False)
        with torch.no_grad():
            self.proj.weight.copy_(torch.eye(40) + 0.01 * layer.gate[:40])
        self.mlp = kind.from_dense(*weights[3 - len(kind.NAMES) :]).requires_grad_()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.proj(x))


def model(kind: type[nn.Module]) -> nn.Module:
    out = nn.Sequential(Block(kind, 1), Block(kind, 2))
    twell.set_l1(out, 0.3)
    return out


def loss_of(module: nn.Module, x: Tensor) -> Tensor:
    return module(x).square().mean()


def inputs() -> Tensor:
    return make_layer(40, 100, density=0.2, seed=1).inputs(600)


def share() -> Tensor:
    return inputs().chunk(dist.get_world_size())[dist.get_rank()]


def gradients(module: nn.Module) -> dict[str, Tensor]:
    def whole(t: Tensor) -> Tensor:
        return t.full_tensor() if hasattr(t, "full_tensor") else t

    # "module." is DDP's.
    return {n.removeprefix("module."): whole(p.grad) for n, p in module.named_parameters()}


def ddp(kind: type[nn.Module]) -> dict[str, Tensor]:
    wrapped = nn.parallel.DistributedDataParallel(model(kind))
    loss_of(wrapped, share()).backward()
    return gradients(wrapped)


def ddp_accumulated(kind: type[nn.Module]) -> dict[str, Tensor]:
    wrapped = nn.parallel.DistributedDataParallel(model(kind))
    twell.set_l1(wrapped, 0.3, accumulation=4)
    parts = share().chunk(4)
    for part in parts[:-1]:
        with wrapped.no_sync():
            (loss_of(wrapped, part) / 4).backward()
    (loss_of(wrapped, parts[-1]) / 4).backward()
    return gradients(wrapped)


def ddp_uneven(kind: type[nn.Module]) -> dict[str, Tensor]:
    wrapped = nn.parallel.DistributedDataParallel(model(kind))
    loss_of(wrapped, uneven_shares()[dist.get_rank()]).backward()
    return gradients(wrapped)


def uneven_shares() -> tuple[Tensor, ...]:
    return inputs().split((450, 150))


def fsdp(units: Callable[[nn.Module], list[nn.Module]]) -> Callable[..., dict[str, Tensor]]:
    def run(kind: type[nn.Module]) -> dict[str, Tensor]:
        from torch.distributed.fsdp import fully_shard

        module = model(kind)
        for unit in [u for block in module for u in units(block)]:
            fully_shard(unit)
        fully_shard(module)
        loss_of(module, share()).backward()
        return gradients(module)

    return run


def accelerated(kind: type[nn.Module]) -> dict[str, Tensor]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    wrapped = accelerator.prepare(model(kind))
    twell.set_l1(wrapped, 0.3, accumulation=2)
    for part in share().chunk(2):
        with accelerator.accumulate(wrapped):
            accelerator.backward(loss_of(wrapped, part))
    return gradients(wrapped)


CASES = {
    "DDP": ddp,
    "DDP, four passes": ddp_accumulated,
    "DDP, uneven": ddp_uneven,
    "FSDP2, the model": fsdp(lambda block: []),
    "FSDP2, blocks": fsdp(lambda block: [block]),
    "FSDP2, layers": fsdp(lambda block: [block.mlp]),
    # Their own hooks gather them, so that they are called, and the layer is dense.
    "FSDP2, linear layers": fsdp(lambda block: list(block.mlp.children())),
    "accelerate": accelerated,
}


def worker(folder: str) -> None:
    """All cases, one after the other; what was wrong with each goes into a file of this process."""
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    wrong = {}
    for name, run in CASES.items():
        for gated, kind in KINDS.items():
            try:
                compare(run(kind), wanted(kind, uneven_shares() if run is ddp_uneven else (inputs(),)))
                wrong[f"{name}, {gated}"] = ""
            except Exception:
                wrong[f"{name}, {gated}"] = traceback.format_exc()
    for name, are_the_same in {"counts": counts, "thresholds": thresholds, "folded": folded}.items():
        for gated, kind in KINDS.items():
            try:
                said = "" if are_the_same(kind) else "not what one process has"
            except Exception:
                said = traceback.format_exc()
            wrong[f"{name}, {gated}"] = said
    dist.barrier()
    Path(folder, f"{rank}.json").write_text(json.dumps(wrong))
    dist.destroy_process_group()


def counts(kind: type[nn.Module]) -> bool:
    """Whether a layer that one process alone calls, as an expert may be, is counted in both."""
    from twell.hf.callback import _over_processes

    module = model(kind)
    twell.collect_metrics(module)
    called, idle = module[0].mlp, module[1].mlp
    if dist.get_rank() == 1:
        called(share()).sum().backward()
    found, nothing = _over_processes(called), _over_processes(idle)
    alone = model(kind)[0].mlp
    twell.collect_metrics(alone)
    alone(inputs().chunk(2)[1])
    return all(map(torch.equal, found, alone.activity)) and nothing is None


def thresholds(kind: type[nn.Module]) -> bool:
    """Whether both processes, of unlike inputs, set the same thresholds, by the inputs of both."""
    callback = twell.hf.ThresholdCallback(0.1, steps=4)
    module, state = model(kind), SimpleNamespace(global_step=0)
    state.stateful_callbacks = None
    given = (None, state, None)
    callback.on_train_begin(*given, model=module)
    callback.on_step_begin(*given, model=module)
    module(share())
    state.global_step = 1
    callback.on_step_end(*given, model=module)
    mine = torch.tensor(list(callback.thresholds.values()), dtype=torch.float64)
    theirs = mine.clone()
    dist.broadcast(theirs, 0)
    return torch.equal(mine, theirs) and len(mine) == 2 and bool((mine > 0).any())


def folded(kind: type[nn.Module]) -> bool:
    """Whether a model whose weights lie in shards computes the same after its thresholds are folded, also
    where gate and up are the halves of one weight."""
    from torch.distributed.fsdp import fully_shard

    module: Any = model(kind)
    for i, block in enumerate(module):
        if kind is twell.GatedFfn:
            linear = nn.Linear(40, 200, bias=False)
            linear.weight = nn.Parameter(torch.cat([block.mlp.gate_proj.weight, block.mlp.up_proj.weight]))
            parts = {"gate_up_proj": linear, "down_proj": block.mlp.down_proj}
            block.mlp = twell.GatedFfn._of_parts(parts, fused=True)
        block.mlp.activation, block.mlp.threshold = "fat_relu", 0.05 * (i + 1)
        fully_shard(block)
    twell.set_l1(module, 0)
    before = [p.full_tensor().clone() for p in module.parameters()]  # a call gathers them
    want = module(inputs())
    twell.hf.fold_thresholds(module)
    changed = sum(not torch.equal(p.full_tensor(), b) for p, b in zip(module.parameters(), before))
    return changed > 0 and torch.allclose(module(inputs()), want, rtol=1e-4, atol=1e-5)


def wanted(kind: type[nn.Module], shares: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """The mean over the shares of what one process computes: each weighs the same."""
    alone = model(kind)
    twell.set_l1(alone, 0.3, accumulation=len(shares))
    for part in shares:
        (loss_of(alone, part) / len(shares)).backward()
    return gradients(alone)


def compare(got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    assert list(got) == list(want)
    for key, value in want.items():
        torch.testing.assert_close(got[key], value, rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    if not dist.is_gloo_available():
        pytest.skip("PyTorch has no Gloo here")
    folder = tmp_path_factory.mktemp("distributed")
    return in_two_processes(__file__, folder)


@pytest.mark.parametrize("gated", KINDS)
@pytest.mark.parametrize("name", [*CASES, "counts", "thresholds", "folded"])
def test_two_processes(name: str, gated: str, outcomes: list[dict[str, str]]) -> None:
    if name == "accelerate":
        pytest.importorskip("accelerate")
    if name in ("counts", "thresholds", "folded"):
        pytest.importorskip("transformers")
    for outcome in outcomes:
        assert not outcome[f"{name}, {gated}"], outcome[f"{name}, {gated}"]


if __name__ == "__main__":
    worker(*sys.argv[1:])
