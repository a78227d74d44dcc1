"""twell.prepared: the file that `twell prepare` leaves beside a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import twell
from twell.prepared import FILE, _digest, findings_of

# The same bytes have the same digest in tests/convert/prepare_test.cc.
SMALL = b"".join(i.to_bytes(2, "little") for i in range(6))
LARGE = b"".join((i * 7 % 251).to_bytes(2, "little") for i in range(40 * 30))
DIGEST = "e6b8ef2d73282fe8"


def write_tensors(file: Path, tensors: dict[str, tuple[list[int], bytes]]) -> None:
    header, data = {}, b""
    for name, (shape, content) in tensors.items():
        header[name] = {"dtype": "BF16", "shape": shape,
                        "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_digest_is_that_of_the_c_side(tmp_path: Path) -> None:
    write_tensors(tmp_path / "model.safetensors", {"a": ([2, 3], SMALL), "b": ([40, 30], LARGE)})
    assert _digest(tmp_path, ["b", "a"]) == DIGEST
    # In shards, which an index names.
    (tmp_path / "model.safetensors").unlink()
    write_tensors(tmp_path / "1.safetensors", {"a": ([2, 3], SMALL), "b": ([2, 3], SMALL)})
    write_tensors(tmp_path / "2.safetensors", {"b": ([40, 30], LARGE)})
    index = {"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert _digest(tmp_path, ["b", "a"]) == DIGEST


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """A model of one layer, D = 30 and H = 40."""
    weight = "model.layers.0.mlp.gate_proj.weight"
    write_tensors(tmp_path / "model.safetensors", {weight: ([40, 30], LARGE)})
    layer = {"weight": weight, "candidates": 0.0, "mean": [0.5] * 30, "fired": list(range(40))}
    document = {"twell_prepared": 1, "checkpoint": _digest(tmp_path, [weight]), "inputs": 64,
                "layers": [layer]}
    (tmp_path / FILE).write_text(json.dumps(document))
    return tmp_path


def test_findings_have_a_layer_screened(prepared: Path) -> None:
    found = findings_of(prepared)
    assert list(found) == ["model.layers.0.mlp"]
    findings = found["model.layers.0.mlp"]
    assert findings.inputs == 64 and findings.candidates == 0.0
    assert findings.fired.tolist() == list(range(40)) and findings.mean.tolist() == [0.5] * 30
    layer = twell.GatedFfn(30, 40).requires_grad_(False)
    x = torch.randn(5, 30)
    want = layer(x)
    layer.freeze(findings=findings)
    assert layer.screened == (twell.ops.screen_limit() > 0.0)
    torch.testing.assert_close(layer(x), want)


def test_without_a_file_nothing_was_found(tmp_path: Path) -> None:
    assert findings_of(tmp_path) == {}
    assert findings_of("no/such/model") == {}


@pytest.mark.parametrize(("change", "why"), [
    ({"twell_prepared": 2}, "version 2"),
    ({"checkpoint": "0" * 16}, "of other weights"),
    ({"inputs": 3}, "fired: expected numbers from 0 to 3"),
    ({"layers": None}, "not iterable"),
    ({"layers": [{}]}, "lacks 'weight'"),
    ({"layers": [{"weight": "no.such.weight"}]}, "lacks 'no.such.weight'"),
])
def test_a_file_that_does_not_fit_is_told_and_ignored(
    prepared: Path, change: dict[str, object], why: str
) -> None:
    document = json.loads((prepared / FILE).read_text())
    (prepared / FILE).write_text(json.dumps({**document, **change}))
    with pytest.warns(UserWarning, match=why):
        assert findings_of(prepared) == {}
    (prepared / FILE).write_text("{")
    with pytest.warns(UserWarning, match="ignored; twell prepare makes it anew"):
        assert findings_of(prepared) == {}
