"""Reads GPU machine code: what a kernel needs of an SM, and what its instructions do.

NVIDIA's own readers (cuobjdump, nvdisasm) are not part of every toolkit. This one knows the little
that cubin_check.py asks about, for sm_80 and up. An instruction has 128 bits. The low nine say what
it does and the next three where its operands come from.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import struct
import subprocess
from collections.abc import Collection, Iterator

FATBIN_START = struct.pack("<IHH", 0xBA55ED50, 1, 16)
FATBIN_ELF = 2  # the kind of entry that is machine code; 1 is PTX
FATBIN_COMPRESSED = 0x2000 | 0x8000  # lz4, zstd
EM_CUDA = 190

# Attributes of .nv.info.
MAX_THREADS, FRAME_SIZE, MIN_STACK_SIZE, REGISTERS, INDIRECT_BRANCHES = 0x05, 0x11, 0x12, 0x2F, 0x34
WITH_VALUE = 4  # the format of an attribute that has a value of its own; others are four bytes

# Low nine bits of instructions.
FFMA, IMMA, LDSM, HMMA, FFMA2 = 0x023, 0x037, 0x03B, 0x03C, 0x049
BRA, BRX, EXIT, RET, BRXU = 0x147, 0x149, 0x14D, 0x150, 0x158
LDG_256, STG_256, LD, LDG, LDL, ST, STG, STL, LDGSTS = (
    0x17E, 0x17F, 0x180, 0x181, 0x183, 0x185, 0x186, 0x187, 0x1AE)  # fmt: skip
MULTIPLY = {FFMA, FFMA2, HMMA, IMMA}  # not HFMA2, by which the compiler also sets constants
# LD and ST are generic: the compiler did not see that the address is a global one.
LOADS, STORES, LOCAL = {LDG, LDG_256, LD}, {STG, STG_256, ST}, {LDL, STL}
WIDTHS = (8, 8, 16, 16, 32, 64, 128)  # bits, by bits 73 to 75
VECTOR = 128  # bits: the widest access that all architectures have


def bits(word: int, first: int, count: int) -> int:
    return word >> first & (1 << count) - 1


def signed(value: int, count: int) -> int:
    return value - (1 << count) if value >> (count - 1) else value


@dataclasses.dataclass(frozen=True)
class Instruction:
    word: int
    arch: int

    @property
    def op(self) -> int:
        return bits(self.word, 0, 9)

    @property
    def width(self) -> int:
        """Bits that a load, store or copy moves for a thread."""
        if self.op in (LDG_256, STG_256):
            return 256
        if self.op == LDGSTS and self.arch >= 100:
            return 32 << bits(self.word, 74, 2)
        return WIDTHS[bits(self.word, 73, 3)]

    @property
    def falls_through(self) -> bool:
        """Whether the instruction after this one may be next."""
        # Without a guard (bits 12 to 15) and without another condition (bits 87 to 91).
        always = bits(self.word, 12, 4) == 7 and (bits(self.word, 87, 5) == 7 or self.op == BRXU)
        leaves = self.op in (EXIT, RET, BRX, BRXU) or bits(self.word, 0, 12) == 0x947  # a plain BRA
        return not (always and leaves)

    @property
    def branch_offset(self) -> int:
        """Instructions from the next one to a BRA's target."""
        quarters = signed(bits(self.word, 34, 48), 48)
        if self.arch >= 90:
            quarters = quarters << 8 | bits(self.word, 16, 8)
        return quarters * 4 // 16

    @property
    def sets_barrier(self) -> int:
        """The scoreboard barrier by which others wait for its result; 7 is none."""
        return bits(self.word, 110, 3)

    @property
    def waits_for(self) -> int:
        """The set of scoreboard barriers that it waits for."""
        return bits(self.word, 116, 6)


