"""Where files live: file systems that lack something, outputs among inputs, names, environments."""

import json
import os
import pathlib
import resource
import shutil
import subprocess

import pytest
from conftest import SHAPE

MAPPINGS = int(pathlib.Path("/proc/sys/vm/max_map_count").read_text())
RUN = [*SHAPE, "--steps", 2, "--context", 32, "--batch", 2, "--bpe-vocab", 300]


def notes(done):
    err = done.err if hasattr(done, "err") else done.stderr
    return [line for line in err.splitlines() if line.startswith("note: ")]


# --- file systems that lack something ---

@pytest.fixture(scope="session")
def lacking(work):
    """lacking(what): the environment in which that fails."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if not compiler:
        pytest.skip("no C++ compiler")
    source = pathlib.Path(__file__).resolve().parents[1] / "support/missing_calls.cc"
    library = work / "missing_calls.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return lambda what: {"LD_PRELOAD": str(library), "TWELL_TEST_LACKS": what}


LACKS = {"flock": "has no locks", "lock daemon": "has no locks", "links": "has no links",
         "fsync of directories": None, "modes": None, "patience": None, "long transfers": None,
         "mmap": "maps no files", "mappings": None}


@pytest.mark.parametrize("what", LACKS)
def test_a_run_and_its_model(twell, text, tmp_path, lacking, what):
    env, run = lacking(what), tmp_path / "run"
    done = twell("train", "--data", text, "--out", run, *RUN, env=env)
    told = [line for line in notes(done) if LACKS[what] and LACKS[what] in line]
    assert len(notes(done)) == len(told), done.err
    if what != "mmap":  # those of another folder are told too
        assert len(told) == (LACKS[what] is not None), done.err
    assert (run / "latest").is_symlink() == (what != "links")
    twell("train", "--data", text, "--out", run, "--resume", "--extend-to", 4, env=env)
    done = twell("convert", "--in", run, "--out", tmp_path / "copy", env=env)
    twell("generate", "--model", tmp_path / "copy", "--prompt", "The", "--max-tokens", 2, env=env)
    # Nothing but the words differs from where nothing is missing.
    shards = [tmp_path / "lacking.tokens", tmp_path / "whole.tokens"]
    for shard, where in zip(shards, (env, {})):
        twell("tokenize", "--text", text, "--tokenizer", run, "--out", shard, env=where)
    assert shards[0].read_bytes() == shards[1].read_bytes()
    twell("convert", "--in", run, "--out", tmp_path / "whole")
    copies = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("copy", "whole")]
    assert copies[0] == copies[1]


@pytest.mark.skipif(MAPPINGS > 300_000, reason=f"{MAPPINGS} mappings are more than texts that one writes")
def test_more_texts_than_the_system_maps(twell, tmp_path):
    for i in range(MAPPINGS + 500):
        if i % 1000 == 0:
            folder = tmp_path / f"texts/{i // 1000:03}"
            folder.mkdir(parents=True)
        (folder / f"{i}.txt").write_text(f"text number {i}\n")
    done = twell("tokenize", "--text", tmp_path / "texts", "--learn", 300, "--out", tmp_path / "t.tokens",
                 json_name="many.json")
    assert done.json["files"] == MAPPINGS + 500
    shutil.rmtree(tmp_path / "texts")


def test_texts_that_cannot_be_mapped(twell, tmp_path, lacking):
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(300):
        (folder / f"{i}.txt").write_text(f"text number {i}\n" * (1 if i else 9000))
    done = twell("tokenize", "--text", folder, "--learn", 300, "--out", tmp_path / "t.tokens",
                 env=lacking("mappings"), json_name="many.json")
    assert done.json["files"] == 300 and not notes(done)


# --- outputs among inputs ---

def test_a_run_within_its_texts(twell, text, tmp_path):
    books = tmp_path / "books"
    books.mkdir()
    shutil.copy(text, books / "a.txt")
    hashes = set()
    # A second run sees the same texts, whatever the first has left there; so does one that has its ids
    # among them, and no folder of its own.
    for out, more in ((books / "run", []), (books / "second", []), (books, ["--cache", books])):
        done = twell("train", "--data", books, "--out", out, *more, *RUN)
        assert out == books or any(f"{out} is passed over" in line for line in notes(done))
        twell("train", "--data", books, "--out", out, *more, "--resume", "--extend-to", 4)
        hashes.add(json.loads((out / "step-00000004/trainer/state.json").read_text())["data_hash"])
    assert len(hashes) == 1


def test_token_ids_within_their_texts(twell, text, tmp_path):
    books = tmp_path / "books"
    books.mkdir()
    shutil.copy(text, books / "a.txt")
    twell("tokenize", "--text", books, "--learn", 300, "--out", books / "all.tokens")
    first = (books / "all.tokens").read_bytes()
    words = ["--tokenizer", books / "tokenizer.json"]
    done = twell("tokenize", "--text", books, *words, "--out", books / "all.tokens")
    assert (books / "all.tokens").read_bytes() == first and not notes(done)
    done = twell("tokenize", "--text", books, *words, "--out", books / "other.tokens")
    assert (books / "other.tokens").read_bytes() == first
    assert len(notes(done)) == 1 and "all.tokens is passed over" in notes(done)[0]
    done = twell("train", "--data", books, *words, "--out", tmp_path / "run", *RUN[:-2])
    assert any("counts twice" in line for line in notes(done))


# --- where outputs go ---

def test_outputs_through_links_and_into_empty_folders(twell, trained, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    (tmp_path / "dangling").symlink_to("new")
    for name in ("link", "dangling"):
        twell("convert", "--in", trained[0], "--out", tmp_path / name)
        assert (tmp_path / name).is_symlink()
    assert (tmp_path / "disk/config.json").exists() and (tmp_path / "new/config.json").exists()
    error = twell("convert", "--in", trained[0], "--out", tmp_path / "link", ok=False).error_line()
    assert "not empty" in error


@pytest.fixture
def nobody(program):
    """A folder that another user may enter, and nobody(...): the command line as that user."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    if subprocess.run([*user, "test", "-r", program]).returncode != 0:
        pytest.skip(f"no other user may read {program}")
    place = pathlib.Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    place.chmod(0o755)

    def run(*arguments, **changes):
        done = subprocess.run([*user, program, *map(str, arguments)], capture_output=True, text=True,
                              env=environment(**changes))
        assert done.returncode == 0, done.stderr
        return done

    run.place = place
    yield run
    shutil.rmtree(place)


