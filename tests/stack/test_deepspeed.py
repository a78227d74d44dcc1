"""DeepSpeed's ZeRO on two processes gives the step of one, with weights whole and in shards."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import twell
from layers import in_two_processes
from test_distributed import inputs, loss_of, model, share
from torch import Tensor

RATE = 0.5
# name: ZeRO's stage, whether the sparse layers gather their weights as a whole, whether they should
# then be sparse.
CASES = {
    "ZeRO-2": (2, False, True),
    "ZeRO-3": (3, False, False),
    "ZeRO-3, leaf modules": (3, True, True),
}


def step_of_one() -> dict[str, Tensor]:
    alone = model(twell.GatedFfn)
    loss_of(alone, inputs()).backward()
    with torch.no_grad():
        return {name: p - RATE * p.grad for name, p in alone.named_parameters()}


def step_of_two(stage: int, leaves: bool) -> tuple[dict[str, Tensor], bool]:
    """The parameters after a step, and whether the layers were sparse."""
    import deepspeed
    from deepspeed.utils import set_z3_leaf_modules

    module = model(twell.GatedFfn)
    if leaves:
        set_z3_leaf_modules(module, [twell.GatedFfn])
    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=RATE),
        config={
            "train_batch_size": 2,
            "gradient_clipping": 0.0,  # DeepSpeed's default is 1
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
            "zero_allow_untested_optimizer": True,
        },
    )
    with torch.autograd.profiler.profile() as events:
        loss = loss_of(engine, share())
    engine.backward(loss)
    engine.step()
    parameters = {}
    for name, parameter in module.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter], enabled=stage == 3):
            parameters[name] = parameter.detach().clone()
    sparse = any(event.name == "twell::ffn_train" for event in events.function_events)
    engine.destroy()
    return parameters, sparse


def compare(stage: int, leaves: bool, expect_sparse: bool) -> None:
    got, sparse = step_of_two(stage, leaves)
    assert sparse == expect_sparse, f"sparse: {sparse}"
    want = step_of_one()
    assert list(got) == list(want)
    for name, value in want.items():
        # As test_distributed's: sums of 600 tokens in another order.
        torch.testing.assert_close(got[name], value, rtol=1e-4, atol=1e-6)


def worker(folder: str) -> None:
    import deepspeed

    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=int(os.environ["RANK"]), world_size=2
    )
    deepspeed.init_distributed("gloo")
    wrong = {}
    for name, case in CASES.items():
        try:
            compare(*case)
            wrong[name] = ""
        except Exception:
            wrong[name] = traceback.format_exc()
    Path(folder, f"{os.environ['RANK']}.json").write_text(json.dumps(wrong))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
    folder = tmp_path_factory.mktemp("deepspeed")
    return in_two_processes(__file__, folder, DS_ACCELERATOR="cpu")


@pytest.mark.parametrize("case", CASES)
def test_the_step_of_one_process(case: str, outcomes: list[dict[str, str]]) -> None:
    for rank, wrong in enumerate(outcomes):
        assert not wrong[case], f"process {rank}: {wrong[case]}"


if __name__ == "__main__":
    worker(sys.argv[1])
