"""Texts for the comparison with `tokenizers`, and the comparison."""

import functools
import os
import random
import unicodedata

from tokenizers import Regex, normalizers, pre_tokenizers

# Those on which all versions of Unicode agree; fill_code_points() finds them.
CODE_POINTS = []


def fill_code_points(driver):
    """Those assigned in the versions of Unicode that the package, PCRE2, utf8proc and Python are of (of the
    private ones every 97th) and noncharacters."""
    if CODE_POINTS:
        return
    every = "".join(chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF)
    unassigned = pre_tokenizers.Split(Regex(r"\p{Cn}"), "removed")
    theirs = {c for piece, _ in unassigned.pre_tokenize_str(every) for c in piece}
    ours = driver("assigned", records=[every.encode()])[0].decode()
    assigned = [c for c in ours if c in theirs and unicodedata.category(c) != "Cn"]
    assert len(assigned) > 250_000
    public = [c for c in assigned if unicodedata.category(c) != "Co" or ord(c) % 97 == 0]
    nonchars = [c for c in every if ord(c) & 0xFFFE == 0xFFFE or 0xFDD0 <= ord(c) <= 0xFDEF]
    CODE_POINTS[:] = public + nonchars


# Every kind of character that some rule looks at.
ALPHABET = [
    *"abcdefgstmdrevlABCST019 .,;:'\"!?()[]<>|_-\\/\t\n\r\v\f\0\x1b\x7f",
    "  ", "   ", "\n\n", "\r\n", " \n", "'s", "'S", "'re", "'LL", "'ſ", "''", " '", "don't",
    "\x80", "\x85", "\xa0", "\xad", "²", "½", "é", "e\u0301", "ß", "ŉ", "İ", "ſ", "\u0130",
    "\u0300", "\u0345", "\u05d0", "\u0627", "\u0660", "\u0967", "\u0e01", "\u0e33",
    "\u1100\u1161\u11a8", "\uac01", "\uac00\u11a8", "\u1680", "\u180e", "\u2003", "\u2028",
    "\u2029", "\u200b", "\u200d", "\u202f", "\u2160", "\u2192", "\u3000", "中", "文", "かな",
    "\uf900", "\ufb01", "\ufeff", "\uffff", "\U0001d400", "\U0001f600", "\U0001f468\u200d",
    "\U00020000", "\U0002f800", "\U0010ffff", "K", "Å",
    "<|endoftext|>", "<|im_start|>", "<|end", "<s>", "</s>", "the ", " quick", "2024", "x1y",
]  # fmt: skip


@functools.cache
def random_texts(count, seed):
    rng = random.Random(seed)
    texts = ["", " ", "\n", "'", "a", " a", "a ", "  a  "]
    while len(texts) < count:
        length = rng.choice([1, 2, 3, 5, 8, 20, 100])
        pick = lambda: rng.choice(ALPHABET)  # noqa: E731
        if rng.random() < 0.2:
            pick = lambda: rng.choice(CODE_POINTS)  # noqa: E731
        text = "".join(pick() * rng.choice([1, 1, 1, 2, 3]) for _ in range(length))
        texts.append(text.encode("utf-8", "surrogatepass").decode("utf-8", "ignore"))
    return texts


@functools.cache
def code_point_texts():
    """Each code point among letters, digits, spaces and its own kind."""
    return ["\n".join(f"{c}a{c}b{c}1{c}2{c}{c} {c}  {c}" for c in CODE_POINTS[i : i + 64])
            for i in range(0, len(CODE_POINTS), 64)]


# Under the sanitizers, which judge how an answer is computed: that it is right is seen without them, of the
# same texts.
ALONE = "TWELL_WITHOUT_ORACLE" in os.environ


def same(driver, path, oracle, texts, special=False):
    got = driver.encode(path, texts, special)
    if ALONE:
        return
    want = [e.ids for e in oracle.encode_batch(texts, add_special_tokens=special)]
    for text, ours, theirs in zip(texts, got, want):
        assert ours == theirs, repr(text)[:2000]


def same_in_unicode_9(texts, form="NFC"):
    """Without those that have another normal form in the package, whose forms are of Unicode 9, than in
    Python's later version: they must hold a character that is new."""
    theirs = getattr(normalizers, form)()
    out = [text for text in texts if theirs.normalize_str(text) == unicodedata.normalize(form, text)]
    for text in set(texts) - set(out):
        assert any(unicodedata.ucd_3_2_0.category(c) == "Cn" for c in text), ascii(text)
    return out


def composites():
    """Everything that composes: pairs, with marks between and behind, in and out of order."""
    rng = random.Random(7)
    wholes = [c for c in CODE_POINTS if unicodedata.normalize("NFD", c) != c]
    firsts = sorted({unicodedata.normalize("NFD", c)[0] for c in wholes})
    # Those that follow, and the characters beside Hangul's vowels and trailing consonants.
    others = sorted({d for c in wholes for d in unicodedata.normalize("NFD", c)[1:]} | {*"\u1160\u1176\u11a7\u11c3"})
    marks = [c for c in CODE_POINTS if unicodedata.combining(c)]
    yield from (a + b for a in firsts for b in others)
    yield from (a + b for a in marks for b in marks[::11])
    for c in wholes:
        yield from (c, unicodedata.normalize("NFD", c), c + rng.choice(marks), c + rng.choice(others))
    yield "a" + "\u0301\u0323\u0327" * 5000 + "e" + "\u0323\u0301" * 700  # long runs of marks
    for _ in range(100_000):
        pools = rng.choices([wholes, firsts, others, marks], k=rng.randrange(8))
        yield "".join(rng.choice(pool) for pool in pools)
