"""The kernels' machine code as built here against their design, and the checker against probes."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import struct
import subprocess

import pytest
from cubin import (
    BRX,
    BRXU,
    FATBIN_ELF,
    FATBIN_START,
    GPUS,
    HMMA,
    IMMA,
    LDGSTS,
    LDL,
    LDSM,
    LOADS,
    STL,
    STORES,
    Kernel,
    blocks_per_sm,
    cubins,
    gpus_of,
    read_kernels,
    short_name,
)
from cubin_check import DESIGNS, MISSES, Design, Miss, check, report


def needed(name: str) -> str:
    """A path that the build gives."""
    if name not in os.environ:
        pytest.skip(f"{name} is not set: ctest sets it in a build of the CUDA kernels")
    return os.environ[name]


@pytest.fixture(scope="module")
def built() -> list[Kernel]:
    return read_kernels(pathlib.Path(needed("TWELL_CUDA_LIBRARY")).read_bytes())


def test_kernels_are_as_designed(built: list[Kernel]) -> None:
    wrong = report(built, DESIGNS, MISSES)
    assert not wrong, "\n".join(wrong)


def test_every_architecture_has_every_kernel(built: list[Kernel]) -> None:
    names = {kernel.name for kernel in built}
    for arch in {kernel.arch for kernel in built}:
        of_arch = [kernel.name for kernel in built if kernel.arch == arch]
        assert sorted(of_arch) == sorted(names)


# Instructions differ most between these two.
@pytest.fixture(scope="module", params=[80, 100])
def probes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Kernel]:
    source = pathlib.Path(__file__).with_name("cubin_probes.cu")
    cubin = tmp_path_factory.mktemp("probes") / "probes.cubin"
    flags = ["-cubin", "-std=c++20", f"-arch=sm_{request.param}"]
    subprocess.run([needed("TWELL_NVCC"), *flags, "-o", cubin, source], check=True)
    return {kernel.name: kernel for kernel in read_kernels(cubin.read_bytes())}


def test_reads_what_a_kernel_needs(probes: dict[str, Kernel]) -> None:
    assert probes["four_in_flight"].max_threads == 256
    assert probes["one_in_flight"].max_threads == 0
    assert probes["spills"].registers <= 32
    assert probes["widths"].static_shared == 5008
    assert probes["local_array"].local_bytes == 256
    assert {kernel.arch for kernel in probes.values()} <= GPUS.keys()


def test_counts_accesses_by_width(probes: dict[str, Kernel]) -> None:
    for width in (8, 16, 32, 64, 128):
        assert probes["widths"].count(LOADS, width) == probes["widths"].count(STORES, width) == 1
    assert [probes["tensor"].count({LDGSTS}, width) for width in (32, 64, 128)] == [1, 1, 2]
    assert [probes["tensor"].count({op}) for op in (LDSM, HMMA, IMMA)] == [3, 2, 1]
    for name, kernel in probes.items():
        expected = name in ("local_array", "spills")
        assert [kernel.count({op}) > 0 for op in (LDL, STL)] == [expected, expected]


def test_finds_loops(probes: dict[str, Kernel]) -> None:
    narrow = probes["narrow"]
    adds, outer, inner = narrow.loops
    assert inner < outer and not adds & outer
    assert [narrow.count(LOADS, 32, loop) for loop in narrow.loops] == [1, 2, 1]
    assert narrow.multiplying_loops == [sorted(inner)]
    assert not probes["widths"].loops


def test_follows_a_table_of_branches(probes: dict[str, Kernel]) -> None:
    table = probes["table"]
    assert table.count({BRX, BRXU}, within=table.in_loops) > 0
    # All eight cases, each of which reads and writes one word, belong to the loop.
    assert table.count(STORES) == table.count(STORES, within=table.in_loops) == 8
    assert table.count(LOADS, within=table.loops[0]) == 9


def test_counts_loads_in_flight(probes: dict[str, Kernel]) -> None:
    for name, expected in (("four_in_flight", 4), ("one_in_flight", 1)):
        kernel = probes[name]
        (loop,) = kernel.multiplying_loops
        assert kernel.count(LOADS, 128, loop) == 4
        assert kernel.vectors_in_flight(loop) == expected


WIDE = Design("four_in_flight", {256: 8}, gpus=(80, 100), loads=4, in_flight=4)
FLAGGED = [
    (WIDE, ""),
    (dataclasses.replace(WIDE, loads=5), "4 loads of 128 bits in its loops"),
    (dataclasses.replace(WIDE, in_flight=5), "4 loads of 128 bits in flight"),
    (dataclasses.replace(WIDE, copies=1), "0 copies of 128 bits"),
    (dataclasses.replace(WIDE, blocks={256: 9}), "blocks of 256 threads an SM, expected 9"),
    (dataclasses.replace(WIDE, blocks={512: 1}), "512 threads, compiled for 256"),
    (dataclasses.replace(WIDE, shared=60 << 10, blocks={256: 4}), "blocks of 256 threads an SM"),
    (Design("one_in_flight", {256: 1}, loads=4, in_flight=4), "1 loads of 128 bits in flight"),
    (dataclasses.replace(WIDE, ahead=4), ""),
    (Design("one_in_flight", {256: 1}, ahead=2), "1 loads of 128 bits in flight in its best loop"),
    (Design("narrow", {256: 1}, loads=1), "1 reads of less than 128 bits in a loop that mult"),
    (Design("narrow", {256: 1}), ""),
    (Design("widths", {256: 1}, loads=1), "no loop multiplies"),
    (Design("local_array", {256: 1}), "256 bytes of local memory"),
    (Design("spills", {1024: 2}, gpus=(80, 100)), "of local memory"),
]


@pytest.mark.parametrize(("design", "expected"), FLAGGED)
def test_flags_what_is_not_as_designed(
    probes: dict[str, Kernel], design: Design, expected: str
) -> None:
    found = check([probes[design.kernel]], [design])
    if expected:
        assert any(expected in str(offence) for offence in found), found
    else:
        assert not found


def test_table_and_kernels_have_to_match(probes: dict[str, Kernel]) -> None:
    wide = [probes["four_in_flight"]]
    (missing,) = check(wide, [WIDE, Design("gone", {32: 1})])
    assert str(missing) == "all gone: there is no such kernel"
    (unknown, *_) = check([*wide, probes["widths"]], [WIDE])
    assert "widths: has 0 rows" in str(unknown)
    twice = check(wide, [WIDE, Design("four*", {32: 1})])
    assert "has 2 rows" in str(twice[0])
    (arch,) = check([dataclasses.replace(probes["widths"], arch=70)], [Design("widths", {32: 1})])
    assert "no GPU that runs this" in str(arch)


def test_known_misses_are_neither_hidden_nor_kept(probes: dict[str, Kernel]) -> None:
    kernel = probes["one_in_flight"]
    design = Design("one_in_flight", {32: 1}, loads=4, in_flight=4)
    here = (f"sm_{kernel.arch}",)
    assert len(report([kernel], [design], [])) == 1
    assert not report([kernel], [design], [Miss(here, "one*", "1 loads *", "")])
    # One of another figure hides nothing, and is reported; one of code that is not built is not.
    assert len(report([kernel], [design], [Miss(here, "one*", "2 loads *", "")])) == 2
    assert len(report([kernel], [design], [Miss(("sm_90",), "one*", "1 loads *", "")])) == 1


# GPU, threads, registers, bytes of shared memory; blocks by NVIDIA's calculator (cuda_occupancy.h).
OCCUPANCY = [
    (80, 32, 16, 0, 32),  # as many as an SM has at all
    (86, 32, 16, 0, 16),
    (120, 32, 16, 0, 24),
    (80, 96, 168, 0, 4),  # registers of four quarters: 12 warps
    (86, 160, 40, 0, 9),  # threads
    (89, 1024, 65, 0, 0),
    (90, 512, 102, 7304, 1),
    (100, 512, 64, 7304, 2),
    (80, 128, 80, 65536, 2),  # shared memory
    (90, 128, 80, 65536, 3),
    (120, 128, 80, 65536, 1),
    (86, 128, 32, 101376, 1),  # all that a block may have
    (86, 128, 32, 101377, 0),
]


@pytest.mark.parametrize("case", OCCUPANCY)
def test_occupancy(case: tuple[int, ...]) -> None:
    assert blocks_per_sm(*case[:4]) == case[4]


def test_gpus_run_code_of_their_major_number() -> None:
    assert gpus_of(80, {80, 90, 100, 120}) == [80, 86, 89]
    assert gpus_of(80, {80, 86}) == [80]
    assert gpus_of(86, {80, 86}) == [86, 89]
    assert gpus_of(75, {75}) == []


def test_names_are_short() -> None:
    name = "void twell::cuda::kernel<twell::cuda::Bf16, 64, true>(twell::cuda::Args)"
    assert short_name(name) == "kernel<Bf16, 64, true>"


def fatbin(flags: int) -> bytes:
    """An entry of PTX and one of machine code."""
    out = b""
    for kind, content in ((1, b"ptx"), (FATBIN_ELF, b"code")):
        out += struct.pack("<HHIQ24xQ16x", kind, 0x101, 64, len(content), flags) + content
    return b"before" + FATBIN_START + struct.pack("<Q", len(out)) + out + b"after"


def test_takes_machine_code_out_of_a_library() -> None:
    assert list(cubins(fatbin(0) + fatbin(0))) == [b"code", b"code"]
    for flags in (0x2000, 0x8000):
        with pytest.raises(ValueError, match="compressed"):
            list(cubins(fatbin(flags)))
