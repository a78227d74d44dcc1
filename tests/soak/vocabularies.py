"""Random tokenizers on random texts, id for id against the package `tokenizers`."""

import concurrent.futures
import json
import multiprocessing
import struct
import subprocess

from driver_records import from_records, to_records
from tools import Broken

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
# To refuse a file, and a text: backtracking that doubles with every character is cut off.
REASONS = ("not supported", "a pattern takes too many steps on this text")
# Characters of every kind that all versions of Unicode agree upon.
PIECES = ["a", "b", "e", "th", "the ", " quick", "T", "É", "é", "ß", "中", "文", "かな", "1", "23", "2024",
          " ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "'s", "'LL", "!", "...", "-", "_", "(", "\\",
          "e\u0301", "\u0301", "\U0001f600", "<s>", "</s>", "<|end|>", "<|end", "²", "Ⅳ", "\u200b", "▁", "▁the",
          "<0x41>", "<unk>"]  # fmt: skip
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def text_of(rng, longest=60):
    return "".join(rng.choice(PIECES) * rng.choice([1, 1, 1, 2, 4]) for _ in range(rng.randrange(longest)))


def pattern_of(rng):
    if rng.random() < 0.2:
        return LLAMA3
    atoms = ["a", "e", "[ab1]", r"\p{N}", r"\p{L}", r"\p{Lu}", "(?:th|t)", "中", r"\s", r"\S", "(?>a|ab)",
             "é", r"\.", r"[^\s\p{L}]", r"[\r\n]", r"\d", "(?i:the)", r"\p{P}", "'"]  # fmt: skip
    marks = ["", "", "", "*", "+", "?", "{2}", "{,2}", "{1,}", "{1,3}"]
    ends = ["", "", "", "?", "+", "*", "{2}"]
    looks = ["", "", "", r"(?=\s)", r"(?!\S)", "(?<=a)", "(?<!a)"]
    one = lambda: rng.choice(atoms) + rng.choice(marks) + rng.choice(ends)  # noqa: E731
    return "".join(one() + rng.choice(looks) + rng.choice(["", "|"]) for _ in range(rng.randrange(4))) + one()


class Vocabularies:
    name = "tokenizers"
    promise = "Token ids and decoded text are those of the package `tokenizers`, or it is refused in a line"

    def __init__(self, tools, scratch, rng):
        self.tools = tools
        self.rounds = self.refused = 0
        # A process of its own, now and then a fresh one: the package keeps 7 MB a round, and the peak
        # memory of a command, which other attacks look at, is at least that of the process it is
        # started from.
        self.pool = concurrent.futures.ProcessPoolExecutor(
            1, mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=40)

    def round(self, rng, scratch):
        tries = self.pool.submit(compare, self.tools, rng, scratch).result()
        self.rounds += 1
        if tries is None:
            self.refused += 1
            if self.refused > 5 + self.rounds / 10:
                raise Broken(f"refused {self.refused} of {self.rounds} tokenizers")
        return tries or 1


def of_characters(rng):
    """As those that come from SentencePiece."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    def some(*steps, least=0):
        return [step for step in steps if rng.random() < 0.5] or list(steps[:least])

    flag = lambda: rng.random() < 0.5  # noqa: E731
    out = Tokenizer(models.BPE(unk_token=rng.choice([None, "<unk>"]), fuse_unk=flag(), byte_fallback=True))
    out.pre_tokenizer = pre_tokenizers.Metaspace()
    out.train_from_iterator([text_of(rng, 400) for _ in range(30)], trainers.BpeTrainer(
        vocab_size=rng.choice([300, 400, 700]), show_progress=False, limit_alphabet=rng.choice([15, 60]),
        special_tokens=["<unk>", *rng.sample(BYTES, rng.choice([0, 200, 256]))]))
    document = json.loads(out.to_str())
    document["added_tokens"] = []
    document["model"]["ignore_merges"] = rng.random() < 0.2
    out = Tokenizer.from_str(json.dumps(document))
    space = normalizers.Replace(" ", "▁")
    out.normalizer = normalizers.Sequence(some(
        rng.choice([normalizers.NFC(), normalizers.NFKC()]), normalizers.Replace(Regex(pattern_of(rng)), "x"),
        normalizers.Prepend("▁"), space))
    kinds = [None, pre_tokenizers.Split(Regex(pattern_of(rng)), "isolated"),
             pre_tokenizers.Metaspace(prepend_scheme=rng.choice(["always", "never"]), split=flag())]  # fmt: skip
    if flag():
        out.normalizer = None
        kinds.append(pre_tokenizers.Metaspace(prepend_scheme="first", split=flag()))
    out.pre_tokenizer = rng.choice(kinds)
    steps = [decoders.Replace("▁", " "), decoders.Metaspace(prepend_scheme=rng.choice(["always", "never"])),
             decoders.ByteFallback(), decoders.Strip(" ", rng.randrange(3), 0)]  # fmt: skip
    rng.shuffle(steps)
    steps = some(*steps, least=1) + rng.choice([[], [decoders.Fuse(), decoders.Strip(" ", 1, 0)]])
    out.decoder = decoders.Sequence(steps)
    return out


def of_bytes(rng):
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    learn = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=rng.random() < 0.4)
    out = Tokenizer(models.BPE())
    out.pre_tokenizer = learn
    sample = [text_of(rng, 400) for _ in range(30)]
    out.train_from_iterator(sample, trainers.BpeTrainer(
        vocab_size=rng.choice([300, 500, 900]), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    steps = []
    for _ in range(rng.choice([0, 1, 1, 2])):
        behavior = rng.choice(["removed", "isolated", "merged_with_previous", "merged_with_next",
                               "contiguous"])
        steps.append(pre_tokenizers.Split(Regex(pattern_of(rng)), behavior, rng.random() < 0.3))
    if rng.random() < 0.2:
        steps.append(pre_tokenizers.Digits(rng.random() < 0.5))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=rng.random() < 0.3,
                                          use_regex=rng.random() < 0.3))
    out.pre_tokenizer = pre_tokenizers.Sequence(steps)
    out.decoder = decoders.ByteLevel()
    if rng.random() < 0.3:
        out.normalizer = normalizers.NFC()
    return out


def tokenizer_of(rng):
    from tokenizers import AddedToken

    out = rng.choice([of_bytes, of_characters])(rng)
    flag = lambda: rng.random() < 0.3  # noqa: E731
    out.add_tokens([
        AddedToken(word, special=flag(), lstrip=flag(), rstrip=flag(), single_word=flag(),
                   normalized=flag())
        for word in ["<s>", "</s>", "<|end|>"] if flag()])
    return out


def ask(tools, mode, path, records):
    done = subprocess.run([tools.tokenizer_driver, mode, path], input=to_records(records),
                          capture_output=True, timeout=120)
    if done.returncode < 0:
        raise Broken(f"{mode} {path}: signal {-done.returncode}")
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        if "\n" in said or not any(reason in said for reason in REASONS):
            raise Broken(f"{mode} {path}: refused without a reason of ours: {said[-500:]!r}")
        return None
    return from_records(done.stdout)


def compare(tools, rng, scratch):
    """The number of texts compared, or nothing where the tokenizer was refused."""
    oracle = tokenizer_of(rng)
    path = scratch / "tokenizer.json"
    oracle.save(str(path))
    texts = [text_of(rng) for _ in range(150)]
    answers = ask(tools, "encode", path, [t.encode() for t in texts])
    if answers is None:
        return None
    try:
        want = [e.ids for e in oracle.encode_batch(texts, add_special_tokens=False)]
    except BaseException as error:  # as PyO3 hands on a panic, which is no Exception
        if type(error).__name__ != "PanicException":
            raise
        return 1  # the package gives up on this pattern: nothing to compare with
    for text, got, ids in zip(texts, answers, want):
        if list(struct.unpack(f"<{len(got) // 4}i", got)) != ids:
            raise Broken(f"other ids for {text!r} with {path}")
    decoded = ask(tools, "decode", path, [struct.pack(f"<{len(i)}i", *i) for i in want])
    for ids, got in zip(want, decoded):
        if got.decode() != oracle.decode(ids, skip_special_tokens=False):
            raise Broken(f"other text for {ids}")
    return 2 * len(texts)


