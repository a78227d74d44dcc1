"""A model whose answers are known: it answers a token with another, whatever came before."""

import json
import pathlib

import numpy as np
from safetensors.numpy import save_file

WIDTH, NEURONS, LAYER = 288, 64, "model.layers.0."


def byte_symbols():
    """byte -> the character that stands for it in byte-level vocabularies."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    symbols = {b: chr(b) for b in plain}
    for b in range(256):
        if b not in symbols:
            symbols[b] = chr(256 + len(symbols) - len(plain))
    return symbols


def tokenizer(added=()):
    """Token b is byte b, without merges; the added tokens follow."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    pieces = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [{"id": 256 + i, "content": c, **flags} for i, c in enumerate(added)],
        "pre_tokenizer": pieces, "decoder": pieces,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "ignore_merges": False, "vocab": {s: b for b, s in byte_symbols().items()}, "merges": []},
    }


def make_bigram(folder, following, added=(), vocab=None, **config):
    """Writes a Llama that answers token t with following(t) and returns its tensors. Its vocabulary has
    the bytes and the added tokens, or the first `vocab` of them."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    vocab = vocab or 256 + len(added)
    embedding = np.eye(vocab, WIDTH, dtype=np.float32)
    head = np.zeros((vocab, WIDTH), np.float32)
    for t in range(vocab):
        if following(t) < vocab:
            head[following(t), t] = 10
    shapes = {"self_attn.q_proj": (WIDTH, WIDTH), "self_attn.k_proj": (WIDTH, WIDTH),
              "self_attn.v_proj": (WIDTH, WIDTH), "self_attn.o_proj": (WIDTH, WIDTH),
              "mlp.gate_proj": (NEURONS, WIDTH), "mlp.up_proj": (NEURONS, WIDTH),
              "mlp.down_proj": (WIDTH, NEURONS)}
    tensors = {LAYER + n + ".weight": np.zeros(shape, np.float32) for n, shape in shapes.items()}
    norms = ["model.norm", LAYER + "input_layernorm", LAYER + "post_attention_layernorm"]
    tensors |= {n + ".weight": np.ones(WIDTH, np.float32) for n in norms}
    tensors |= {"model.embed_tokens.weight": embedding, "lm_head.weight": head}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    settings = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH,
                "intermediate_size": NEURONS, "num_hidden_layers": 1, "num_attention_heads": 4,
                "vocab_size": vocab, "max_position_embeddings": 512, "hidden_act": "relu",
                "bos_token_id": None, "eos_token_id": None, "torch_dtype": "float32", **config}
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(added)))
    return tensors
