#include "cistron/data/identifiers.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cistron::data {
namespace {

TEST(IdentifierTable, NumbersWhatIsNewAndFindsWhatIsKnown) {
  IdentifierTable table;
  constexpr size_t kMany = 5000;  // it grows several times
  for (size_t i = 0; i < kMany; ++i) ASSERT_EQ(table.insert(fmt::format("sp|P{}|", i)), std::pair(i, true));
  for (size_t i = kMany; i-- > 0;) ASSERT_EQ(table.insert(fmt::format("sp|P{}|", i)), std::pair(i, false));
  EXPECT_EQ(table.insert("sp|P4999"), std::pair(kMany, true)) << "a beginning is another identifier";
  EXPECT_EQ(table.insert(""), std::pair(kMany + 1, true));
  EXPECT_EQ(table.insert(""), std::pair(kMany + 1, false));
}

}  // namespace
}  // namespace cistron::data
