"""`cistron generate` as its user meets it. Usage: generate_test.py PROGRAM"""

import json

from support import main, write_config, write_fasta


def trained(program, directory):
    write_fasta(directory / "a.fasta", 60)
    program.ok("prepare", directory / "a.fasta", "--tokenizer", "esm2", "--out", directory / "store", "--valid-fraction", "0.2")
    write_config(directory / "run.toml", directory / "store")
    program.ok("train", directory / "run.toml", "--out", directory / "run", "--quiet")
    return directory / "run"


def objects(text):
    return [json.loads(line) for line in text.splitlines()]


def records(fasta):
    """(id, rest of the header, residues) of each record."""
    for block in fasta.split(">")[1:]:
        header, *lines = block.splitlines()
        assert all(0 < len(line) <= 60 for line in lines), lines
        yield *header.split(" ", 1), "".join(lines)


def test_from_nothing_and_from_prompts(program, directory):
    run = trained(program, directory)
    rows = objects(program.ok("generate", run, "--json", "-n", "3", "--quiet").stdout)
    assert [row["id"] for row in rows] == ["generated_1", "generated_2", "generated_3"]
    assert list(rows[0]) == ["id", "prompt", "sequence", "log_likelihood", "stopped"]
    assert len({row["sequence"] for row in rows}) == 3 and all(row["prompt"] == "" for row in rows)
    (directory / "prompts.fasta").write_text(">a first\nMKT\n>b\n>c\nlag\nVSE\n")
    rows = objects(program.ok("generate", run, "--json", "--prompts", directory / "prompts.fasta", "--max-tokens", "5").stdout)
    assert [(row["id"], row["prompt"]) for row in rows] == [("a", "MKT"), ("b", ""), ("c", "LAGVSE")]
    for row in rows:
        assert row["sequence"].startswith(row["prompt"]) and row["log_likelihood"] < 0
        assert len(row["sequence"]) - len(row["prompt"]) <= 5 and row["stopped"] in ("end", "length")
    done = program.ok("generate", run, "--prompt", "MKT", "--quiet", "-n", "2")
    assert done.stderr == ""
    (first, rest, residues), (second, _, _) = records(done.stdout)
    assert (first, second) == ("generated_1", "generated_2") and residues.startswith("MKT")
    assert rest.startswith("log_likelihood=-") and " stopped=" in rest


def test_the_same_seed_gives_the_same_sequences(program, directory):
    run = trained(program, directory)
    write_fasta(directory / "prompts.fasta", 40, seed=3, length=(0, 60))
    ask = ["generate", run, "--prompts", directory / "prompts.fasta", "--json", "--quiet"]
    many = program.ok(*ask, "-n", "3", "--seed", "5", "--threads", "2").stdout
    assert many == program.ok(*ask, "-n", "3", "--seed", "5", "--threads", "1").stdout
    one = objects(program.ok(*ask, "--seed", "5").stdout)
    assert [row["sequence"] for row in one] == [row["sequence"] for row in objects(many)[::3]]
    assert one != objects(program.ok(*ask, "--seed", "6").stdout)
    cold = [program.ok(*ask, "--temperature", "0", "--seed", seed).stdout for seed in "56"]
    low = program.run(*ask, "--temperature", "0", "--precision", "bf16")
    assert low.returncode == 2 if "avx512_bf16" in low.stderr else objects(low.stdout)[0]["prompt"] == one[0]["prompt"]
    assert cold[0] == cold[1] == program.ok(*ask, "--top-k", "1").stdout == program.ok(*ask, "--top-p", "1e-6").stdout


def test_score_agrees(program, directory):
    run = trained(program, directory)
    rows = objects(program.ok("generate", run, "-n", "30", "--json", "--seed", "2").stdout)
    ended = [row for row in rows if row["stopped"] == "end"]
    assert ended
    (directory / "new.fasta").write_text("".join(f">{row['id']}\n{row['sequence']}\n" for row in ended))
    scores = objects(program.ok("score", run, "--fasta", directory / "new.fasta", "--json").stdout)
    # A special token in the middle is not in the text, and an X may have been the unknown token, which reads back as another.
    same = [abs(row["log_likelihood"] - score["log_likelihood"]) < 1e-3 for row, score in zip(ended, scores)]
    assert sum(same) >= max(1, len(same) // 4), list(zip(ended, scores))


def test_refusals(program, directory):
    run = trained(program, directory)
    program.fails(3, "the prompt has 64 tokens, which leaves no room in the model's context of 64: --prompt", "generate", run,
                  "--prompt", "M" * 63)
    (directory / "long.fasta").write_text(f">short\nMKT\n>long\n{'M' * 100}\n")
    program.fails(3, "long.fasta:3", "generate", run, "--prompts", directory / "long.fasta")
    program.fails(3, "'!' is not known to the tokenizer esm2: --prompt, column 3", "generate", run, "--prompt", "MK!")
    program.fails(3, "empty", "generate", run, "--prompts", "/dev/null")
    program.fails(2, "excludes", "generate", run, "--prompt", "M", "--prompts", directory / "long.fasta")
    for option, value in [("--temperature", "nan"), ("--temperature", "-1"), ("--temperature", "inf"), ("--top-p", "0"), ("--top-p", "1.5"),
                          ("--top-p", "nan"), ("--top-k", "-1"), ("-n", "0"), ("--max-tokens", "0"), ("--seed", "-1"), ("--seed", "x")]:
        program.fails(2, option.strip("-"), "generate", run, option, value)
    program.fails(3, "not a model", "generate", directory)
    program.fails(2, "CUDA", "generate", run, "--device", "cuda")


main(globals())
