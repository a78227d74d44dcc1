"""What the comparisons with Python packages share: the driver program."""

import os
import struct
import subprocess

import pytest


class Driver:
    def __init__(self, program):
        self.program = program

    def run(self, *arguments, input_bytes=b""):
        return subprocess.run(
            [self.program, *map(str, arguments)], input=input_bytes, capture_output=True
        )

    def __call__(self, *arguments, records=()):
        """Runs one mode; the answers to the records."""
        stdin = b"".join(struct.pack("<I", len(r)) + r for r in records)
        done = self.run(*arguments, input_bytes=stdin)
        assert done.returncode == 0, done.stderr.decode()
        answers, at = [], 0
        while at < len(done.stdout):
            (length,) = struct.unpack_from("<I", done.stdout, at)
            answers.append(done.stdout[at + 4 : at + 4 + length])
            at += 4 + length
        return answers

    def encode(self, tokenizer, texts, special=False):
        mode = "encode-special" if special else "encode"
        answers = self(mode, tokenizer, records=[t.encode() for t in texts])
        assert len(answers) == len(texts)
        return [list(struct.unpack(f"<{len(a) // 4}i", a)) for a in answers]

    def decode(self, tokenizer, id_lists, mode="decode"):
        records = [struct.pack(f"<{len(ids)}i", *ids) for ids in id_lists]
        answers = self(mode, tokenizer, records=records)
        assert len(answers) == len(id_lists)
        return [a.decode() for a in answers]


@pytest.fixture(scope="session")
def driver():
    program = os.environ.get("TWELL_IO_DRIVER")
    if not program:
        pytest.skip("TWELL_IO_DRIVER does not name the driver program")
    return Driver(program)
