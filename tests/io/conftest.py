"""What the comparisons with Python packages share: the driver program."""

import os
import struct
import subprocess

import pytest
from driver_records import from_records, to_records


class Driver:
    def __init__(self, program):
        self.program = program

    def run(self, *arguments, input_bytes=b""):
        return subprocess.run(
            [self.program, *map(str, arguments)], input=input_bytes, capture_output=True
        )

    def __call__(self, *arguments, records=()):
        """Runs one mode; the answers to the records."""
        done = self.run(*arguments, input_bytes=to_records(records))
        assert done.returncode == 0, done.stderr.decode()
        return from_records(done.stdout)

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
