"""examples/*.py as programs, on sizes that take seconds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import twell
from recipe import EXAMPLE, make_dense, run

FOLDER = EXAMPLE.parent


def test_pytorch_layer() -> None:
    out = run(FOLDER / "pytorch_layer.py", "--width", 64, "--neurons", 256, "--steps", 200, "--l1", 1e-2)
    fire = [float(n) for n in re.findall(r"fire +([\d.]+)", out)]
    assert fire[0] > 100 and fire[-1] < 40, out
    (far,) = re.findall(r"by (\S+) of the largest", out)
    # Each side rounds h and y to bfloat16, by 2^-9. A sum of few terms that fire is not a third of the
    # terms' sizes or less, so 4 roundings of y's size a side.
    assert float(far) <= 4 * 2**-8
    table = out.split("times as fast\n")[1].splitlines()
    assert [int(line.split()[0]) for line in table] == [1, 16, 256, 1024]


def test_trainer_then_hugging_face_model(tmp_path: Path) -> None:
    """What one program trains, the other runs."""
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{i} times {j} is {i * j}.\n" for i in range(60) for j in range(60)))
    directory = tmp_path / "model"
    out = run(
        FOLDER / "train_with_trainer.py", "--data", text, "--out", directory, "--steps", 40,
        "--width", 32, "--l1", 1e-2,
    )  # fmt: skip
    fire = [float(n) for n in re.findall(r"fire +([\d.]+)%", out)]
    loss = [float(n) for n in re.findall(r"loss ([\d.]+)", out)]
    assert len(fire) == 10 and fire[-1] < 0.8 * fire[0] and loss[-1] < loss[0] - 1, out
    assert json.loads((directory / "config.json").read_text())["hidden_act"] == "relu"
    assert len(twell.sparse_layers(twell.hf.from_pretrained(directory))) == 4

    said = "12 times 13 is 156.\n" * 6
    out = run(FOLDER / "hugging_face_model.py", directory, "--tokens", 4, "--text", said)
    assert "4 GatedFfn: taken" in out
    (far,) = re.findall(r"by (\S+) of the largest", out)
    assert float(far) < 1e-5  # float32; test_hf.py has derived bounds
    assert said in out


def test_a_model_without_zeros_is_told(tmp_path: Path) -> None:
    make_dense(tmp_path)
    with pytest.raises(AssertionError, match=r"stays dense: .* no exact zeros"):
        run(FOLDER / "hugging_face_model.py", tmp_path)
