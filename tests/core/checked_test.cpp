#include "cistron/core/checked.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "cistron/core/nearest.h"
#include "cistron/core/shape.h"

namespace cistron {
namespace {

TEST(Checked, RefusesInsteadOfWrapping) {
  EXPECT_EQ(div_exact(12, 4), 3);
  EXPECT_THROW(div_exact(13, 4), Error);
  EXPECT_THROW(div_exact(13, 0), Error);
  EXPECT_THROW(checked_mul(int64_t{1} << 40, int64_t{1} << 40), Error);
  EXPECT_THROW(checked_add(std::numeric_limits<int64_t>::max(), 1), Error);
  EXPECT_EQ(narrow<int32_t>(int64_t{-5}), -5);
  EXPECT_THROW(narrow<int32_t>(int64_t{1} << 31), Error);
  EXPECT_THROW(narrow<uint32_t>(-1), Error);
  EXPECT_THROW(static_cast<void>(Shape{int64_t{1} << 40, int64_t{1} << 40}.numel()), Error);
  EXPECT_THROW((Shape{-1}), Error);
}

TEST(Nearest, FindsTheTypo) {
  const std::vector<std::string> names{"hidden", "heads", "head_dim", "layers"};
  EXPECT_EQ(nearest("hiden", names), "hidden");
  EXPECT_EQ(nearest("layer", names), "layers");
  EXPECT_EQ(nearest("head", names), "heads");
  EXPECT_EQ(nearest("x", {}), "");
}

}  // namespace
}  // namespace cistron
