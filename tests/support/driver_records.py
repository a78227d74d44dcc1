"""What the driver programs read and write: records of a length (u32) and that many bytes."""

import os
import struct
import subprocess

import pytest


def to_records(values):
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


def from_records(data):
    out, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<I", data, at)
        out.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    return out


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

    @classmethod
    def named_by(cls, variable):
        program = os.environ.get(variable)
        if not program:
            pytest.skip(f"{variable} does not name the driver program")
        return cls(program)
