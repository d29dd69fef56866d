#include "cistron/core/current_error.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <new>
#include <stdexcept>

namespace cistron {
namespace {

template <class Thrown>
Error described(const Thrown& thrown) {
  try {
    throw thrown;
  } catch (...) {
    return current_error();
  }
}

TEST(CurrentError, KeepsWhatIsOneAndNamesTheRest) {
  EXPECT_EQ(described(Error(ErrorKind::kBadData, "a", "b", "c")).kind(), ErrorKind::kBadData);
  EXPECT_STREQ(described(Error(ErrorKind::kBadData, "a", "b", "c")).what(), "a: b: c");
  EXPECT_EQ(described(std::bad_alloc()).kind(), ErrorKind::kOutOfSpace);
  const auto full = std::make_error_code(std::errc::no_space_on_device),
             loop = std::make_error_code(std::errc::too_many_symbolic_link_levels);
  EXPECT_EQ(described(std::system_error(full)).kind(), ErrorKind::kOutOfSpace);
  const Error file = described(std::filesystem::filesystem_error("status", "/a/b", loop));
  EXPECT_EQ(file.kind(), ErrorKind::kUsage);
  EXPECT_EQ(std::string(file.what()), "cannot reach the file: /a/b: " + loop.message());
  EXPECT_STREQ(described(std::runtime_error("why")).what(), "why");
  EXPECT_EQ(described(7).kind(), ErrorKind::kFailed);
}

}  // namespace
}  // namespace cistron
