"""Reads the findings that ``twell prepare`` wrote beside a model's checkpoint.

lm/decoder/prepared_file.h describes the file. Findings only save time, so a file that is damaged or
of other weights is ignored, with a warning.
"""

from __future__ import annotations

import json
import mmap
import warnings
from pathlib import Path
from typing import Any

import torch

from twell._weights import Findings

FILE = "twell_prepared.json"
_VERSION = 1
_PLACES, _BYTES = 64, 16  # of a weight that the digest looks at


def findings_of(directory: str | Path) -> dict[str, Findings]:
    """The findings of each layer, by the name of its module, for example ``model.layers.0.mlp``, for
    :meth:`twell.GatedFfn.freeze`. Empty if the model was not prepared, and, with a warning, if the file
    is of other weights or cannot be read."""
    file = Path(directory) / FILE
    if not file.is_file():
        return {}
    try:
        document = json.loads(file.read_text("utf-8"))
        if document["twell_prepared"] != _VERSION:
            raise ValueError(f"is of version {document['twell_prepared']}")
        layers = {layer["weight"]: layer for layer in document["layers"]}
        digest = _digest(file.parent, list(layers))
        if document["checkpoint"] != digest:
            raise ValueError(f"is of other weights ({document['checkpoint']}, these are {digest})")
        return {
            weight.rsplit(".", 2)[0]: _findings(layer, int(document["inputs"]))
            for weight, layer in layers.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        warnings.warn(f"{file}: {what}: ignored; twell prepare makes it anew", stacklevel=2)
        return {}


def _findings(layer: dict[str, Any], inputs: int) -> Findings:
    candidates = layer.get("candidates")
    fired = torch.tensor(layer["fired"], dtype=torch.int64)
    if bool((fired < 0).any()) or bool((fired > inputs).any()):
        raise ValueError(f"fired: expected numbers from 0 to {inputs}")
    return Findings(
        inputs,
        torch.tensor(layer["mean"], dtype=torch.float32),
        fired,
        None if candidates is None else float(candidates),
    )


def _digest(directory: Path, weights: list[str]) -> str:
    """Of the checkpoint's bytes, as lm::digest_of()."""
    digest = 0xCBF29CE484222325
    for weight in weights:
        file = _file_of(directory, weight)
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as m:
            length = int.from_bytes(m[:8], "little")
            tensor = json.loads(m[8 : 8 + length])[weight]
            begin, end = (8 + length + offset for offset in tensor["data_offsets"])
            seen = b"".join(size.to_bytes(8, "little") for size in tensor["shape"])
            if end - begin <= _PLACES * _BYTES:
                seen += m[begin:end]
            else:
                for place in range(_PLACES):
                    at = begin + (end - begin - _BYTES) * place // (_PLACES - 1)
                    seen += m[at : at + _BYTES]
        for byte in seen:
            digest = (digest ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{digest:016x}"


def _file_of(directory: Path, weight: str) -> Path:
    whole = directory / "model.safetensors"
    if whole.is_file():
        return whole
    index = json.loads((directory / "model.safetensors.index.json").read_text("utf-8"))
    return directory / index["weight_map"][weight]
