"""Random models as GGUF files, in F16, whose neurons fire as often as asked.

    TWELL_LLAMA_CPP=tree python models.py arcee OUT.gguf --fire 0.09 [--width 2560 --inner 18432 --layers 9 ...]

Input 0 of every layer is the same positive number before the norm, and up has a negative weight
there, so that a neuron's sum is a normal number minus a threshold.
"""

import argparse
import os
import pathlib
import statistics
import sys

import numpy as np

sys.path.insert(0, os.environ["TWELL_LLAMA_CPP"] + "/gguf-py")
import gguf

# What input 0 is, in standard deviations of the others.
CONSTANT = 4.0


class Normals:
    """Normal numbers, from anywhere in a pool: to draw all of a large model's would take a minute."""

    def __init__(self, seed: int, largest: int):
        self.rng = np.random.default_rng(seed)
        self.pool = self.rng.standard_normal(largest + (1 << 20), dtype=np.float32)

    def __call__(self, *shape: int, sd: float = 1.0) -> np.ndarray:
        count = int(np.prod(shape))
        start = int(self.rng.integers(len(self.pool) - count))
        return (self.pool[start:start + count] * np.float32(sd)).reshape(shape)


def add_vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    tokens = [b"<unk>", b"<s>", b"</s>"] + [f"<0x{b:02X}>".encode() for b in range(256)]
    kinds = [2, 3, 3] + [6] * 256
    tokens += ["\u2581".encode()] + [bytes([97 + i]) for i in range(26)]
    tokens += [f"\u2581w{i}".encode() for i in range(size - len(tokens))]
    kinds += [1] * (len(tokens) - len(kinds))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(i) for i in range(len(tokens))])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_vocab_size(size)


def write(architecture: str, path: pathlib.Path, *, fire: float, width: int = 512, inner: int = 2048,
          layers: int = 2, vocabulary: int = 512, heads: int = 4, kv_heads: int = 2, weight: float = 1.0,
          seed: int = 1) -> None:
    """`architecture`: arcee, jais2 (with biases), or llama (a gate with SiLU, where nothing is zero).
    `weight`: how much a layer adds to the residual stream."""
    head = 128
    normal = Normals(seed, max(inner, vocabulary, heads * head) * width)
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_name(f"random {architecture}")
    writer.add_context_length(4096)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_layer_norm_eps(1e-5)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(10000.0)
    writer.add_file_type(1)
    add_vocabulary(writer, vocabulary)

    def half(name: str, array: np.ndarray) -> None:
        writer.add_tensor(name, array.astype(np.float16))

    def single(name: str, array: np.ndarray) -> None:
        writer.add_tensor(name, array.astype(np.float32))

    def keep_constant(array: np.ndarray) -> np.ndarray:  # adds nothing to input 0
        array = array.copy()
        array[0] = 0
        return array

    with_bias = architecture == "jais2"
    embedding = normal(vocabulary, width).copy()
    embedding[:, 0] = CONSTANT
    half("token_embd.weight", embedding)
    half("output.weight", normal(vocabulary, width, sd=width**-0.5))
    norms = ["output_norm"] + [f"blk.{i}.{part}_norm" for i in range(layers) for part in ("attn", "ffn")]
    for name in norms:
        single(f"{name}.weight", np.ones(width))
        if with_bias:
            single(f"{name}.bias", np.zeros(width))
    threshold = statistics.NormalDist().inv_cdf(1 - fire)
    for i in range(layers):
        for part, rows in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            half(f"blk.{i}.attn_{part}.weight", normal(rows * head, width, sd=width**-0.5))
            if with_bias:
                single(f"blk.{i}.attn_{part}.bias", np.zeros(rows * head))
        half(f"blk.{i}.attn_output.weight", keep_constant(normal(width, heads * head, sd=0.2 * (heads * head)**-0.5)))
        up = normal(inner, width, sd=width**-0.5).copy()
        up[:, 0] = -threshold / CONSTANT
        half(f"blk.{i}.ffn_up.weight", up)
        if architecture == "llama":
            half(f"blk.{i}.ffn_gate.weight", normal(inner, width, sd=width**-0.5))
        half(f"blk.{i}.ffn_down.weight",
             keep_constant(normal(width, inner, sd=weight * (max(fire, 0.002) * inner)**-0.5)))
        if with_bias:
            single(f"blk.{i}.attn_output.bias", np.zeros(width))
            single(f"blk.{i}.ffn_up.bias", normal(inner, sd=0.1))
            single(f"blk.{i}.ffn_down.bias", keep_constant(normal(width, sd=0.1)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("architecture")
    parser.add_argument("path", type=pathlib.Path)
    parser.add_argument("--fire", type=float, required=True)
    parser.add_argument("--weight", type=float)
    for name in ("width", "inner", "layers", "vocabulary", "heads", "kv_heads"):
        parser.add_argument(f"--{name}", type=int)
    options = {k: v for k, v in vars(parser.parse_args()).items() if v is not None}
    write(options.pop("architecture"), options.pop("path"), **options)


if __name__ == "__main__":
    main()
