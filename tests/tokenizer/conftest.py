"""The driver program of the comparison with `tokenizers`."""

import struct

import driver_records
import pytest


class Driver(driver_records.Driver):
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
    return Driver.named_by("TWELL_TOKENIZER_DRIVER")
