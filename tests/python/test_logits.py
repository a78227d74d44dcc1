"""Logits in float32 of models in bfloat16 and float16."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import twell
from tiny_models import AMONG_OTHERS, MODULES_OF_THEIR_OWN, Tiny, ids
from torch import Tensor, nn
from torch.nn import functional

pytest.importorskip("transformers")
NARROW = [torch.bfloat16, torch.float16]
LLAMA_LIKE = MODULES_OF_THEIR_OWN["arcee"]


def sums(model: Any, tiny: Tiny) -> tuple[Tensor, Tensor]:
    """The logits in float64 of what the output layer reads, and the sum of their terms' sizes."""
    read: list[Tensor] = []
    hook = model.get_output_embeddings().register_forward_pre_hook(lambda _, x: read.append(x[0]))
    with torch.no_grad():
        tiny.call(model)
    hook.remove()
    weight = model.get_output_embeddings().weight.double()
    return functional.linear(read[0].double(), weight), functional.linear(read[0].double().abs(), weight.abs())


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("tiny", [LLAMA_LIKE, MODULES_OF_THEIR_OWN["t5"], AMONG_OTHERS["opt"]])
def test_no_logit_is_rounded(tiny: Tiny, dtype: torch.dtype) -> None:
    model: Any = tiny.model(dtype)
    plain, names = copy.deepcopy(model), list(model.state_dict())
    assert twell.float_logits(model) is model and twell.float_logits(model) is model
    assert list(model.state_dict()) == names
    with torch.no_grad():
        got, rounded = tiny.call(model), tiny.call(plain)
    exact, sizes = sums(model, tiny)
    assert got.dtype == torch.float32 and rounded.dtype == dtype
    bound = 73 * 2.0**-24 * sizes
    assert ((got.double() - exact).abs() <= bound).all()
    assert not ((rounded.double() - exact).abs() <= bound).all()


@pytest.mark.parametrize("dtype", NARROW)
def test_gradients(dtype: torch.dtype) -> None:
    """Those of the same sums, rounded where the plain layer's are."""
    model: Any = LLAMA_LIKE.model(dtype)
    plain = copy.deepcopy(model)
    twell.float_logits(model)
    exact = copy.deepcopy(plain).double()
    found = []
    for each in (model, plain, exact):
        loss = each(input_ids=ids(), labels=ids()).loss
        loss.backward()
        found.append([p.grad.double() for p in each.parameters()])
    for got, rounded, want in zip(*found):
        assert (got - want).norm() <= 1.5 * (rounded - want).norm() + 2.0**-8 * want.norm()
    for frozen in ("lm_head", "all others"):
        model.zero_grad()
        for name, p in model.named_parameters():
            p.requires_grad_(("lm_head" in name) != (frozen == "lm_head"))
        model(input_ids=ids(), labels=ids()).loss.backward()
        head = model.lm_head.weight.grad
        assert (head is None) if frozen == "lm_head" else torch.equal(head.double(), found[0][-1])


@pytest.mark.parametrize("narrow", [torch.bfloat16])
def test_autocast(narrow: torch.dtype) -> None:
    model: Any = twell.float_logits(LLAMA_LIKE.model())
    with torch.no_grad():
        assert torch.equal(LLAMA_LIKE.call(model), LLAMA_LIKE.call(LLAMA_LIKE.model()))
        with torch.autocast("cpu", narrow):
            got = LLAMA_LIKE.call(model)
    assert got.dtype == torch.float32
    with torch.no_grad(), torch.autocast("cpu", narrow):
        rounded = LLAMA_LIKE.call(LLAMA_LIKE.model())
    torch.testing.assert_close(got.to(narrow), rounded, rtol=2.0**-7, atol=1e-3)
    assert not torch.equal(got, rounded.float())


def test_a_weight_that_the_embedding_shares(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = copy.deepcopy(LLAMA_LIKE.model().config)
    config.tie_word_embeddings = True
    torch.manual_seed(7)
    model = transformers.ArceeForCausalLM(config).eval().bfloat16()
    twell.sparsify(twell.float_logits(model), freeze=False)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    with torch.no_grad():
        want = model(ids()).logits
        for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(again(ids()).logits, want)
        model.save_pretrained(tmp_path)
        plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
        rounded = plain(ids()).logits
    torch.testing.assert_close(want.bfloat16(), rounded, rtol=2.0**-6, atol=1e-2)


def test_compiled_and_exported() -> None:
    model: Any = twell.float_logits(LLAMA_LIKE.model(torch.bfloat16))
    head = model.lm_head
    x = torch.randn(3, 5, head.in_features).bfloat16()
    with torch.no_grad():
        want = head(x)
        assert torch.equal(torch.compile(head, fullgraph=True, backend="aot_eager")(x), want)
        assert torch.equal(torch.export.export(head, (x,)).module()(x), want)


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^float_logits: Linear has no output layer"):
        twell.float_logits(nn.Linear(3, 4))
    model: Any = LLAMA_LIKE.model(torch.bfloat16)
    plain, model.lm_head = model.lm_head, nn.Sequential(model.lm_head)
    with pytest.raises(ValueError, match=r"expected an output layer nn.Linear .*, got torch.*Sequential with"):
        twell.float_logits(model)
    model.lm_head = plain
    plain.forward = plain.forward
    with pytest.raises(ValueError, match="the output layer has another forward; remove that first"):
        twell.float_logits(model)
    assert type(plain) is nn.Linear


def head(dtype: torch.dtype = torch.bfloat16) -> tuple[Any, Tensor]:
    torch.manual_seed(3)
    layer = nn.Linear(40, 90, bias=False, dtype=dtype)
    layer.__class__ = twell.hf.logits.FloatLogits
    return layer, torch.randn(5, 40).to(dtype)


def test_one_row_and_none() -> None:
    layer, x = head()
    for given in (x[0], x[:0]):
        layer.zero_grad()
        y = layer(given.requires_grad_())
        y.sum().backward()
        assert y.dtype == torch.float32 and y.shape == (*given.shape[:-1], 90)
        assert layer.weight.grad.shape == (90, 40)
    assert head()[0].to("meta")(x.to("meta")).dtype == torch.float32


@pytest.mark.parametrize("dtype", NARROW)
def test_transforms(dtype: torch.dtype) -> None:
    layer, x = head(dtype)
    want = layer(x).detach()
    torch.testing.assert_close(torch.vmap(layer)(x), want)
    torch.testing.assert_close(torch.func.jvp(layer, (x,), (x,))[1], want)
    got = torch.func.grad(lambda x: layer(x).sum())(x)
    torch.testing.assert_close(got, layer.weight.sum(0).expand(5, -1).to(dtype), rtol=2.0**-6, atol=2.0**-6)


def test_other_dtypes_are_as_they_were() -> None:
    layer, x = head(torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(x), functional.linear(x, layer.weight))
    layer, x = head()
    with pytest.raises(RuntimeError, match="dtype"):
        layer(x.float())
    layer.weight = nn.Parameter(layer.weight.t().contiguous().t())
    torch.testing.assert_close(layer(x), functional.linear(x.float(), layer.weight.float()))
