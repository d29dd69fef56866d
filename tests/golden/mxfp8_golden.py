#!/usr/bin/env python3
"""Writes mxfp8.golden: MXFP8 made by an implementation that is not ours (ml_dtypes' float8_e4m3fn and float8_e8m0fnu).

    pip install numpy ml_dtypes && python3 tests/golden/mxfp8_golden.py tests/golden/mxfp8.golden

Text, one case a line: kind, inputs (how often an awkward value comes; 0: edges), group, E, N, K, sections, FNV-1a of the elements,
scales in hexadecimal. Inputs are made by formula, here and in the test alike. Scale layouts are written out from the description in
cistron/ops/mxfp8.h.
"""
import sys

import ml_dtypes
import numpy as np

E4M3, E8M0, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu, ml_dtypes.bfloat16
SCALES = np.arange(255, dtype=np.uint8).view(E8M0).astype(np.float64)


def scale_byte(block):
    amax = np.max(np.abs(block))
    if np.isnan(amax):
        return 255
    fits = np.nonzero(amax <= 448.0 * SCALES)[0]
    return int(fits[0]) if len(fits) else 254


def encode_block(block):
    """Elements and scale of values that share one scale."""
    byte = scale_byte(block)
    if byte == 255:
        return np.full(block.shape, 0x7F, np.uint8), byte
    quotient = np.clip(block / SCALES[byte], -448.0, 448.0)
    # ml_dtypes rounds float64 to E4M3 by way of float32; the quotients here are exact in float32 or far under half an element.
    return quotient.astype(np.float32).astype(E4M3).view(np.uint8), byte


def encode_rows(x, group):
    """x [R, K] -> elements [R, K], scales [K / group, R padded to 128]."""
    rows, depth = x.shape
    elements = np.zeros(x.shape, np.uint8)
    scales = np.zeros((depth // group, -(-rows // 128) * 128), np.uint8)
    for r in range(rows):
        for g in range(depth // group):
            at = slice(g * group, (g + 1) * group)
            elements[r, at], scales[g, r] = encode_block(x[r, at])
    return elements, scales


def encode_columns(x, group):
    rows, depth = x.shape
    padded = np.zeros((-(-rows // 128) * 128, depth))
    padded[:rows] = x
    return encode_rows(np.ascontiguousarray(padded.T), group)


def encode_weight(w, group, sections):
    """w [E, N, K] -> elements [E, N, K], scales [E, blocks, K / group]."""
    experts, rows, depth = w.shape
    block = 128 if group == 128 else 96
    elements, scales = np.zeros(w.shape, np.uint8), []
    for e in range(experts):
        for s in range(sections):
            end = (s + 1) * rows // sections
            for top in range(s * rows // sections, end, block):
                for g in range(depth // group):
                    at = (e, slice(top, min(top + block, end)), slice(g * group, (g + 1) * group))
                    elements[at], byte = encode_block(w[at])
                    scales.append(byte)
    return elements, np.array(scales, np.uint8)


ODD = [0x0000, 0x8000, 0x0001, 0x8001, 0x007F, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7FC0, 0x43E0, 0x43E1, 0x43DF]


def plain_bits(count, width, odd_every):
    """bf16 patterns whose magnitude goes by row, with an awkward one now and then. The test makes the same."""
    i = np.arange(count, dtype=np.uint64)
    h = (i * 2654435761 + 12345) % (1 << 32)
    exponent = 96 + (i // width) * 7 % 41 + (h >> 8) % 12
    bits = (h >> 31) << 15 | exponent << 7 | (h >> 20) & 127
    bits[5::odd_every] = [ODD[j % len(ODD)] for j in range(len(bits[5::odd_every]))]
    return bits.astype(np.uint16)


def edge_bits(rows):
    """Rows of 128 whose amax is 448 x 2^k or one bf16 step beside it, from the smallest scale to the largest."""
    bits = plain_bits(rows * 128, 128, 1 << 40).reshape(rows, 128) & 0x807F
    for r in range(rows):
        top = (4 + r // 3) << 7
        bits[r] |= top - (1 + np.arange(128, dtype=np.uint16) % 4) * 128
        bits[r, r % 128] = top + 0x60 + r % 3 - 1
    return bits


def fnv(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001B3 % (1 << 64)
    return f"{h:016x}"


def line(kind, inputs, group, shape, sections, encoded):
    elements, scales = encoded
    return f"{kind} {inputs} {group} {' '.join(map(str, shape))} {sections} {fnv(elements.tobytes())} {scales.tobytes().hex()}"


def main():
    lines = []
    cases = {101: plain_bits(37 * 256, 256, 101).reshape(37, 256), 0: edge_bits(3 * 250)}
    for group in (128, 32):
        for odd, bits in cases.items():
            x = bits.view(BF16).astype(np.float64)
            lines.append(line("rows", odd, group, (1, *x.shape), 1, encode_rows(x, group)))
            lines.append(line("columns", odd, group, (1, *x.shape), 1, encode_columns(x, group)))
        shape = (2, 256, 256) if group == 128 else (2, 2 * 112, 160)
        w = plain_bits(np.prod(shape), shape[2], 30011).reshape(shape).view(BF16).astype(np.float64)
        lines.append(line("weight", 30011, group, shape, 2, encode_weight(w, group, 2)))
        turned = np.ascontiguousarray(w.swapaxes(1, 2))
        lines.append(line("turned", 30011, group, shape, 2, encode_weight(turned, group, 1)))
    # Every bf16 value that is not negative, to E4M3; NaN is 0x7f there.
    every = np.arange(1 << 15, dtype=np.uint16).view(BF16).astype(np.float32)
    with np.errstate(invalid="ignore"):
        lines.append("e4m3 " + fnv(np.minimum(every, np.float32(448)).astype(E4M3).view(np.uint8).tobytes()))
    with open(sys.argv[1], "w") as out:
        out.write("\n".join(lines) + "\n")


main()
