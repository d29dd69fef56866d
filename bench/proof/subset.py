#!/usr/bin/env python3
"""Distinct sequences of a FASTA file, a share of them chosen by their hash, under short names. Standard input to standard output.
Run: blastdbcmd -db DATABASE -entry all | subset.py SHARE > subset.fasta        a subset of a smaller share is part of a larger one's
"""
import hashlib
import sys


def sequences(lines):
    parts = []
    for line in lines:
        if line.startswith(b">"):
            yield b"".join(parts)
            parts = []
        else:
            parts.append(line.strip())
    yield b"".join(parts)


def main(share):
    seen, residues = set(), 0
    for sequence in sequences(sys.stdin.buffer):
        digest = hashlib.blake2b(sequence.upper(), digest_size=8).digest()
        if not sequence or digest in seen or int.from_bytes(digest, "big") >= share * 2**64:
            continue
        seen.add(digest)
        residues += len(sequence)
        sys.stdout.buffer.write(b">%d\n%s\n" % (len(seen), sequence))
    print(f"{len(seen)} sequences, {residues} residues", file=sys.stderr)


main(float(sys.argv[1]))
