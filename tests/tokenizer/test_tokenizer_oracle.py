"""Token ids and decoded text against the package `tokenizers`, id for id."""

import functools
import json
import pathlib
import random
import tarfile

import pytest
from shared_data import data_path

tokenizers = pytest.importorskip("tokenizers")
from oracle_texts import (  # noqa: E402
    CODE_POINTS,
    code_point_texts,
    composites,
    fill_code_points,
    random_texts,
    same,
    same_in_unicode_9,
)
from tokenizers import (  # noqa: E402
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
NFC = normalizers.NFC()


@pytest.fixture(scope="module", autouse=True)
def code_points(driver):
    fill_code_points(driver)


def smollm2():
    path = data_path("tokenizers/smollm2/tokenizer.json")
    return path, Tokenizer.from_file(str(path))


def gpt2():
    folder = data_path("tokenizers/gpt2")
    vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    merges = [
        tuple(line.split(" "))
        for line in (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
        if line
    ]
    oracle = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    oracle.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    oracle.decoder = decoders.ByteLevel()
    oracle.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
    return folder, oracle


REAL = {"smollm2": smollm2, "gpt2": gpt2}


@pytest.fixture(scope="module", params=REAL)
def real(request):
    return REAL[request.param]()


@pytest.mark.parametrize(
    "name",
    [
        "corpora/tinyshakespeare.txt",
        "corpora/wikitext2_valid.txt",
        "corpora/tinystories_sample.txt",
        "eval/hellaswag_val_full.txt",
        "eval/arc_easy_train.jsonl",
    ],
)
def test_real_text(driver, real, name):
    with open(data_path(name), encoding="utf-8", newline="") as file:
        same(driver, *real, [file.read()])


def test_books(driver, real):
    """4 MB of the classics, which have quotes, dashes, accents, Greek and tables."""
    texts, size = [], 0
    with tarfile.open(data_path("corpora/classics.tar.xz")) as archive:
        for member in archive:
            if member.isfile() and size < 4_000_000:
                texts.append(archive.extractfile(member).read().decode("utf-8", "ignore"))
                size += len(texts[-1])
    same(driver, *real, texts)


def test_code_points(driver, real):
    same(driver, *real, code_point_texts())


def test_every_byte_decodes(driver, real):
    """Single tokens and pairs of them give the same text, also where that is no UTF-8."""
    path, oracle = real
    rng = random.Random(1)
    size = oracle.get_vocab_size()
    lists = [[i] for i in range(size)]
    lists += [[rng.randrange(size) for _ in range(rng.randrange(9))] for _ in range(20_000)]
    # Tokens of one symbol: incomplete and overlong sequences, surrogates.
    short = [i for i in range(size) if len(oracle.id_to_token(i)) == 1]
    lists += [[rng.choice(short) for _ in range(rng.randrange(9))] for _ in range(50_000)]
    want = [oracle.decode(ids, skip_special_tokens=False) for ids in lists]
    for mode in ("decode", "stream"):
        got = driver.decode(path, lists, mode)
        assert got == want, next(x for x in zip(lists, got, want) if x[1] != x[2])
    want = [oracle.decode(ids, skip_special_tokens=True) for ids in lists]
    assert driver.decode(path, lists, "decode-skip") == want


def test_every_byte_encodes(driver, real):
    """All bytes that occur in UTF-8, in all the places where they can."""
    texts = [chr(c) for c in range(0x800)] + [chr(c) for c in range(0x800, 0x110000, 0x3F)
                                              if not 0xD800 <= c <= 0xDFFF]
    assert {b for t in texts for b in t.encode()} == set(range(0xF5)) - {0xC0, 0xC1}
    same(driver, *real, texts)


def test_random_texts(driver, real):
    same(driver, *real, random_texts(20_000, seed=2))


def test_long_words(driver, real):
    """One word of a megabyte must not take quadratic time."""
    same(driver, *real, ["a" * 1_000_000, "ab" * 300_000, " " * 500_000 + "x", "é" * 100_000])


# ---- other tokenizers: made here, so that every option is met ----


TRAINED = {}


def train(pre_tokenizer):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    asked = tokenizer.to_str()
    if asked not in TRAINED:
        text = "".join(random_texts(400, seed=3)) + pathlib.Path(__file__).read_text(encoding="utf-8")
        text += " the quick brown fox's don't we'll 12345 world " * 40
        trainer = trainers.BpeTrainer(
            vocab_size=700,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator([text], trainer)
        TRAINED[asked] = tokenizer.to_str()
    return Tokenizer.from_str(TRAINED[asked])


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern, behavior, invert),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


@pytest.fixture
def check(driver, tmp_path):
    def run(tokenizer, texts=None, special=False):
        path = tmp_path / "tokenizer.json"
        tokenizer.save(str(path))
        same(driver, path, tokenizer, texts or random_texts(3000, seed=4), special)
        return path

    return run


@pytest.mark.parametrize("pattern", [LLAMA3, QWEN2], ids=["llama3", "qwen2"])
def test_published_patterns(check, pattern):
    tokenizer = train(split(Regex(pattern)))
    check(tokenizer)
    check(tokenizer, code_point_texts())


@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize(
    "behavior", ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]
)
@pytest.mark.parametrize(
    "pattern",
    [Regex(r"\s"), Regex(r"[\p{L}\s]+"), Regex(r"\P{L}"), Regex(r"[^\S\n]"), Regex(r"[a\S\P{Letter}-]"),
     Regex(r"\p{^Number}"), "'", "a", Regex("a*")],
    ids=str,
)
def test_split(check, pattern, behavior, invert):
    check(train(split(pattern, behavior, invert)), random_texts(500, seed=5))


@functools.cache
def learnt_across_boundaries():
    return train(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)).to_str()


