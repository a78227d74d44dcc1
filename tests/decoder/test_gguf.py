"""Logits of GGUF files as they are, against `transformers` on the same numbers: with inputs of linear
layers as they are, and rounded as twell/ggml.h says.

Of the latter, both sides round the same inputs, up to the order of f32 sums before them, and then agree as f32
does. Where that order moves an input over the middle between two integers, the next integer is 1/127
of the block's largest input away, and the rest of the sequence differs by about a hundredth, as it
does without any rounding. That befell one token in a hundred, so one sequence of six in 17: that it
befalls more than half of eight is as likely as one in 20,000.
"""

import os
import subprocess

import numpy
import pytest
from gguf_models import (
    HEADS,
    KEY_HEADS,
    LAYERS,
    NEURONS,
    WIDTH,
    as_in_transformers,
    unit_blocks,
    write_model,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

VOCABULARY, LENGTH, SEQUENCES = 64, 6, 8
SHAPE = dict(hidden_size=WIDTH, intermediate_size=NEURONS, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
             num_key_value_heads=KEY_HEADS, vocab_size=VOCABULARY, rope_theta=1e5, rms_norm_eps=1e-5,
             max_position_embeddings=128)  # fmt: skip
CLASSES = {"llama": "Llama", "qwen2": "Qwen2", "arcee": "Arcee"}
BLOCK = {"Q4_0": 32, "Q5_0": 32, "Q8_0": 32, "Q4_K": 256, "Q5_K": 256, "Q6_K": 256}


def rounded(x, block):
    """To multiples of 1/127 of the largest of each block; ties to even."""
    blocks = x.float().unflatten(-1, (-1, block))
    largest = blocks.abs().amax(-1, keepdim=True)
    inverse = 127 / largest
    unit = (largest / 127).half().float() if block == 32 else 1 / inverse
    return ((blocks * inverse).round() * unit).nan_to_num(0).flatten(-2)


class RoundedLinear(torch.nn.Module):
    def __init__(self, linear, block):
        super().__init__()
        self.linear, self.block = linear, block

    def forward(self, x):
        bias = self.linear.bias
        y = rounded(x, self.block).double() @ self.linear.weight.double().T
        return (y if bias is None else y + bias.double()).float()


def logits_of_transformers(numbers, architecture, tied, ids, block=None):
    name = CLASSES[architecture]
    config = getattr(transformers, f"{name}Config")(**SHAPE, tie_word_embeddings=tied)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    weights = as_in_transformers(numbers, architecture)
    if tied:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    for parent in list(model.modules()) if block else []:
        for name, child in list(parent.named_children()):
            if isinstance(child, torch.nn.Linear):
                setattr(parent, name, RoundedLinear(child, block))
    with torch.no_grad():
        return model(torch.tensor(ids)).logits.double().numpy()


def errors(got, expected):
    """By sequence, the largest of its tokens'."""
    return numpy.sqrt(((got - expected) ** 2).mean(-1) / (expected**2).mean(-1)).max(-1)


@pytest.mark.parametrize("architecture", CLASSES)
@pytest.mark.parametrize("kind", BLOCK)
def test_logits_are_those_of_transformers(tmp_path, kind, architecture):
    driver = os.environ.get("TWELL_DECODER_DRIVER") or pytest.skip("TWELL_DECODER_DRIVER names no driver")
    tied = kind in ("Q8_0", "Q4_K")
    numbers = write_model(tmp_path / "m.gguf", kind, architecture, tied, VOCABULARY, blocks=unit_blocks)
    ids = numpy.random.default_rng(7).integers(0, VOCABULARY, (SEQUENCES, LENGTH)).tolist()
    paths = ["dense", "sparse", "auto"] if architecture == "arcee" else ["dense", "auto"]
    paths += [f"{path}:exact" for path in paths]
    arguments = [str(part) for sequence in ids for part in ["/", *sequence]][1:]
    done = subprocess.run([driver, tmp_path / "m.gguf", ",".join(paths), *arguments], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    got = numpy.frombuffer(done.stdout, numpy.float32).reshape(len(paths), SEQUENCES, 2, LENGTH, VOCABULARY)
    expected = logits_of_transformers(numbers, architecture, tied, ids, BLOCK[kind])
    exact = logits_of_transformers(numbers, architecture, tied, ids)
    assert errors(exact, expected).min() > 1e-3  # so that the next says something
    for path, of_path in zip(paths, got):
        for way in (0, 1):  # at once, and through the cache
            unrounded = path.endswith("exact")
            found = errors(of_path[:, way], exact if unrounded else expected)
            assert (found < 5e-6).sum() >= SEQUENCES / 2, (path, way, found)
            assert found.max() < (1e-4 if unrounded else 0.2), (path, way, found)
