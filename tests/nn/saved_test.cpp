#include "cistron/nn/saved.h"

#include <gtest/gtest.h>

#include "cistron/core/error.h"

namespace cistron::nn {
namespace {

TEST(Saved, GivesBackInReverseAndNamesAMismatch) {
  const auto arena = Arena::meta("m");
  Saved saved;
  saved.push("a", Tensor::empty(arena, {4}, DType::kF32));
  saved.push("b", Tensor::empty(arena, {2}, DType::kBF16));
  EXPECT_EQ(saved.bytes(), 20);
  EXPECT_THROW(saved.pop("a"), Error);
  EXPECT_EQ(saved.pop("b").dim(0), 2);
  EXPECT_EQ(saved.pop("a").dim(0), 4);
  EXPECT_TRUE(saved.empty());
  EXPECT_THROW(saved.pop("a"), Error);
}

}  // namespace
}  // namespace cistron::nn
