#include "cistron/core/arena.h"

#include <gtest/gtest.h>

#include <cstring>

#include "cistron/core/error.h"
#include "cistron/core/rng.h"
#include "cistron/core/tensor.h"

namespace cistron {
namespace {

TEST(Arena, MetaAndRealAgreeOnEveryOffset) {
  const auto meta = Arena::meta("plan");
  const auto real = Arena::growing("real", Device{}, host_memory());
  const Rng rng(7, 0);
  std::vector<Tensor> a, b;
  for (uint64_t i = 0; i < 2000; ++i) {
    if (!a.empty() && rng.below(3 * i, 2) == 0) {
      const auto victim = static_cast<std::ptrdiff_t>(rng.below(3 * i + 1, a.size()));
      a.erase(a.begin() + victim);
      b.erase(b.begin() + victim);
    } else {
      const auto n = static_cast<int64_t>(rng.below(3 * i + 2, 5000));
      a.push_back(Tensor::empty(meta, {n}, DType::kF32));
      b.push_back(Tensor::empty(real, {n}, DType::kF32));
    }
    ASSERT_EQ(meta->peak(), real->peak());
    ASSERT_EQ(meta->in_use(), real->in_use());
  }
  a.clear();
  b.clear();
  EXPECT_EQ(meta->in_use(), 0);
}

TEST(Arena, PlannedRefusesMoreThanItsCapacity) {
  const auto arena = Arena::planned("small", Device{}, host_memory(), 1024);
  const Tensor first = Tensor::empty(arena, {256}, DType::kF32);
  try {
    Tensor::empty(arena, {1}, DType::kF32);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kOutOfSpace);
    EXPECT_NE(std::string(error.what()).find("'small'"), std::string::npos);
  }
}

// Not on a card, where memory cannot be had at any time.
TEST(Arena, WhatNoHoleFitsLiesElsewhereOnTheHost) {
  const auto splintered = [](Device device) {
    const auto arena = Arena::planned("small", device, host_memory(), 1024);
    std::vector<Arena::Block> blocks;
    for (int i = 0; i < 4; ++i) blocks.push_back(arena->allocate(256));
    arena->release(blocks[0]);
    arena->release(blocks[2]);
    return arena;  // two holes of 256
  };
  const auto arena = splintered({});
  EXPECT_THROW(arena->allocate(768), Error) << "more than was planned";
  const Arena::Block block = arena->allocate(512);
  std::memset(block.data, 1, 512);
  EXPECT_EQ(arena->in_use(), 1024);
  arena->release(block);
  EXPECT_EQ(arena->in_use(), 512);
  EXPECT_EQ(arena->allocate(256).offset, 0);
  EXPECT_EQ(arena->peak(), 1024);
  EXPECT_THROW(splintered({DeviceKind::kCuda})->allocate(512), Error);
}

TEST(Arena, FreedSpaceIsMergedAndReused) {
  const auto arena = Arena::meta("m");
  const auto a = arena->allocate(512), b = arena->allocate(512), c = arena->allocate(512);
  arena->release(a);
  arena->release(b);
  EXPECT_EQ(arena->allocate(1024).offset, 0);
  arena->release(c);
  EXPECT_EQ(arena->peak(), 1536);
}

}  // namespace
}  // namespace cistron