def cut_by(pattern):
    """With a vocabulary in which each boundary that the pattern makes, or does not make, shows."""
    tokenizer = Tokenizer.from_str(learnt_across_boundaries())
    tokenizer.pre_tokenizer = split(Regex(pattern))
    return tokenizer


@pytest.mark.parametrize("pattern", [
    r"\p{N}{1,3}+", "a{,2}", r"\p{N}{2}?", "(?:a|e){1,2}+", "a{,}", "a{", "t{2}{2}", "中{2}?", "a+*",
    r"\p{L}{1,2}*", "[ae]{2}+", r"\s{,2}?", "a++", "e?+", "a{1,2}?", r"\p{N}{1,3}+(?=e)", "(?i:The){2}?",
    r"\x41", r"\x61{1,2}+", r"\x{4e00}|\x{4e2d}", r"[\x30-\x39\x{4e00}-\x{9fff}]{2}?", r"\x6",
    "x(?i)A|b", "(?:th(?i)E|q)u?", "((?i)a|T)+", "(?i)THE",
])  # fmt: skip
def test_repetitions(check, pattern):
    check(cut_by(pattern), random_texts(800, seed=6))


def test_random_repetitions(check):
    rng = random.Random(8)
    atoms = ["a", "[ab1]", r"\p{N}", r"\p{L}", "(?:th|t)", "中", r"\s", "(?>a|ab)", "é", r"\.",
             r"\x61", r"\x{4e2d}", "(?:(?i)T|a)"]
    marks = ["", "", "*", "+", "?", "{2}", "{,2}", "{1,}", "{1,3}"]
    ends = ["", "", "?", "+", "*", "{2}"]
    pick = lambda: rng.choice(atoms) + rng.choice(marks) + rng.choice(ends)  # noqa: E731
    texts = random_texts(60, seed=7)
    for _ in range(120):
        pattern = rng.choice(["", "|"]).join(pick() for _ in range(rng.choice([1, 2, 3])))
        check(cut_by(pattern), texts)


@pytest.mark.parametrize("individual", [False, True])
def test_digits(check, individual):
    digits = pre_tokenizers.Digits(individual_digits=individual)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    check(train(pre_tokenizers.Sequence([digits, byte_level])))


def test_prefix_space(check):
    check(train(pre_tokenizers.ByteLevel(add_prefix_space=True)))


@pytest.mark.parametrize("form", ["NFC", "NFKC"])
def test_normal_forms(check, driver, form):
    tokenizer = train(split(Regex(QWEN2)))
    tokenizer.normalizer = getattr(normalizers, form)()
    check(tokenizer, same_in_unicode_9(random_texts(3000, seed=4), form))
    texts = same_in_unicode_9([*code_point_texts(), *random_texts(5000, seed=6), *composites()], form)
    assert len(texts) > 250_000
    got = [a.decode() for a in driver(form.lower(), records=[t.encode() for t in texts])]
    for text, ours in zip(texts, got):
        assert ours == tokenizer.normalizer.normalize_str(text), ascii(text)


