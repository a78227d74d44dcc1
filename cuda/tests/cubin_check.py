"""Holds the kernels' machine code against what their design counts on; needs no GPU.

    cubin_check.py FILE     FILE: libtwell_cuda, or an object of it; prints each kernel's figures
"""

from __future__ import annotations

import dataclasses
import fnmatch
import pathlib
import sys
from collections.abc import Iterator, Sequence

import cubin
from cubin import LDGSTS, LOADS, LOCAL, VECTOR, Kernel

NARROW = sorted({width for width in cubin.WIDTHS if width < VECTOR})


@dataclasses.dataclass(frozen=True)
class Design:
    """What the design of the kernels of a name counts on."""

    kernel: str  # pattern of names
    blocks: dict[int, int]  # threads of a block → blocks that an SM must hold at least
    shared: int | dict[int, int] = 0  # bytes of dynamic shared memory; threads → bytes
    gpus: Sequence[int] = tuple(cubin.GPUS)
    # Where rows are aligned, loops read them by 128 bits and those that multiply read nothing else.
    loads: int = 0  # such loads in the text of all loops, at least
    copies: int = 0  # such copies from global to shared memory (LDGSTS)
    in_flight: int = 0  # such loads that a thread has under way, in each loop that multiplies
    # Likewise, in the best of all loops: what it loads may be multiplied in loops that read nothing.
    ahead: int = 0

    @property
    def aligned(self) -> bool:
        return self.loads + self.copies > 0


def tiles(name: str, blocks: dict[int, int], shared: int, **more) -> Design:
    return Design(f"gemm_relu_twell_sm80<*, GemmTiles<{name}", blocks, shared, **more)


def stream(name: str, blocks: dict[int, int], tokens: int, neurons: int = 32, **more) -> Design:
    shared = 8 * tokens * (neurons + 1) * 4 + tokens * (neurons + 8) * 2  # sums and staged
    return Design(f"gemm_relu_twell_stream_sm80<*, StreamTiles<{name}", blocks, shared, **more)


