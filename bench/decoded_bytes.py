"""Bytes that decoding one token has to read, on each side, for `against_llama_cpp.py`.

They are counted from shapes and types, not measured. What is written, what stays in a cache
(activations, a norm's weight) and what is read twice is left out on both sides.
"""

import re

SCREEN_BLOCK = 256  # inputs of a block of a screen, each with a sum in 4 bytes: docs/format.md
SCREEN_ROW = 16  # bytes of a row's scale and bounds


def kv_cache(config, context, element):
    """Keys and values of `context` tokens, `element` bytes a number."""
    heads, size = config["num_key_value_heads"], config["head_dim"]
    return 2 * config["num_hidden_layers"] * heads * size * context * element


def of_llama_cpp(tensors):
    """Type -> bytes of weights. Of the embedding, a token reads a row, unless it is the head too.
    Every other tensor is read whole."""
    names = {name for name, _, _ in tensors}
    by_type = {}
    for name, kind, size in tensors:
        if name != "token_embd.weight" or "output.weight" not in names:
            by_type[kind] = by_type.get(kind, 0) + size
    return by_type


def gate_of(description):
    """How a layer keeps its gate, from its line in `twell explain`: ("screened", the share of
    neurons that the screen leaves) or ("packed", None)."""
    form = re.search(r"\b(screened|packed) gate\b", description)
    left = re.search(r"the screen left ([\d.]+) %", description)
    if form is None or (form[1] == "screened" and left is None):
        raise SystemExit(f"twell explain says of a layer: {description!r}, "
                         "expected a screened gate and what the screen left, or a packed gate")
    return (form[1], float(left[1]) / 100 if form[1] == "screened" else None)


def packed_row(kind, width):
    """Bytes of a row of a packed weight of codes, its sums or scales of blocks, and its scale:
    include/twell/packed.h."""
    blocks = -(-width // SCREEN_BLOCK)
    return (width + 4 * blocks if kind == "int8" else width // 2 + 8 * blocks) + 4


def of_codes(kind, config, nnz):
    """Part -> bytes of weights of a model that `twell quantize` made; `kind`: --type, and --head
    behind a plus, where it is not int8. Of a row of up, int4 reads 17 bytes for 32 numbers. Down is
    int8."""
    kind, _, kind_of_head = kind.partition("+")
    width, neurons, layers = (
        config[k] for k in ("hidden_size", "intermediate_size", "num_hidden_layers"))
    head, queries = config["head_dim"], config["num_attention_heads"]
    rows = (queries + 2 * config["num_key_value_heads"]) * head
    attention = rows * packed_row(kind, width) + width * packed_row(kind, queries * head)
    up = width if kind == "int8" else width // 32 * 17
    return {"attention": layers * attention,
            "head": config["vocab_size"] * packed_row(kind_of_head or "int8", width),
            "gate": layers * neurons * packed_row(kind, width),
            "up and down": layers * nnz * (up + width)}


def of_twell(config, gates, nnz):
    """Part -> bytes of weights of the sparse path; `nnz` neurons fire, up and down are read for
    these alone."""
    width, neurons = config["hidden_size"], config["intermediate_size"]
    element = element_size(config)
    gate = 0
    for form, left in gates:
        if form == "packed":
            gate += neurons * width * element
        else:
            blocks = -(-width // SCREEN_BLOCK)
            gate += neurons * (width + 4 * blocks + SCREEN_ROW) + left * neurons * width * element
    return {**other_linears(config), "gate": gate,
            "up and down": len(gates) * 2 * nnz * width * element}


def of_dense(config):
    width, neurons = config["hidden_size"], config["intermediate_size"]
    each = config["num_hidden_layers"] * neurons * width * element_size(config)
    return {**other_linears(config), "gate": each, "up and down": 2 * each}


def other_linears(config):
    width, head = config["hidden_size"], config["head_dim"]
    heads = 2 * config["num_attention_heads"] + 2 * config["num_key_value_heads"]
    return {"attention": config["num_hidden_layers"] * heads * head * width * element_size(config),
            "head": config["vocab_size"] * width * element_size(config)}


def element_size(config):
    return {"bfloat16": 2, "float32": 4}[config["torch_dtype"]]
