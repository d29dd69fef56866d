"""FASTA and FASTQ, plain, gzip and bgzip."""

import files

PREPARE = "prepare @/a --tokenizer esm2 --out @/store --json"
FASTQ = b"@a\nMKT\n+\nIII\n@b\nLAG\n+\nIII\n"
FASTA = b">a\nMKT\n>b\nLAG\n"


def text(data):
    return lambda here, _: (here / "a").write_bytes(data)


def flipped(data, at):
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1:]


def nothing(here, _):
    pass


CASES = [
    ("no file", nothing, PREPARE, 3,
     "cannot open the file: @/a: No such file or directory"),
    ("a folder for a file", lambda here, _: (here / "a").mkdir(), PREPARE, 3,
     "cannot read the file: @/a: it is a directory; name the files in it"),
    ("an empty file", text(b""), PREPARE, 3,
     "no records: @/a: the file is empty"),
    ("blank lines alone", text(b"\n \n\t\n"), PREPARE, 3,
     "no records: @/a: the file is empty"),
    ("no record begins", text(b"MKT\n"), PREPARE, 3,
     "neither FASTA nor FASTQ: the first line begins with 'M': @/a:1:1: it must begin with '>' or '@'"),
    ("a header alone", text(b">"), PREPARE, 3,
     "a record without identifier: @/a:1:1: name it after the '>'"),
    ("a header without identifier", text(b">a\nMKT\n> \nLAG\n"), PREPARE, 3,
     "a record without identifier: @/a:3:1: name it after the '>'"),
    ("an identifier that is not UTF-8", text(b">a\xff\nMKT\n"), PREPARE, 3,
     "byte 0xff in a header: @/a:1:3: headers are UTF-8 without control characters"),
    ("a control character in a header", text(b">a\x07\nMKT\n"), PREPARE, 3,
     "byte 0x07 in a header: @/a:1:3: headers are UTF-8 without control characters"),
    ("an identifier twice", text(b">a\nMKT\n>b\nMKT\n>a x\nLAG\n"), PREPARE, 3,
     "the identifier a appears twice: @/a:1 and @/a:5: rename one, or take --on-duplicate rename"),
    ("a NUL in a sequence", text(b">a\nMK\0T\n"), PREPARE, 3,
     "byte 0x00 in the sequence of record a: @/a:2:3: a sequence is visible ASCII"),
    ("an accent in a sequence", text(">a\nMKé\n".encode()), PREPARE, 3,
     "byte 0xc3 in the sequence of record a: @/a:2:3: a sequence is visible ASCII"),
    ("a lone carriage return", text(b">a\nMK\rT\n"), PREPARE, 3,
     "a carriage return inside a line: @/a:2:3: convert the line ends to LF"),
    ("a letter of no residue", text(b">a\nMKT\nLA1G\n"), PREPARE, 3,
     "'1' is not known to the tokenizer esm2: @/a:3:3 (record a): correct it, or take --on-unknown replace"),
    ("a sequence before its header", text(b"\n\nMKT\n>a\nMKT\n"), PREPARE, 3,
     "neither FASTA nor FASTQ: the first line begins with 'M': @/a:3:1: it must begin with '>' or '@'"),
    ("a line of 10 million residues", text(b">a\n" + b"MKT" * 3_333_334 + b"\n>b\nM1\n"), PREPARE, 3,
     "'1' is not known to the tokenizer esm2: @/a:4:2 (record b): correct it, or take --on-unknown replace"),
    ("an identifier of 1 MB", text(b">" + b"i" * 1_000_000 + b"\nMK!\n"), PREPARE, 3,
     "'!' is not known to the tokenizer esm2: @/a:2:3 (record iiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiii): correct it, or take --on-unknown replace"),
    ("an empty record alone", text(b">e\n"), PREPARE, 3,
     "no records to train on: @/a: every record is empty"),
    ("Windows' lines, blank ones, blanks inside, empty records", text(b">e\r\n\r\n>a\r\nMK T\r\n\r\nLAG\r\n>f\r\n"), PREPARE, 0,
     '{"blanks_dropped":1,"exact_duplicates":0,"files":1,"left_out":[{"first":"@/a:1","reason":"no residues","records":2}],"length":{"longest":6,"mean":6.0,"median":6.0,"shortest":6},"records":1'),

    ("a quality too short", text(b"@a\nMKT\n+\nII\n"), PREPARE, 3,
     "the quality is shorter than the sequence in record a: @/a:1:1: the file is cut short or damaged"),
    ("a quality too long", text(b"@a\nMKT\n+\nIIII\n@b\nM\n+\nI\n"), PREPARE, 3,
     "the quality does not fit the sequence in record a: @/a:1:1: the file is cut short or damaged"),
    ("no quality", text(b"@a\nMKT\n"), PREPARE, 3,
     "no line with '+' in record a: @/a:1:1: the file is cut short or damaged"),
    ("a record that begins otherwise", text(FASTQ + b">c\nMKT\n"), PREPARE, 3,
     "a FASTQ record must begin with '@', not '>': @/a:9:1: check the record before it"),
    ("a quality that begins like a record", text(b"@a\nMKT\n+\n@@@\n@b\nLAG\n+\n+++\n"), PREPARE, 0,
     '{"blanks_dropped":0,"exact_duplicates":0,"files":1,"left_out":[],"length":{"longest":3,"mean":3.0,"median":3.0,"shortest":3},"records":2'),

    ("gzip cut short", text(files.gzipped(FASTA)[:-9]), PREPARE, 3,
     "the compressed file is damaged or cut short: @/a: get a whole copy of it (gzip -t tells)"),
    ("gzip without its checksum", text(files.gzipped(FASTA)[:-4]), PREPARE, 3,
     "the compressed file is damaged or cut short: @/a: get a whole copy of it (gzip -t tells)"),
    ("gzip with a flipped bit", text(flipped(files.gzipped(FASTA * 50), 30)), PREPARE, 3,
     "the compressed file is damaged or cut short: @/a: get a whole copy of it (gzip -t tells)"),
    ("gzip with a wrong checksum", text(flipped(files.gzipped(FASTA), -5)), PREPARE, 3,
     "the compressed file is damaged or cut short: @/a: get a whole copy of it (gzip -t tells)"),
    ("gzip and rubbish behind it", text(files.gzipped(FASTA) + b"rubbish"), PREPARE, 3,
     "the compressed file is damaged or cut short: @/a: get a whole copy of it (gzip -t tells)"),
    ("gzip of nothing", text(files.gzipped(b"")), PREPARE, 3,
     "no records: @/a: the file is empty"),
    ("two bytes of gzip", text(b"\x1f\x8b"), PREPARE, 3,
     "neither FASTA nor FASTQ: the first line begins with byte 0x1f: @/a:1:1: it must begin with '>' or '@'"),
    ("gzip of several members", text(files.gzipped(FASTA, b">c\nVSE\n")), PREPARE, 0,
     '{"blanks_dropped":0,"exact_duplicates":0,"files":1,"left_out":[],"length":{"longest":3,"mean":3.0,"median":3.0,"shortest":3},"records":3'),
    ("bgzip without its end block", text(files.bgzip(FASTA, end_block=False)), PREPARE, 3,
     "the bgzip file lacks its end block, so it is probably cut short: @/a: get a whole copy of it, or compress it again if it is whole"),
    ("bgzip cut short", text(files.bgzip(FASTA * 100)[:60]), PREPARE, 3,
     "the compressed file is damaged or cut short: @/a: get a whole copy of it (gzip -t tells)"),
    ("bgzip", text(files.bgzip(FASTA)), PREPARE, 0,
     '{"blanks_dropped":0,"exact_duplicates":0,"files":1,"left_out":[],"length":{"longest":3,"mean":3.0,"median":3.0,"shortest":3},"records":2'),
    ("gzipped FASTQ cut in a record", text(files.gzipped(FASTQ[:-5])), PREPARE, 3,
     "the quality is shorter than the sequence in record b: @/a:5:1: the file is cut short or damaged"),
]
