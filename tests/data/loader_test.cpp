#include "cistron/data/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <thread>

#include "cistron/data/permutation.h"
#include "tests/data/store_fixture.h"
#include "tests/io/temp_directory.h"

namespace cistron::data {
namespace {

using testing::error_of;
using testing::random_records;
using testing::TempDirectory;
using testing::write_store;

TEST(Permutation, IsABijectionForEverySizeAndKey) {
  for (const int64_t size : {1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 1000, 4097, 70000}) {
    for (uint64_t epoch = 0; epoch < 3; ++epoch) {
      const Permutation permutation(size, 42, epoch);
      std::vector<bool> seen(static_cast<size_t>(size));
      for (int64_t i = 0; i < size; ++i) {
        const int64_t image = permutation(i);
        ASSERT_TRUE(image >= 0 && image < size && !seen[static_cast<size_t>(image)]);
        seen[static_cast<size_t>(image)] = true;
      }
    }
  }
}

// Uniform images: the pairs (i, p(i)) fall into 8 x 8 cells, chi-square with 49 degrees of freedom (mean 49, deviation 9.9);
// the identity, as a control, is far outside.
double chi_square(int64_t size, const std::function<int64_t(int64_t)>& image) {
  std::vector<double> cells(64);
  for (int64_t i = 0; i < size; ++i) cells[static_cast<size_t>(i * 8 / size * 8 + image(i) * 8 / size)] += 1;
  const double expected = static_cast<double>(size) / 64;
  return std::accumulate(cells.begin(), cells.end(), 0.0,
                         [&](double sum, double n) { return sum + (n - expected) * (n - expected) / expected; });
}

TEST(Permutation, LooksRandomAndDependsOnSeedAndEpoch) {
  const int64_t size = 20000;
  for (uint64_t seed = 0; seed < 10; ++seed)
    EXPECT_LT(chi_square(size, Permutation(size, seed, 0)), 49 + 6 * 9.9) << "seed " << seed;
  EXPECT_GT(chi_square(size, [](int64_t i) { return i; }), 1000);
  const Permutation a(size, 1, 0), b(size, 1, 1), c(size, 2, 0);
  int64_t same_ab = 0, same_ac = 0;
  for (int64_t i = 0; i < size; ++i) {
    same_ab += a(i) == b(i);
    same_ac += a(i) == c(i);
  }
  EXPECT_LT(same_ab, 12);  // one is expected (Poisson); 12 has probability 1e-9
  EXPECT_LT(same_ac, 12);
}

class LoaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto tokenizer = make_tokenizer("esm2");
    records_ = random_records(150, 90, *tokenizer, 3);
    write_store(temp_ / "store", records_, random_records(20, 50, *tokenizer, 4), *tokenizer);
    store_ = Store::open(temp_ / "store");
  }

  // Whole windows, as sorted strings of tokens: an epoch's contents whatever its order and cuts.
  static std::multiset<std::vector<int32_t>> windows_of(const StoreSplit& split, int64_t context) {
    std::multiset<std::vector<int32_t>> windows;
    for (int64_t r = 0; r < split.num_records(); ++r) {
      const auto tokens = testing::tokens_of(split, r);
      for (int64_t w = 0; w < num_windows(split.length(r), context); ++w) {
        const Window window = training_window(split.length(r), context, w);
        windows.emplace(tokens.begin() + window.begin, tokens.begin() + window.end);
      }
    }
    return windows;
  }

  TempDirectory temp_;
  std::vector<std::vector<int32_t>> records_;
  Store store_;
};

TEST_F(LoaderTest, BatchesHaveExactlyTheirTokensAndSoundLabels) {
  const Loader loader(store_.train(), {.context = 16, .batch_tokens = 100, .seed = 9});
  for (int64_t i = 0; i < 200; ++i) {
    const PackedBatch batch = loader.batch(i);
    ASSERT_EQ(batch.num_tokens(), 100);
    ASSERT_EQ(batch.labels.size(), 100u);
    ASSERT_EQ(batch.positions.size(), 100u);
    ASSERT_EQ(batch.loss_weight.size(), 100u);
    ASSERT_EQ(batch.cu_seqlens.front(), 0);
    ASSERT_EQ(batch.cu_seqlens.back(), 100);
    int64_t labels = 0;
    for (int64_t s = 0; s < batch.num_sequences(); ++s) {
      const int32_t begin = batch.cu_seqlens[s], end = batch.cu_seqlens[s + 1];
      ASSERT_TRUE(begin < end && end - begin <= 16);
      for (int32_t t = begin; t < end; ++t) {
        ASSERT_EQ(batch.positions[t], t - begin);
        ASSERT_EQ(batch.labels[t], t + 1 < end ? batch.tokens[t + 1] : -1);
        ASSERT_EQ(batch.loss_weight[t], t + 1 < end ? 1.0F : 0.0F);
        labels += t + 1 < end;
      }
    }
    ASSERT_EQ(batch.label_count, labels);
  }
}