@dataclasses.dataclass
class Kernel:
    name: str
    arch: int
    registers: int = 0  # of a thread
    local_bytes: int = 0
    static_shared: int = 0
    max_threads: int = 0  # by __launch_bounds__; 0 where it has none
    code: list[Instruction] = dataclasses.field(default_factory=list)
    indirect: dict[int, list[int]] = dataclasses.field(default_factory=dict)

    def count(
        self, ops: Collection[int], width: int = 0, within: Collection[int] | None = None
    ) -> int:
        """Instructions of a kind; of one width; of those in `within`."""
        places = range(len(self.code)) if within is None else within
        found = (self.code[i] for i in places if self.code[i].op in ops)
        return sum(not width or one.width == width for one in found)

    @functools.cached_property
    def loops(self) -> list[set[int]]:
        """Instructions of every loop; outer loops come before those inside them."""
        return list(nested_loops(successors(self), set(range(len(self.code)))))

    @functools.cached_property
    def in_loops(self) -> set[int]:
        return set().union(*self.loops)

    @functools.cached_property
    def own_loops(self) -> list[list[int]]:
        """Loops without the loops inside them."""
        inner = {place: number for number, loop in enumerate(self.loops) for place in loop}
        return [sorted(p for p in loop if inner[p] == n) for n, loop in enumerate(self.loops)]

    @functools.cached_property
    def multiplying_loops(self) -> list[list[int]]:
        """Those that multiply."""
        return [own for own in self.own_loops if any(self.code[p].op in MULTIPLY for p in own)]

    def vectors_in_flight(self, loop: list[int]) -> int:
        """The most 128-bit loads that a thread has under way at a time.

        A load sets a barrier, and who needs its result waits for that; a barrier is waited for with
        all loads that set it. Two passes, since a pass may load what the next one needs.
        """
        pending: collections.Counter[int] = collections.Counter()
        most = 0
        for place in loop * 2:
            one = self.code[place]
            for barrier in [b for b in pending if one.waits_for >> b & 1]:
                del pending[barrier]
            if one.op in LOADS and one.width >= VECTOR:
                pending[one.sets_barrier] += 1
                most = max(most, pending.total())
        return most


def successors(kernel: Kernel) -> list[list[int]]:
    """Instructions that may come after each. Calls come back, so they are like any other."""
    out = []
    for place, one in enumerate(kernel.code):
        after = [place + 1] if one.falls_through and place + 1 < len(kernel.code) else []
        if one.op == BRA:
            after.append(place + 1 + one.branch_offset)
        elif one.op in (BRX, BRXU):
            after += kernel.indirect[place]
        if any(not 0 <= to < len(kernel.code) for to in after):
            at = f"sm_{kernel.arch} {kernel.name}: {place * 16:#x}"
            raise ValueError(f"{at}: a branch that leaves the kernel")
        out.append(after)
    return out


def nested_loops(after: list[list[int]], places: set[int]) -> Iterator[set[int]]:
    """Loops are sets of places that all reach each other, whatever order the compiler put them in;
    loops inside them are what is left of such sets without the place by which they are entered."""
    for loop in cycles(after, places):
        yield loop
        entered = {to for place in places - loop for to in after[place] if to in loop}
        yield from nested_loops(after, loop - {min(entered or loop)})


def cycles(after: list[list[int]], places: set[int]) -> list[set[int]]:
    """The strongly connected components that have a cycle (Kosaraju). A cycle of one instruction is
    no loop but the branch to itself that ends every kernel's code."""
    before = collections.defaultdict(list)
    for place in places:
        for to in after[place]:
            before[to].append(place)

    def visit(root: int, edges, left: set[int]) -> list[int]:
        """What is left and can be reached, in order of leaving it."""
        done, stack = [], [(root, iter(edges[root]))]
        left.remove(root)
        while stack:
            place, rest = stack[-1]
            to = next((to for to in rest if to in left), None)
            if to is None:
                done.append(stack.pop()[0])
            else:
                left.remove(to)
                stack.append((to, iter(edges[to])))
        return done

    left, order = set(places), []
    for place in sorted(places):
        if place in left:
            order += visit(place, after, left)
    left, found = set(places), []
    for place in reversed(order):
        if place in left:
            component = set(visit(place, before, left))
            if len(component) > 1:
                found.append(component)
    return sorted(found, key=min)


def read_kernels(data: bytes) -> list[Kernel]:
    """All kernels of a cubin, or of an object, archive or library with machine code in it."""
    kernels = [kernel for cubin in cubins(data) for kernel in kernels_of(cubin)]
    names = "\n".join(kernel.name for kernel in kernels)
    plain = subprocess.run(["c++filt"], input=names, capture_output=True, text=True, check=True)
    for kernel, name in zip(kernels, plain.stdout.split("\n")):
        kernel.name = short_name(name)
    return kernels


def short_name(name: str) -> str:
    """twell_gather_sm80<Bf16, true, true> of the whole signature."""
    return name.split("(")[0].removeprefix("void ").replace("twell::cuda::", "")


def cubins(data: bytes) -> Iterator[bytes]:
    if data.startswith(b"\x7fELF") and struct.unpack_from("<H", data, 18)[0] == EM_CUDA:
        yield data
        return
    start = -1
    while (start := data.find(FATBIN_START, start + 1)) >= 0:
        at = start + 16
        end = at + struct.unpack_from("<Q", data, start + 8)[0]
        while at < end:
            kind, _, header, size = struct.unpack_from("<HHIQ", data, at)
            (flags,) = struct.unpack_from("<Q", data, at + 40)
            if kind == FATBIN_ELF:
                if flags & FATBIN_COMPRESSED:
                    raise ValueError("machine code is compressed; build it with nvcc --no-compress")
                yield data[at + header : at + header + size]
            at += header + size


