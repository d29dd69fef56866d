"""Plants offences in a small tree and expects include_graph.py to name each."""
import tempfile
import unittest
from pathlib import Path

from include_graph import check

GOOD = {
    "cistron/core/a.h": "",
    "cistron/ops/b.h": '#include "cistron/core/a.h"\n#include <vector>\n',
    "cistron/dist/nccl/c.cpp": '#include "cistron/cuda/runtime/d.h"\n',
    "cistron/cuda/runtime/d.h": '#include <cistron/core/a.h>\n',
}


def problems(extra: dict[str, str]) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (GOOD | extra).items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return check(Path(folder))


class IncludeGraph(unittest.TestCase):
    def expect_one(self, extra: dict[str, str], part: str) -> None:
        found = problems(extra)
        self.assertEqual(len(found), 1, found)
        self.assertIn(part, found[0])

    def test_a_good_tree_passes(self):
        self.assertEqual(problems({}), [])

    def test_a_forbidden_arrow(self):
        self.expect_one({"cistron/core/up.cpp": '#include "cistron/ops/b.h"\n'}, "core may not include ops")

    def test_backends_never_see_each_other(self):
        self.expect_one({"cistron/cpu/x.cpp": '#include "cistron/cuda/runtime/d.h"\n'}, "cpu may not include cuda")

    def test_the_extra_arrow_is_for_its_subfolder_alone(self):
        self.expect_one({"cistron/dist/mesh.cpp": '#include "cistron/cuda/runtime/d.h"\n'}, "dist may not include cuda")

    def test_angle_brackets_and_spaces_are_seen(self):
        self.expect_one({"cistron/io/x.cpp": "  #  include <cistron/ops/b.h>\n"}, "io may not include ops")

    def test_a_circle(self):
        self.expect_one({"cistron/io/x.h": '#include "cistron/io/y.h"\n', "cistron/io/y.h": '#include "cistron/io/x.h"\n'}, "a circle")

    def test_a_relative_include(self):
        self.expect_one({"cistron/io/x.cpp": '#include "y.h"\n'}, 'write "cistron/..."')

    def test_a_file_that_is_gone(self):
        self.expect_one({"cistron/io/x.cpp": '#include "cistron/io/gone.h"\n'}, "no file cistron/io/gone.h")

    def test_a_folder_without_a_row(self):
        self.expect_one({"cistron/misc/x.cpp": '#include "cistron/core/a.h"\n'}, "no row")


if __name__ == "__main__":
    unittest.main()