# One row for every kernel, and a kernel for every row. Where a source says what it counts on, the
# figure is that one: cuda/kernels/shapes.h, the heads of the kernels, cuda/ops/plan_*.cc.
# What is "correct, not fast" (rows that are not aligned) must run, and no more.
INPUTS = 2 * 256 * 16  # bytes of x that dot products read
ACTIVE_LIST = INPUTS + 4 * (1028 + 32 + 3 * 256 + 2 + 4) + 8  # 1025 offsets; a multiple of 16
# And sums of up to 2,048 and 8,192 columns.
GATHER_SHARED = {128: ACTIVE_LIST + 4 * 2048, 256: ACTIVE_LIST + 4 * 8192}
GATHERS = {128: 4, 256: 2}
TRANSPOSE_SHARED = 1024 * 8 + 4 * 1024 + 2 * 4 * 32  # counts, starts, sums of warps
# A run of every warp; for 24 tokens, which every GPU has room for.
SCREEN_SHARED = 8 * 8192 + 24 * (8 * (36 * 4 + 16) + 32 * 2 + 40 * 2) + 3 * 32 * 4 + 16
DESIGNS = (
    tiles("64, 64, 32, 32, 4>, true>", {128: 1}, 64 << 10, copies=8),
    tiles("64, 64, 32, 32, 4>, false>", {128: 1}, 64 << 10),
    tiles("128, 128, 64, 64, 3>, true>", {128: 1}, 96 << 10, copies=16),
    # Loads of a pass: of W 8, of x a vector for each 8 tokens and 32 inputs.
    stream("8, 16, 128, 3>, true>", {256: 3}, 8, 16, loads=12, in_flight=12),
    stream("16, 32, 64, 2>, true>", {256: 2}, 16, loads=12, in_flight=12),
    stream("32, 32, 64, 2>, true>", {256: 2}, 32, loads=16, in_flight=15),
    stream("32, 32, 64, 2>, false>", {256: 1}, 32),
    # Of a run 16 copies; of x and the axis 8 each (that of the axis may come before the loop over
    # tokens); of candidates 8, and of x as many.
    Design(
        "screen_relu_twell_sm80<*, true>",
        {256: 1},
        SCREEN_SHARED,
        loads=32,
        copies=16,
        in_flight=8,
        ahead=16,
    ),
    Design("screen_relu_twell_sm80<*, false>", {256: 1}, SCREEN_SHARED),
    Design("make_screen_sm80<*>", {256: 1}),
    # Of Wu 2 rows of 8, of Wd 4 rows of 2; of x 1 or 2.
    Design("twell_gather_sm80<*, true, true>", GATHERS, GATHER_SHARED, loads=25, in_flight=8),
    Design("twell_gather_sm80<*, false, true>", GATHERS, GATHER_SHARED, loads=8, in_flight=8),
    Design("twell_gather_sm80<*, false>", GATHERS, GATHER_SHARED),
    Design("gather_rows_sm80<*, true, true>", GATHERS, GATHER_SHARED, loads=25, in_flight=8),
    Design("gather_rows_sm80<*, false, true>", GATHERS, GATHER_SHARED, loads=8, in_flight=8),
    Design("gather_rows_sm80<*, false>", GATHERS, GATHER_SHARED),
    Design("pack_gate_sm80<*, true>", {128: 8}, ahead=2),
    Design("pack_gate_sm80<*, false>", {128: 8}),
    Design("hot_product_sm80<*>", {256: 6}),
    Design("twell_to_dense_kernel", {128: 1}),
    # Training. Of Wd, and where nothing was kept of Wg and Wu, 2 rows of 8; of Wg and of Wu 4 rows
    # of 2. Loops that read nothing compute gradients of places.
    Design(
        "backward_rows_sm80<*, true, true>", GATHERS, GATHER_SHARED, loads=49, in_flight=8, ahead=16
    ),
    Design(
        "backward_rows_sm80<*, false, true>", GATHERS, GATHER_SHARED, loads=41, in_flight=8, ahead=16
    ),
    Design("backward_rows_sm80<*, false>", GATHERS, GATHER_SHARED),
    # Of x and dy 4 rows of 2 each.
    Design("backward_neurons_sm80<*, true>", {128: 3}, loads=16, in_flight=16),
    Design("backward_neurons_sm80<*, false>", {128: 2}),
    Design("count_fired_sm80", {256: 4}, TRANSPOSE_SHARED),
    Design("place_fired_sm80", {256: 4}, TRANSPOSE_SHARED),
    Design("order_neurons_sm80", {128: 8}),
    Design("scan_rows_sm80", {1024: 1}, 4 * 32),
    Design("hot_backward_sm80<*>", {256: 4}),
    Design("absolute_sums_sm80<*>", {256: 6}),
)


@dataclasses.dataclass(frozen=True)
class Offence:
    where: str  # sm_80 for machine code, 8.0 for a GPU
    kernel: str
    what: str

    def __str__(self) -> str:
        return f"{self.where} {self.kernel}: {self.what}"


@dataclasses.dataclass(frozen=True)
class Miss:
    """Offences that are known, all patterns. One that is not met any more has to be removed."""

    where: tuple[str, ...]
    kernel: str
    what: str
    why: str


MISSES: tuple[Miss, ...] = ()


def gpu_name(gpu: int) -> str:
    return f"{gpu // 10}.{gpu % 10}"


def code_offences(kernel: Kernel, design: Design) -> Iterator[str]:
    if kernel.local_bytes or kernel.count(LOCAL):
        yield f"{kernel.local_bytes} bytes of local memory, {kernel.count(LOCAL)} accesses"
    for threads in design.blocks:
        if kernel.max_threads and threads > kernel.max_threads:
            yield f"blocks of {threads} threads, compiled for {kernel.max_threads}"
    most = max(map(kernel.vectors_in_flight, kernel.own_loops), default=0)
    if most < design.ahead:
        yield f"{most} loads of {VECTOR} bits in flight in its best loop, expected {design.ahead}"
    if not design.aligned:
        return
    loads = kernel.count(LOADS, VECTOR, kernel.in_loops)
    if loads < design.loads:
        yield f"{loads} loads of {VECTOR} bits in its loops, expected {design.loads}"
    copies = kernel.count({LDGSTS}, VECTOR, kernel.in_loops)
    if copies < design.copies:
        yield f"{copies} copies of {VECTOR} bits in its loops, expected {design.copies}"
    if not kernel.multiplying_loops:
        yield "no loop multiplies, as far as cubin.py knows instructions"
    for loop in kernel.multiplying_loops:
        reads = LOADS | {LDGSTS}
        if design.ahead and not kernel.count(reads, 0, loop):
            continue  # what it multiplies was loaded around it
        if narrow := sum(kernel.count(reads, width, loop) for width in NARROW):
            yield f"{narrow} reads of less than {VECTOR} bits in a loop that multiplies"
        if (flying := kernel.vectors_in_flight(loop)) < design.in_flight:
            yield f"{flying} loads of {VECTOR} bits in flight, expected {design.in_flight}"