def kernels_of(cubin: bytes) -> list[Kernel]:
    (table,) = struct.unpack_from("<Q", cubin, 40)
    flags, _, _, _, _, count, names = struct.unpack_from("<I6H", cubin, 48)
    # The first byte was the architecture until CUDA 12; now the second is.
    arch = flags >> 8 & 0xFF if cubin[7] == 0x41 else flags & 0xFF
    headers = [struct.unpack_from("<IIQQQQII", cubin, table + 64 * i) for i in range(count)]

    def content(header) -> bytes:
        return cubin[header[4] : header[4] + header[5]]

    def string(table: bytes, at: int) -> str:
        return table[at : table.index(b"\0", at)].decode()

    sections = {string(content(headers[names]), header[0]): header for header in headers}
    strings, symbols = content(sections[".strtab"]), content(sections[".symtab"])
    kernels = {}
    for name, header in sections.items():
        if name.startswith(".text."):
            code = struct.iter_unpack("<QQ", content(header))
            kernel = Kernel(name.removeprefix(".text."), arch)
            kernel.code = [Instruction(low | high << 64, arch) for low, high in code]
            kernels[kernel.name] = kernel
    for attribute, value in attributes(content(sections[".nv.info"])):
        if attribute in (REGISTERS, FRAME_SIZE, MIN_STACK_SIZE):
            symbol, number = struct.unpack("<II", value)
            (name,) = struct.unpack_from("<I", symbols, 24 * symbol)
            if kernel := kernels.get(string(strings, name)):
                if attribute == REGISTERS:
                    kernel.registers = number
                else:
                    kernel.local_bytes = max(kernel.local_bytes, number)
    for kernel in kernels.values():
        if shared := sections.get(".nv.shared." + kernel.name):
            # From sm_90 on this has the system's KiB in it.
            kernel.static_shared = max(shared[5] - (1024 if arch >= 90 else 0), 0)
        for attribute, value in attributes(content(sections[".nv.info." + kernel.name])):
            if attribute == MAX_THREADS:
                x, y, z = struct.unpack("<III", value)
                kernel.max_threads = x * y * z
            elif attribute == INDIRECT_BRANCHES:
                kernel.indirect = indirect_branches(value)
        if not kernel.registers:
            raise ValueError(f"sm_{arch} {kernel.name}: its number of registers is not stated")
    return list(kernels.values())


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        kind, attribute, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if kind == WITH_VALUE:
            yield attribute, data[at : at + size]
            at += size


def indirect_branches(data: bytes) -> dict[int, list[int]]:
    """The places that each indirect branch may go to."""
    out, at = {}, 0
    while at < len(data):
        place, _, count = struct.unpack_from("<III", data, at)
        out[place // 16] = [to // 16 for to in struct.unpack_from(f"<{count}I", data, at + 12)]
        at += 12 + 4 * count
    return out


@dataclasses.dataclass(frozen=True)
class Gpu:
    """What an SM has (CUDA C++ Programming Guide, specifications by compute capability)."""

    threads: int
    blocks: int
    shared: int  # KiB; a block may have all but one of them


GPUS = {
    80: Gpu(threads=2048, blocks=32, shared=164),  # A100
    86: Gpu(threads=1536, blocks=16, shared=100),  # A40, GeForce 30
    89: Gpu(threads=1536, blocks=24, shared=100),  # L40S, GeForce 40
    90: Gpu(threads=2048, blocks=32, shared=228),  # H100, H200
    100: Gpu(threads=2048, blocks=32, shared=228),  # B200
    120: Gpu(threads=1536, blocks=24, shared=100),  # GeForce 50
}


def gpus_of(arch: int, built: Collection[int]) -> list[int]:
    """GPUs that run an architecture's machine code: of its major number, and of no better one."""
    return [
        gpu
        for gpu in GPUS
        if arch == max((a for a in built if a // 10 == gpu // 10 and a <= gpu), default=None)
    ]


def blocks_per_sm(gpu: int, threads: int, registers: int, shared: int) -> int:
    """Blocks that an SM of the GPU holds at a time; `shared`: bytes of a block."""
    sm = GPUS[gpu]
    shared = -(-shared // 128) * 128 + 1024  # a KiB of each block is the system's
    if shared > sm.shared << 10:
        return 0
    warps = -(-threads // 32)
    # A warp gets registers by 256, from one of the SM's four quarters of 16,384.
    fitting = 16384 // (-(-registers * 32 // 256) * 256) * 4
    return min(fitting // warps, sm.threads // (warps * 32), sm.blocks, (sm.shared << 10) // shared)