@pytest.mark.parametrize("normalizer", [None, NFC], ids=["plain", "nfc"])
def test_added_tokens(check, normalizer):
    tokenizer = train(pre_tokenizers.ByteLevel(add_prefix_space=False))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    rng = random.Random(8)
    # None begins with white space: behind a token that strips it, the package itself panics.
    contents = ["<s>", "</s>", "<|endoftext|>", "<|im_start|>", "<|end", "the", "the ", "quick",
                "abc", "ab", "é", "e\u0301", "中", "2024", "x1", "'s"]  # fmt: skip
    for content in contents:
        flag = lambda: rng.random() < 0.4  # noqa: E731
        token = AddedToken(content, single_word=flag(), lstrip=flag(), rstrip=flag(), normalized=flag())
        (tokenizer.add_special_tokens if flag() else tokenizer.add_tokens)([token])
    check(tokenizer, same_in_unicode_9(random_texts(3000, seed=4)))


@pytest.mark.parametrize("flags", range(16))
def test_added_token_flags(check, flags):
    tokenizer = train(pre_tokenizers.ByteLevel(add_prefix_space=False))
    names = ["single_word", "lstrip", "rstrip", "normalized"]
    options = {name: bool(flags >> i & 1) for i, name in enumerate(names)}
    tokenizer.add_tokens([AddedToken("<x>", **options), AddedToken("ab", **options)])
    around = ["", " ", "  ", "\n", "a", "_", "1", "é", "\u0301", "\u180e", "\u3000", "<x>", "ab", "."]
    check(tokenizer, [a + m + b for a in around for m in ("<x>", "ab", "<x> ab") for b in around])


def test_single_word_at_code_points(check):
    tokenizer = train(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.add_tokens([AddedToken("<x>", single_word=True)])
    check(tokenizer, ["\n".join(f"{c}<x>.<x>{c}" for c in CODE_POINTS[i : i + 64])
                      for i in range(0, len(CODE_POINTS), 64)])


def test_template(check, driver):
    tokenizer = train(split(Regex(LLAMA3)))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    ids = [("<s>", tokenizer.token_to_id("<s>")), ("</s>", tokenizer.token_to_id("</s>"))]
    template = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ids)
    for processor in (
        template,
        processors.Sequence([processors.ByteLevel(trim_offsets=False), template]),
        processors.RobertaProcessing(ids[1], ids[0]),
    ):
        tokenizer.post_processor = processor
        check(tokenizer, special=True)
        check(tokenizer, special=False)


@pytest.mark.parametrize("form", ["pairs", "strings"])
def test_ignore_merges_and_both_forms_of_merges(driver, tmp_path, form):
    tokenizer = train(split(Regex(LLAMA3)))
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    document = json.loads(path.read_text(encoding="utf-8"))
    model = document["model"]
    model["ignore_merges"] = True
    # A whole word that no merge makes.
    model["vocab"]["Ġquick"] = max(model["vocab"].values()) + 1
    model["merges"] = [m for m in model["merges"] if "".join(m) != "Ġquick"]
    if form == "strings":
        model["merges"] = [" ".join(m) for m in model["merges"]]
    path.write_text(json.dumps(document), encoding="utf-8")
    same(driver, path, Tokenizer.from_file(str(path)), random_texts(2000, seed=9))


@pytest.mark.parametrize("unknown", [None, "<unk>"])
@pytest.mark.parametrize("fuse", [False, True])
def test_missing_byte_symbols(driver, tmp_path, unknown, fuse):
    tokenizer = train(pre_tokenizers.ByteLevel(add_prefix_space=False))
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    document = json.loads(path.read_text(encoding="utf-8"))
    model = document["model"]
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    gone = set(random.Random(10).sample(symbols, 60))
    model["merges"] = [m for m in model["merges"] if not gone & set("".join(m))]
    kept = [t for t in model["vocab"] if not gone & set(t)] + ["<unk>"]
    model["vocab"] = {t: i for i, t in enumerate(kept)}
    model["unk_token"], model["fuse_unk"] = unknown, fuse
    path.write_text(json.dumps(document), encoding="utf-8")
    same(driver, path, Tokenizer.from_file(str(path)), random_texts(5000, seed=11))
