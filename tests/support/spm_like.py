"""tokenizer.json as Llama 2 has it, and what comes from SentencePiece as it does."""

SPACE = "▁"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPECIAL = ["<unk>", "<s>", "</s>"]


def replace(old, new, kind="String"):
    return {"type": "Replace", "pattern": {kind: old}, "content": new}


PREPEND = {"type": "Prepend", "prepend": SPACE}
TO_SPACE = replace(" ", SPACE)
DUMMY_PREFIX = {"type": "Sequence", "normalizers": [PREPEND, TO_SPACE]}
BACK = [replace(SPACE, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def template():
    """<s> in front of a text."""
    single = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    pair = [*single, {"SpecialToken": {"id": "<s>", "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}]
    special = {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}


def tokenizer(pieces, merges):
    """The pieces behind SPECIAL, among them BYTES."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    model = {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
             "vocab": {piece: i for i, piece in enumerate([*SPECIAL, *pieces])}, "merges": merges}  # fmt: skip
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [{"id": i, "content": name, **flags} for i, name in enumerate(SPECIAL)],
            "normalizer": DUMMY_PREFIX, "pre_tokenizer": None, "post_processor": template(),
            "decoder": {"type": "Sequence", "decoders": [*BACK, STRIP]}, "model": model}  # fmt: skip
