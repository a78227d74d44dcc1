"""torch.library.opcheck on every operator: schema, fake tensors, autograd, AOT dispatch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import twell
from layers import make_layer
from torch.library import opcheck

OPERATORS = (
    "pack_weight",
    "unpack_weight",
    "ffn",
    "ffn_stats",
    "gemm_relu_twell",
    "twell_gated_ffn",
    "twell_spmm",
    "dense_to_twell",
    "twell_to_dense",
    "linear",
    "linear_as_stored",
    "round_inputs",
    "screen_weight",
    "screen_limit",
    "examine_layer",
    "run_layer",
    "layer_gradient",
    "cpu_tier_available",
)


def samples(name: str, dtype: torch.dtype, gradients: bool) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for width, neurons, rows in ((20, 33, 5), (32, 16, 1), (7, 40, 0)):
        layer = make_layer(width, neurons, dtype, density=0.5)
        x, packed = layer.inputs(rows), twell.ops.pack_weight(layer.gate)
        screen = twell.ops.screen_weight(layer.gate)
        triple = twell.ops.gemm_relu_twell(x, packed, tile=16, capacity=4)
        gate, up, down = layer.gate, layer.up, layer.down
        stored = [gate, up, down.t().contiguous()]
        block = torch.ops.twell.make_block(stored, "fat_relu threshold=0.1", dtype, [])
        number = torch.zeros(1, dtype=torch.int64)
        vectors = [layer.gate[:, 0].clone(), layer.up[:, 0].clone(), layer.down[0].clone()]
        vectors.append(1 + layer.gate[:, 1])
        if gradients:
            for leaf in (x, packed, gate, up, down, *vectors):
                leaf.requires_grad_()
        form = "fat_relu threshold=0.1 up=relu norm=0.1"
        found += {
            "pack_weight": [(gate,)],
            "unpack_weight": [(packed,)],
            "linear": [(x, packed), (x[None], packed, gate[:, 0].contiguous())],
            "linear_as_stored": [(x, gate), (x[None], gate), (x, gate, True)],
            "round_inputs": [(x,), (x[None],)],
            "ffn": [
                (x, [packed, up, down]),
                (x[None], [packed, None, down], None, "relu_squared"),
                (x[None], [gate, up, down], screen),
                (x, [packed, up, down, *vectors], None, form),
                (x, [packed, None, down, vectors[0]]),
            ],
            "ffn_stats": [
                (x, [packed, up, down], None, "fat_relu threshold=0.1"),
                (x, [gate, None, down], screen, "fat_relu threshold=0.1"),
                (x, [gate, up, down, *vectors], screen, form),
            ],
            "gemm_relu_twell": [(x, packed), (x, packed, "relu", 0.0, 16, 2)],
            "twell_gated_ffn": [(x, *triple, up, down)],
            "twell_spmm": [(*triple, down)],
            "dense_to_twell": [(gate,), (gate, 16, 3)],
            "screen_weight": [(gate,), (gate, gate[0].float())],
            "screen_limit": [()],
            "examine_layer": [(layer.inputs(40), [gate, up, down.t().contiguous()], "relu")],
            "run_layer": [(x, block, number, width), (x[None], block, number, width)],
            "layer_gradient": [(x, x, block)],
            "cpu_tier_available": [("avx2",)],
            "twell_to_dense": [(*triple, neurons, dtype)],
        }[name]
    return found


def test_all_are_listed() -> None:
    registered = {
        name.removeprefix("twell::")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("twell::")
    }
    # Those of training are in test_train.py: they return lists with room that nothing is written to,
    # which opcheck would compare.
    training = {"ffn_train", "ffn_train_backward", "ffn_train_backward_add"}
    # Of blocks, whose size fake tensors do not know, and of what a process keeps of them: tested in
    # test_block.py.
    blocks = {"make_block", "unpack_block", "form_of_block", "has_screen"}
    blocks |= {"open_layer", "close_layer", "describe_layer"}
    # opcheck cannot compare texts, and some ask a GPU (cuda/tests/test_torch_cuda.py).
    others = {"cpu_tier", "processor_name", "choose_hot", "choose_training", "screen_pays"}
    assert registered == set(OPERATORS) | training | blocks | others


@pytest.mark.parametrize("name", OPERATORS)
def test_opcheck(name: str, dtype: torch.dtype) -> None:
    for arguments in samples(name, dtype, gradients=False):
        opcheck(getattr(torch.ops.twell, name).default, arguments)


@pytest.mark.parametrize("name", OPERATORS[:4])
def test_opcheck_with_gradients(name: str) -> None:
    for arguments in samples(name, torch.float32, gradients=True):
        opcheck(getattr(torch.ops.twell, name).default, arguments)