// The stream, glued at the cuts, is each epoch's windows once, in another order each time.
TEST_F(LoaderTest, AnEpochHoldsEveryWindowOnce) {
  constexpr int64_t kContext = 16;
  const Loader loader(store_.train(), {.context = kContext, .batch_tokens = 64, .seed = 9});
  const auto expected = windows_of(store_.train(), kContext);
  ASSERT_EQ(static_cast<int64_t>(expected.size()), loader.num_windows());
  std::vector<int32_t> stream;
  for (int64_t i = 0; std::ssize(stream) < 3 * loader.epoch_tokens(); ++i) {
    const auto batch = loader.batch(i);
    stream.insert(stream.end(), batch.tokens.begin(), batch.tokens.end());
  }
  const WindowIndex windows(store_.train(), kContext);
  std::set<std::vector<int32_t>> orders;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    const Permutation order(loader.num_windows(), 9, static_cast<uint64_t>(epoch));
    std::vector<int32_t> rebuilt;
    std::multiset<std::vector<int32_t>> seen;
    for (int64_t i = 0; i < loader.num_windows(); ++i) {
      PackedBatch one;
      windows.append(order(i), 0, windows[order(i)].window.length(), one);
      rebuilt.insert(rebuilt.end(), one.tokens.begin(), one.tokens.end());
      seen.insert(one.tokens);
    }
    const auto begin = stream.begin() + epoch * loader.epoch_tokens();
    EXPECT_EQ(std::vector<int32_t>(begin, begin + loader.epoch_tokens()), rebuilt) << "epoch " << epoch;
    EXPECT_EQ(seen, expected);
    orders.insert(rebuilt);
  }
  EXPECT_EQ(orders.size(), 3u);
}

TEST_F(LoaderTest, ABatchIsAPureFunctionOfItsIndex) {
  const LoaderConfig config{.context = 20, .batch_tokens = 128, .seed = 5};
  const Loader forward(store_.train(), config);
  std::vector<PackedBatch> batches;
  for (int64_t i = 0; i < 150; ++i) batches.push_back(forward.batch(i));
  for (const int64_t i : {149, 0, 77, 3, 148, 1}) {
    const Loader fresh(store_.train(), config);
    const PackedBatch batch = fresh.batch(i);
    EXPECT_EQ(batch.tokens, batches[i].tokens);
    EXPECT_EQ(batch.cu_seqlens, batches[i].cu_seqlens);
    EXPECT_EQ(forward.batch(i).tokens, batches[i].tokens);
  }
  const Loader other(store_.train(), {.context = 20, .batch_tokens = 128, .seed = 6});
  EXPECT_NE(other.batch(0).tokens, batches[0].tokens);
}

TEST_F(LoaderTest, ABatchMayHoldSeveralEpochs) {
  const Loader loader(store_.valid(), {.context = 64, .batch_tokens = 10 * store_.valid().num_tokens() + 7, .seed = 1});
  EXPECT_EQ(loader.batch(3).num_tokens(), 10 * store_.valid().num_tokens() + 7);
}

TEST_F(LoaderTest, ServesSeveralThreads) {
  const LoaderConfig config{.context = 20, .batch_tokens = 128, .seed = 5};
  const Loader shared(store_.train(), config), alone(store_.train(), config);
  std::vector<PackedBatch> batches(80);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (size_t i = t; i < batches.size(); i += 4) batches[i] = shared.batch(static_cast<int64_t>(i * 13));
    });
  for (auto& thread : threads) thread.join();
  for (size_t i = 0; i < batches.size(); ++i) EXPECT_EQ(batches[i].tokens, alone.batch(static_cast<int64_t>(i * 13)).tokens);
}

TEST_F(LoaderTest, BeginAndEndTokensMarkTrueEndsOnly) {
  const Loader loader(store_.train(), {.context = 8, .batch_tokens = store_.train().num_tokens(), .seed = 5});
  const PackedBatch batch = loader.batch(0);
  EXPECT_EQ(std::ranges::count(batch.tokens, 0), store_.train().num_records());
  EXPECT_EQ(std::ranges::count(batch.tokens, 2), store_.train().num_records());
}

TEST_F(LoaderTest, EvalHoldsEveryWindowOnceUncutInOrder) {
  const EvalBatches batches(store_.valid(), 16, 40);
  std::multiset<std::vector<int32_t>> seen;
  std::vector<int32_t> stream;
  for (int64_t i = 0; i < batches.size(); ++i) {
    const PackedBatch batch = batches.batch(i);
    EXPECT_LE(batch.num_tokens(), 40);
    EXPECT_TRUE(batch.num_tokens() > 40 - 16 || i + 1 == batches.size());
    for (int64_t s = 0; s < batch.num_sequences(); ++s)
      seen.emplace(batch.tokens.begin() + batch.cu_seqlens[s], batch.tokens.begin() + batch.cu_seqlens[s + 1]);
    stream.insert(stream.end(), batch.tokens.begin(), batch.tokens.end());
  }
  EXPECT_EQ(seen, windows_of(store_.valid(), 16));
  std::vector<int32_t> expected;
  for (int64_t r = 0; r < store_.valid().num_records(); ++r) {
    const auto tokens = testing::tokens_of(store_.valid(), r);
    expected.insert(expected.end(), tokens.begin(), tokens.end());
  }
  EXPECT_EQ(stream, expected);
}

TEST_F(LoaderTest, RefusesWhatCannotWork) {
  error_of(ErrorKind::kUsage, [&] { Loader(store_.train(), {.context = 2, .batch_tokens = 10}); });
  error_of(ErrorKind::kUsage, [&] { Loader(store_.train(), {.context = 8, .batch_tokens = 1}); });
  error_of(ErrorKind::kUsage, [&] { EvalBatches(store_.train(), 8, 7); });
  write_store(temp_ / "empty", {}, {}, store_.tokenizer());
  const Store empty = Store::open(temp_ / "empty");
  error_of(ErrorKind::kBadData, [&] { Loader(empty.train(), {.context = 8, .batch_tokens = 16}); });
  EXPECT_EQ(EvalBatches(empty.valid(), 8, 16).size(), 0);
}

}  // namespace
}  // namespace cistron::data
