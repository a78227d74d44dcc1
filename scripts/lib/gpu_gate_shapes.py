"""The lines `gate_shape` of twell_gpu_bench: what plans assume of each shape of the gate GEMM, and what it took.

By them a GPU model's plans are corrected, in cuda/ops/plan_gemm.cc: a rate is the share of what mma.sync can reach.
"""

# A shape that is faster by less may be so by chance.
NOISE = 1.05
SCREEN = "screen"


def table_of(lines: list[dict]) -> list[str]:
    """Rows of text, one for each shape and number of tokens that was measured; none without any."""
    measured = [line for line in lines if line.get("kind") == "gate_shape" and "us" in line]
    if not measured:
        return []
    out = ["gate shapes (a rate is the share of what mma.sync can reach; * marks what a plan takes):"]
    out.append(f"{'tokens':>9}  {'shape':<16}{'assumed':>12}{'measured':>12}{'rate':>7}{'reached':>9}")
    for line in measured:
        assumed = f"{line['assumed_us']:.1f} µs" if "assumed_us" in line else ""
        rates = f"{line['rate']:>7.2f}{line['rate_reached']:>9.2f}" if "rate_reached" in line else " " * 16
        mark = "  *" if line.get("planned") else ""
        us = f"{line['us']:.1f} µs"
        out.append(f"{line['tokens']:>9}  {line['shape']:<16}{assumed:>12}{us:>12}{rates}{mark}".rstrip())
    return out + [
        message
        for tokens in dict.fromkeys(line["tokens"] for line in measured)
        for message in lost_by_plans([line for line in measured if line["tokens"] == tokens])
    ]


def lost_by_plans(lines: list[dict]) -> list[str]:
    """Where a plan takes another shape than the fastest, of lines of the same number of tokens: of a gate as it is, and
    of one with a screen."""
    plain = [line for line in lines if not line["shape"].startswith(SCREEN)]
    screens = [line for line in lines if line["shape"].startswith(SCREEN)]
    out = message_of(plain, chosen_of(plain), "")
    if screens:
        out += message_of(lines, chosen_of(screens) or chosen_of(plain), " with a screen")
    return list(dict.fromkeys(out))


def chosen_of(lines: list[dict]) -> dict | None:
    return next((line for line in lines if line.get("planned")), None)


def message_of(lines: list[dict], chosen: dict | None, which: str) -> list[str]:
    if chosen is None:
        return []
    fastest = min(lines, key=lambda line: line["us"])
    factor = chosen["us"] / fastest["us"]
    if factor <= NOISE:
        return []
    return [
        f"plan to correct: {chosen['tokens']} tokens{which}: takes {chosen['shape']} ({chosen['us']:.1f} µs), "
        f"{fastest['shape']} is {factor:.2f} times as fast ({fastest['us']:.1f} µs)"
    ]
