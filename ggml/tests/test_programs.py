"""The backend in programs of llama.cpp, with and without it, on small random models whose feed-forward
layers matter to the text. TWELL_LLAMA_CPP is the tree, TWELL_LLAMA_CPP_BUILD a build of it, TWELL_BACKEND
the library; scripts/test ggml sets them. A library built with -DTWELL_SANITIZE=address,undefined needs
TWELL_PRELOAD, the path of libasan.so."""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import random
import re
import socket
import subprocess
import sys
import time
import urllib.request

import numpy as np
import pytest

BUILD = os.environ.get("TWELL_LLAMA_CPP_BUILD", "")
if not pathlib.Path(BUILD, "bin").is_dir():
    pytest.skip("TWELL_LLAMA_CPP_BUILD names no build of llama.cpp", allow_module_level=True)
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import models  # noqa: E402

FORMATS = ["Q4_0", "Q5_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]


def program(name: str) -> str:
    return str(pathlib.Path(BUILD, "bin", name))


def environment(backend: bool, **more: str) -> dict[str, str]:
    given = {"GGML_BACKEND_PATH": os.environ["TWELL_BACKEND"]} if backend else {}
    if backend and "TWELL_PRELOAD" in os.environ:
        # What the programs themselves leave at exit is not looked for.
        given |= {"LD_PRELOAD": os.environ["TWELL_PRELOAD"], "ASAN_OPTIONS": "detect_leaks=0"}
    return {**os.environ, **given, **more}


def run(name: str, *arguments: object, backend: bool = True, **more: str) -> str:
    """What it prints on both streams."""
    done = subprocess.run([program(name), *map(str, arguments)], env=environment(backend, **more), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


class Models:
    """Made when they are first asked for."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder

    def __call__(self, architecture: str, kind: str, **options: float) -> pathlib.Path:
        name = "-".join([architecture, *(f"{k}{v}" for k, v in options.items())])
        whole, path = self.folder / f"{name}.F16.gguf", self.folder / f"{name}.{kind}.gguf"
        if not whole.exists():
            models.write(architecture, whole, **{"fire": 0.09, **options})
        if not path.exists():
            run("llama-quantize", "--pure", whole, path, kind, 2, backend=False)
        return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    rng = random.Random(1)
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text(" ".join(f"w{rng.randrange(100)}" for _ in range(1500)))
    return path


def perplexity(path: pathlib.Path, text: pathlib.Path, *more: object, backend: bool,
               **variables: str) -> list[float]:
    return perplexity_and_output(path, text, *more, backend=backend, **variables)[0]


def perplexity_and_output(path: pathlib.Path, text: pathlib.Path, *more: object, backend: bool,
                          **variables: str) -> tuple[list[float], str]:
    """Of one chunk, of two, and so on. The program's log is written by a thread that it does not wait for at its
    end, so the last of the four may be missing."""
    wanted = 1 if "--chunks" in more else 3
    for _ in range(10):
        said = run("llama-perplexity", "-m", path, "-f", text, "-c", 128, "--chunks", 4, "-t", 2, *more,
                   backend=backend, **variables)
        found = re.findall(r"\[\d\]([\d.]+),", said)
        if len(found) >= wanted:
            return [float(number) for number in found], said
    raise AssertionError(said[-2000:])


def nearly(ours: list[float], theirs: list[float], within: float = 1e-3) -> bool:
    """Products agree up to the order of f32 sums. The CPU rounds the next layer's inputs to 8 bits, and there the
    last bit of a sum may count for more: one such input moved the first of four chunks by 1.2e-3."""
    both = list(zip(ours, theirs, strict=False))
    errors = [abs(a - b) / b for a, b in both]
    return errors[-1] <= within and max(errors) <= 3 * within


def line_of(said: str) -> str:
    found = [line for line in said.splitlines() if line.startswith("twell: ")]
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("architecture", ["arcee", "jais2", "nemotron_h_moe"])
def test_perplexity_is_that_of_the_cpu(model: Models, text: pathlib.Path, architecture: str, kind: str) -> None:
    path = model(architecture, kind)
    plain = perplexity(path, text, backend=False)
    # Of two experts whose scores are all but equal either may be chosen.
    within = 2e-3 if architecture == "nemotron_h_moe" else 1e-3
    assert nearly(perplexity(path, text, backend=True), plain, within)
    assert perplexity(path, text, backend=True, TWELL_GGML="off")[0] == plain[0]


# The formats that down and what is before it then have: llama-quantize writes Q5_0 for Q4_K where a row is no multiple
# of 256.
NARROW = {"width": 384, "heads": 3, "kv_heads": 1}
some_formats = pytest.mark.parametrize(("kind", "options", "down", "up"), [
    ("Q4_K", {}, "Q4_K", "Q4_K"), ("Q8_0", {}, "Q8_0", "Q8_0"), ("Q4_K", NARROW, "Q4_K", "Q5_0")],
    ids=["Q4_K", "Q8_0", "Q5_0"])


@some_formats
@pytest.mark.parametrize("architecture", ["nemotron", "plm", "rwkv6", "rwkv7", "smallthinker"])
def test_perplexity_of_other_architectures(model: Models, text: pathlib.Path, architecture: str, kind: str,
                                           options: dict[str, int], down: str, up: str) -> None:
    """llama.cpp's own PLM runs with -fa off alone: its graph gives all tokens' values to the cache as one token's."""
    path = model(architecture, kind, **options)
    more = ("-fa", "off") if architecture == "plm" else ()
    plain = perplexity(path, text, *more, backend=False)
    ours, said = perplexity_and_output(path, text, *more, backend=True)
    assert nearly(ours, plain)
    ups = 4 if architecture == "smallthinker" else 2  # with its gates
    assert line_of(said) == f"twell: takes 2 down weights (2 in {down}), {ups} gate and up weights ({ups} in {up})"


def test_feed_forward_layers_matter_to_the_perplexity(model: Models, text: pathlib.Path) -> None:
    with_them = perplexity(model("arcee", "Q8_0"), text, backend=True)[0]
    without = perplexity(model("arcee", "Q8_0", weight=0.0), text, backend=True)[0]
    assert abs(with_them - without) > 0.05 * with_them


@pytest.mark.parametrize("fire", [0.01, 0.5, 0.95])
def test_perplexity_at_any_density(model: Models, text: pathlib.Path, fire: float) -> None:
    path = model("arcee", "Q4_K", fire=fire)
    plain = perplexity(path, text, backend=False)
    assert nearly(perplexity(path, text, backend=True), plain)


@pytest.mark.parametrize("more", [("-ctk", "q8_0"), ("-b", 1, "-ub", 1, "--chunks", 2), ("-t", 1), ("-lm", "none"),
                                  ("-t", 3)], ids=str)
def test_perplexity_with_other_options(model: Models, text: pathlib.Path, more: tuple) -> None:
    path = model("arcee", "Q4_K")
    plain = perplexity(path, text, *more, backend=False)
    assert nearly(perplexity(path, text, *more, backend=True), plain)


@pytest.mark.parametrize("architecture", ["rwkv7", "smallthinker"])
def test_perplexity_token_by_token(model: Models, text: pathlib.Path, architecture: str) -> None:
    path = model(architecture, "Q4_K")
    one = ("-b", 1, "-ub", 1, "-t", 1, "--chunks", 2)
    assert nearly(perplexity(path, text, *one, backend=True), perplexity(path, text, *one, backend=False))


def test_one_line_says_what_is_taken(model: Models, text: pathlib.Path) -> None:
    said = run("llama-perplexity", "-m", model("arcee", "Q4_K"), "-f", text, "-c", 128, "--chunks", 1)
    assert line_of(said) == "twell: takes 2 down weights (2 in Q4_K), 2 gate and up weights (2 in Q4_K)"
    said = run("llama-perplexity", "-m", model("arcee", "Q4_K"), "-f", text, "-c", 128, "--chunks", 1,
               TWELL_GGML="down")
    assert line_of(said) == ("twell: takes 2 down weights (2 in Q4_K); leaves 2: TWELL_GGML=down leaves what "
                             "is before it")


def test_other_activations_are_left_wholly_alone(model: Models, text: pathlib.Path) -> None:
    path = model("llama", "Q4_K")
    said = run("llama-perplexity", "-m", path, "-f", text, "-c", 128, "--chunks", 1)
    assert line_of(said) == "twell: takes no weight; leaves 4: llama's layers have no exact zeros"
    assert "TWELL model buffer" not in said
    assert perplexity(path, text, backend=True)[0] == perplexity(path, text, backend=False)[0]


def test_formats_that_libtwell_lacks_are_named(model: Models, text: pathlib.Path) -> None:
    said = run("llama-perplexity", "-m", model("arcee", "Q3_K"), "-f", text, "-c", 128, "--chunks", 1)
    assert line_of(said) == "twell: takes no weight; leaves 4: libtwell has no kernel for q3_K"


def test_counts_are_printed_at_exit(model: Models, text: pathlib.Path) -> None:
    said = run("llama-perplexity", "-m", model("arcee", "Q8_0"), "-f", text, "-c", 128, "--chunks", 1,
               TWELL_GGML="stats")
    counts = re.findall(r"twell: blk\.\d\.ffn_down\.weight: (\d+) calls of [\d.]+ ms, (\d+) tokens, ([\d.]+) % fired,"
                        " sparse", said)
    assert len(counts) == 2
    assert all(int(tokens) >= 64 and 6 < float(fired) < 20 for _, tokens, fired in counts)


def test_the_page_builds_what_is_tested() -> None:
    page = pathlib.Path(__file__).parents[2].joinpath("docs/llama-cpp.md").read_text()
    cache = pathlib.Path(BUILD, "CMakeCache.txt").read_text()
    flags = re.findall(r"-D(\w+)=(\w+)", page)
    assert len(flags) == 3
    for name, value in flags:
        assert re.search(rf"^{name}:\w+={value}$", cache, re.MULTILINE), name
    (library,) = re.findall(r"GGML_BACKEND_PATH=\$PWD/(\S+)", page)
    assert pathlib.Path(__file__).parents[2].joinpath(library).exists()


def test_a_layer_is_two_more_splits_and_no_more(model: Models) -> None:
    said = run("llama-completion", "-m", model("arcee", "Q4_K"), "-p", "w1 w2", "-n", 3, "-no-cnv", "--temp", 0, "-v",
               GGML_SCHED_DEBUG="2")
    assert max(int(n) for n in re.findall(r"## SPLIT #(\d+): ", said)) + 1 == 5


@pytest.mark.parametrize(("name", "one_answer"), [("llama-completion", "-no-cnv"), ("llama-cli", "-st")])
def test_greedy_text_is_the_same(model: Models, name: str, one_answer: str) -> None:
    def write(backend: bool) -> str:
        said = subprocess.run([program(name), "-m", str(model("arcee", "Q4_K")), "-p", "w1 w2 w3", one_answer,
                               "-n", "40", "--temp", "0", "-t", "2", "--ignore-eos"],
                              env=environment(backend), capture_output=True, check=True, stdin=subprocess.DEVNULL)
        text = said.stdout.decode(errors="replace")
        return text[text.index("w1 w2 w3"):].split("\n[ Prompt: ")[0].strip()  # llama-cli greets, and tells its speed

    ours, theirs = write(True), write(False)
    shown = min(len(ours), len(theirs))  # what the log's thread came to write
    assert shown > 30 and ours[:shown] == theirs[:shown]


@some_formats
def test_greedy_text_of_an_encoder_and_a_decoder(model: Models, kind: str, options: dict[str, int], down: str,
                                                 up: str) -> None:
    """llama-perplexity runs no encoder, without which the decoder has no text to look at. llama-completion does, and
    then does not print its prompt."""
    def write(backend: bool) -> tuple[str, str]:
        done = subprocess.run([program("llama-completion"), "-m", str(model("t5", kind, **options)), "-p",
                               "w1 w2 w3 w4 w5", "-no-cnv", "-n", "24", "--temp", "0", "--repeat-penalty", "1.5",
                               "-t", "2", "--ignore-eos"],
                              env=environment(backend), capture_output=True, check=True, stdin=subprocess.DEVNULL)
        return done.stdout.decode(errors="replace").strip(), done.stderr.decode(errors="replace")

    (ours, said), (theirs, _) = write(True), write(False)
    assert line_of(said) == f"twell: takes 4 down weights (4 in {down}), 4 gate and up weights (4 in {up})"
    shown = min(len(ours), len(theirs))
    assert shown > 30 and ours[:shown] == theirs[:shown], (ours, theirs)


@pytest.mark.parametrize("architecture", ["jais2", "nemotron_h_moe"])
def test_every_node_with_a_callback(model: Models, architecture: str) -> None:
    def sums(backend: bool) -> list[float]:
        said = run("llama-eval-callback", "-m", model(architecture, "Q8_0"), "-p", "w1 w2 w3", "-t", 2, backend=backend)
        return [float(number) for number in re.findall(r"sum = (-?[\d.]+)", said)]

    ours, theirs = sums(True), sums(False)
    assert len(ours) > 40
    assert all(abs(a - b) <= 1e-4 * abs(b) + 1e-3 for a, b in zip(ours, theirs, strict=False))


def test_importance_matrix_is_computed(model: Models, text: pathlib.Path, tmp_path: pathlib.Path) -> None:
    out = tmp_path / "imatrix.gguf"
    run("llama-imatrix", "-m", model("arcee", "Q8_0"), "-f", text, "-c", 128, "--chunks", 2, "-o", out)
    assert out.stat().st_size > 1000


def test_bench_runs(model: Models) -> None:
    said = run("llama-bench", "-m", model("arcee", "Q4_K"), "-p", 64, "-n", 16, "-r", 1, "-t", "1,2")
    assert said.count("tg16") == 2


def test_lora(model: Models, text: pathlib.Path, tmp_path: pathlib.Path) -> None:
    import gguf

    path = tmp_path / "lora.gguf"
    writer = gguf.GGUFWriter(str(path), "arcee")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 8.0)
    rng = np.random.default_rng(2)
    for name, rows, cols in (("blk.0.ffn_down", 512, 2048), ("blk.1.ffn_up", 2048, 512)):
        writer.add_tensor(f"{name}.weight.lora_a", rng.standard_normal((8, cols), dtype=np.float32) / cols**0.5)
        writer.add_tensor(f"{name}.weight.lora_b", rng.standard_normal((rows, 8), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    plain = perplexity(model("arcee", "Q4_K"), text, "--lora", path, backend=False)
    assert plain[0] != perplexity(model("arcee", "Q4_K"), text, backend=False)[0]
    assert nearly(perplexity(model("arcee", "Q4_K"), text, "--lora", path, backend=True), plain)


@contextlib.contextmanager
def server(path: pathlib.Path, backend: bool, log: pathlib.Path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with log.open("w") as to, subprocess.Popen(
            [program("llama-server"), "-m", str(path), "--port", str(port), "-np", "2", "-c", "512", "-t", "2"],
            env=environment(backend), stdout=to, stderr=subprocess.STDOUT) as process:
        try:
            for _ in range(300):
                with contextlib.suppress(OSError):
                    if urllib.request.urlopen(f"http://127.0.0.1:{port}/health").status == 200:
                        break
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(timeout=60)
    assert process.returncode in (0, -15), log.read_text()[-2000:]


def test_server_with_two_clients(model: Models, tmp_path: pathlib.Path) -> None:
    def ask(url: str, prompt: str) -> str:
        body = {"prompt": prompt, "n_predict": 24, "temperature": 0, "cache_prompt": False, "ignore_eos": True}
        request = urllib.request.Request(url + "/completion", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(request, timeout=120))["content"]

    answers = {}
    for backend in (False, True):
        with (server(model("arcee", "Q8_0"), backend, tmp_path / f"{backend}.log") as url,
              concurrent.futures.ThreadPoolExecutor(2) as clients):
            asked = [clients.submit(ask, url, prompt) for prompt in ["w1 w2 w3", "w7 w8 w9 w10"] * 3]
            answers[backend] = [answer.result() for answer in asked]
    assert "twell: takes 2 down weights" in (tmp_path / "True.log").read_text()
    assert answers[True] == answers[False]