def occupancy_offences(kernel: Kernel, design: Design, gpu: int) -> Iterator[str]:
    for threads, least in design.blocks.items():
        dynamic = design.shared if isinstance(design.shared, int) else design.shared[threads]
        shared = kernel.static_shared + dynamic
        blocks = cubin.blocks_per_sm(gpu, threads, kernel.registers, shared)
        if blocks < least:
            yield (
                f"{blocks} blocks of {threads} threads an SM, expected {least}"
                f" ({kernel.registers} registers, {shared} bytes shared)"
            )


def check(kernels: Sequence[Kernel], designs: Sequence[Design]) -> list[Offence]:
    found = []
    built = {kernel.arch for kernel in kernels}
    for arch in built:
        if not cubin.gpus_of(arch, built):
            found.append(Offence(f"sm_{arch}", "all", "cubin.GPUS knows no GPU that runs this"))
    for design in designs:
        if not any(fnmatch.fnmatchcase(kernel.name, design.kernel) for kernel in kernels):
            found.append(Offence("all", design.kernel, "there is no such kernel"))
    for kernel in kernels:
        rows = [design for design in designs if fnmatch.fnmatchcase(kernel.name, design.kernel)]
        where = f"sm_{kernel.arch}"
        if len(rows) != 1:
            found.append(Offence(where, kernel.name, f"has {len(rows)} rows in DESIGNS"))
            continue
        design = rows[0]
        found += [Offence(where, kernel.name, what) for what in code_offences(kernel, design)]
        for gpu in set(cubin.gpus_of(kernel.arch, built)) & set(design.gpus):
            what = occupancy_offences(kernel, design, gpu)
            found += [Offence(gpu_name(gpu), kernel.name, one) for one in what]
    return found


def known(offence: Offence, miss: Miss) -> bool:
    return (
        offence.where in miss.where
        and fnmatch.fnmatchcase(offence.kernel, miss.kernel)
        and fnmatch.fnmatchcase(offence.what, miss.what)
    )


def report(
    kernels: Sequence[Kernel], designs: Sequence[Design], misses: Sequence[Miss]
) -> list[str]:
    """What is wrong: offences that are not known, and misses that there are no more."""
    found = check(kernels, designs)
    built = {kernel.arch for kernel in kernels}
    places = {f"sm_{arch}" for arch in built}
    places |= {gpu_name(gpu) for arch in built for gpu in cubin.gpus_of(arch, built)}
    out = [str(one) for one in found if not any(known(one, miss) for miss in misses)]
    for miss in misses:
        for where in sorted(set(miss.where) & places):
            here = dataclasses.replace(miss, where=(where,))
            if not any(known(one, here) for one in found):
                out.append(f"{where} {miss.kernel}: '{miss.what}' is over; remove it from MISSES")
    return out


def describe(kernel: Kernel) -> str:
    loops = [
        f"{len(loop)} instructions, {kernel.count(LOADS, 0, loop)} loads"
        f" ({kernel.count(LOADS, VECTOR, loop)} of {VECTOR} bits,"
        f" {kernel.vectors_in_flight(loop)} in flight), {kernel.count({LDGSTS}, 0, loop)} copies"
        for loop in kernel.multiplying_loops
    ]
    return (
        f"sm_{kernel.arch} {kernel.name}: {kernel.registers} registers,"
        f" {kernel.local_bytes} bytes local, {kernel.static_shared} bytes shared,"
        f" {len(kernel.code)} instructions; loops that multiply: " + ("; ".join(loops) or "none")
    )


def main() -> int:
    kernels = cubin.read_kernels(pathlib.Path(sys.argv[1]).read_bytes())
    print("\n".join(describe(kernel) for kernel in kernels))
    wrong = report(kernels, DESIGNS, MISSES)
    print("\n".join([*wrong, f"{len(kernels)} kernels, {len(wrong)} offences"]))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
