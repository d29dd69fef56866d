#!/usr/bin/env python3
"""Checks who includes whom: the folders of cistron/ against the table below, and that no headers include each other in a circle.

Run: tools/include_graph.py [ROOT]      exit status 1 and a line for each offence
"""
import re
import sys
from pathlib import Path

# A folder may include itself and what stands here.
MAY_INCLUDE = {
    "core": set(),
    "ops": {"core"},
    "cpu": {"core", "ops"},
    "cuda": {"core", "ops"},
    "no_cuda": {"core", "ops", "cuda"},  # stand-ins for what headers of cuda/ declare
    "dist": {"core", "ops"},
    "nn": {"core", "ops", "dist"},
    "io": {"core"},
    "model": {"core", "ops", "nn", "dist", "io"},
    "data": {"core", "io"},
    "train": {"core", "ops", "nn", "dist", "model", "io", "data"},
    "eval": {"core", "ops", "nn", "dist", "model", "data", "io"},
}
EXTRA = {("dist/nccl", "cuda/runtime")}  # (subfolder, subfolder): arrows allowed besides
SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]', re.M)


def offence(source: str, target: str) -> str | None:
    """Why `source` may not include `target`, both relative to the root; None when it may."""
    folder, other = source.split("/")[1], target.split("/")[1]
    if folder not in MAY_INCLUDE:
        return f"{source}: cistron/{folder} has no row in tools/include_graph.py"
    extra = any(source.startswith(f"cistron/{a}/") and target.startswith(f"cistron/{b}/") for a, b in EXTRA)
    if folder == other or other in MAY_INCLUDE[folder] or extra:
        return None
    return f"{source}: {folder} may not include {other} ({target})"


def cycle(graph: dict[str, list[str]]) -> list[str] | None:
    """The files of one circle of includes, if there is any."""
    done: set[str] = set()

    def visit(file: str, path: list[str]) -> list[str] | None:
        if file in path:
            return path[path.index(file):] + [file]
        if file in done:
            return None
        for target in graph.get(file, []):
            if found := visit(target, path + [file]):
                return found
        done.add(file)
        return None

    return next((found for file in sorted(graph) if (found := visit(file, []))), None)


def check(root: Path) -> list[str]:
    problems: list[str] = []
    graph: dict[str, list[str]] = {}
    files = [p for p in (root / "cistron").rglob("*") if p.suffix in SUFFIXES]
    if not files:
        return [f"{root}: no sources under cistron/"]
    for path in sorted(files):
        source = path.relative_to(root).as_posix()
        graph[source] = []
        for quote, target in INCLUDE.findall(path.read_text(encoding="utf-8")):
            if not target.startswith("cistron/"):
                if quote == '"':
                    problems.append(f'{source}: write "cistron/..." instead of "{target}"')
            elif not (root / target).is_file():
                problems.append(f"{source}: no file {target}")
            else:
                graph[source].append(target)
                if why := offence(source, target):
                    problems.append(why)
    if found := cycle(graph):
        problems.append("a circle: " + " -> ".join(found))
    return problems


if __name__ == "__main__":
    found = check(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1])
    print("\n".join(found) if found else "include graph: no forbidden arrow, no circle")
    sys.exit(1 if found else 0)