def environment(**changes):
    gone = ("HOME", "XDG_CACHE_HOME", "TMPDIR", "TWELL_CALIBRATION")
    return {**{k: v for k, v in os.environ.items() if k not in gone}, **changes}


def test_an_empty_folder_in_one_that_cannot_be_written(nobody, trained):
    """As a volume that a container is given: nothing can be made beside it."""
    shutil.copytree(trained[0], nobody.place / "model", symlinks=True)
    (nobody.place / "out").mkdir()
    os.chown(nobody.place / "out", 65534, 65534)
    nobody("convert", "--in", nobody.place / "model", "--out", nobody.place / "out")
    assert (nobody.place / "out/config.json").exists()
    assert sorted(p.name for p in nobody.place.iterdir()) == ["model", "out"]


def test_a_run_goes_on_by_another_user(nobody, twell, text):
    run = nobody.place / "run"
    shutil.copy(text, nobody.place / "text.txt")
    twell("train", "--data", nobody.place / "text.txt", "--out", run, *RUN)
    assert (run / ".lock").stat().st_mode & 0o022 == 0  # not theirs to write to
    for folder in (run, run / "cache"):
        folder.chmod(0o777)
    nobody("train", "--data", nobody.place / "text.txt", "--out", run, "--resume", "--extend-to", 4)
    assert (run / "step-00000004/config.json").exists()


def test_the_calibration_of_another_user(nobody, trained):
    shutil.copytree(trained[0], nobody.place / "model", symlinks=True)
    home = nobody.place / "home"
    (home / ".cache/twell").mkdir(parents=True)
    (home / ".cache/twell/calibration.json").write_text("{}")
    home.chmod(0o700)
    done = nobody("generate", "--model", nobody.place / "model", "--prompt", "The", "--max-tokens", 2,
                  HOME=str(home))
    assert len(notes(done)) == 1 and "calibration.json" in notes(done)[0]


# --- names and environments ---

@pytest.mark.parametrize("name", [b"with spaces", "schön".encode(), b"no utf-8 \xff"], ids=repr)
def test_names_of_any_bytes(twell, program, text, tmp_path, name):
    place = os.fsencode(tmp_path) + b"/" + name
    os.mkdir(place)
    shutil.copy(text, place + b"/a " + name + b".txt")
    run = [program, b"train", b"--data", place, b"--out", place + b"/run", *(str(x).encode() for x in RUN),
           b"--json", place + b"/r.json"]
    subprocess.run(run, check=True, capture_output=True)
    subprocess.run([program, b"generate", b"--model", place + b"/run", b"--prompt", b"The",
                    b"--max-tokens", b"2"], check=True, capture_output=True)
    subprocess.run([program, b"convert", b"--in", place + b"/run", b"--out", place + b"/copy"],
                   check=True, capture_output=True)


def test_few_descriptors(program, text, tmp_path):
    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))  # noqa: E731
    deep = tmp_path / "/".join("abcdefghijklmnopqrstuvwxyz")
    deep.mkdir(parents=True)
    shutil.copy(text, deep / "a.txt")
    done = subprocess.run([program, "train", "--data", tmp_path / "a", "--out", tmp_path / "run",
                           *map(str, RUN)], capture_output=True, text=True, preexec_fn=limit)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("changes", [
    {}, {"HOME": "", "TMPDIR": ""}, {"HOME": "/nonexistent", "TMPDIR": "/nonexistent"},
    {"HOME": "relative", "XDG_CACHE_HOME": "also/relative"}, {"HOME": "/dev/null"},
], ids=str)
def test_homes_that_are_none(program, trained, tmp_path, changes):
    command = [program, "generate", "--model", trained[0], "--prompt", "The", "--max-tokens", "2"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment(**changes))
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir())
    done = subprocess.run([program, "calibrate", "--help"], capture_output=True, env=environment(**changes))
    assert done.returncode == 0
