#include "cistron/data/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/data/store_fixture.h"
#include "tests/io/temp_directory.h"

namespace cistron::data {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using testing::random_records;
using testing::read_text;
using testing::TempDirectory;
using testing::write_store;
using testing::write_text;

// Stands in for the vocabularies of thousands that bpe will bring.
class WideTokenizer final : public Tokenizer {
 public:
  WideTokenizer() : strings_(1000, "x") {}
  std::string_view name() const override { return "wide"; }
  SpecialIds special() const override { return {.begin = 0, .end = 2}; }
  const std::vector<std::string>& token_strings() const override { return strings_; }
  int64_t encode(std::string_view, OnUnknown, std::vector<int32_t>&, ReplacedCounts&) const override { return 0; }
  std::string decode(std::span<const int32_t>) const override { return {}; }

 private:
  std::vector<std::string> strings_;
};

TEST(Store, GivesBackWhatWasAdded) {
  const TempDirectory temp;
  const auto tokenizer = make_tokenizer("esm2");
  const auto train = random_records(200, 300, *tokenizer, 1), valid = random_records(7, 100000, *tokenizer, 2);
  write_store(temp / "store", train, valid, *tokenizer);
  const Store store = Store::open(temp / "store");
  EXPECT_EQ(store.tokenizer().name(), "esm2");
  ASSERT_EQ(store.train().num_records(), 200);
  ASSERT_EQ(store.valid().num_records(), 7);
  int64_t total = 0;
  for (int64_t r = 0; r < 200; ++r) {
    EXPECT_EQ(testing::tokens_of(store.train(), r), train[static_cast<size_t>(r)]);
    EXPECT_EQ(store.train().id(r), "train" + std::to_string(r));
    total += store.train().length(r);
  }
  EXPECT_EQ(store.train().num_tokens(), total);
  for (int64_t r = 0; r < 7; ++r) EXPECT_EQ(testing::tokens_of(store.valid(), r), valid[static_cast<size_t>(r)]);
  std::vector<int32_t> part(3);
  store.valid().copy_tokens(3, 1, part);
  EXPECT_EQ(part, std::vector<int32_t>(valid[3].begin() + 1, valid[3].begin() + 4));
  EXPECT_THROW(store.valid().copy_tokens(3, store.valid().length(3) - 2, part), Error);
}

TEST(Store, EmptySplitsAreLegal) {
  const TempDirectory temp;
  write_store(temp / "store", {}, {}, *make_tokenizer("nucleotide"));
  const Store store = Store::open(temp / "store");
  EXPECT_EQ(store.train().num_records(), 0);
  EXPECT_EQ(store.valid().num_tokens(), 0);
}

TEST(Store, WideVocabulariesTakeTwoBytes) {
  const TempDirectory temp;
  const WideTokenizer tokenizer;
  StoreWriter writer(temp / "store", tokenizer);
  writer.add(Split::kTrain, "a", std::vector<int32_t>{0, 999, 256, 2});
  writer.commit();
  EXPECT_EQ(std::filesystem::file_size(temp / "store/train/tokens.bin"), 64u + 8u);
  EXPECT_THAT(error_of(ErrorKind::kBadData, [&] { (void)Store::open(temp / "store"); }), HasSubstr("wide"));
}

TEST(Store, ATokenOutsideTheVocabularyIsRefused) {
  const TempDirectory temp;
  const auto tokenizer = make_tokenizer("esm2");
  write_store(temp / "store", {{0, 32, 2}}, {}, *tokenizer);
  EXPECT_NO_THROW((void)Store::open(temp / "store"));
  write_store(temp / "store", {{0, 33, 2}}, {}, *tokenizer, /*force=*/true);
  EXPECT_THAT(error_of(ErrorKind::kBadData, [&] { (void)Store::open(temp / "store"); }), HasSubstr("does not have"));
}

TEST(Store, IsWholeOrAbsent) {
  const TempDirectory temp;
  const auto tokenizer = make_tokenizer("esm2");
  {
    StoreWriter writer(temp / "store", *tokenizer);
    writer.add(Split::kTrain, "a", std::vector<int32_t>{0, 5, 2});
  }
  EXPECT_TRUE(std::filesystem::is_empty(temp.path()));
  EXPECT_THAT(error_of(ErrorKind::kBadData, [&] { (void)Store::open(temp / "store"); }), HasSubstr("not a token store"));
}

TEST(Store, AnExistingOneIsReplacedByForceOnly) {
  const TempDirectory temp;
  const auto tokenizer = make_tokenizer("esm2");
  write_store(temp / "store", random_records(3, 9, *tokenizer), {}, *tokenizer);
  const uint64_t before = Store::open(temp / "store").fingerprint();
  EXPECT_THAT(error_of(ErrorKind::kUsage, [&] { StoreWriter(temp / "store", *tokenizer); }), HasSubstr("--force"));
  write_store(temp / "store", random_records(4, 9, *tokenizer), {}, *tokenizer, true);
  const Store store = Store::open(temp / "store");
  EXPECT_EQ(store.train().num_records(), 4);
  EXPECT_NE(store.fingerprint(), before);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(temp.path()), {}), 1) << "nothing may be left beside it";
}

// The negative control is the store itself, which opens until the byte is flipped.
TEST(Store, EveryFlippedByteIsFound) {
  const TempDirectory temp;
  const auto tokenizer = make_tokenizer("esm2");
  write_store(temp / "store", random_records(4, 12, *tokenizer), random_records(2, 5, *tokenizer), *tokenizer);
  for (const std::string file :
       {"manifest.json", "train/tokens.bin", "train/records.bin", "valid/tokens.bin", "valid/records.bin"}) {
    const std::string good = read_text(temp / ("store/" + file));
    for (size_t i = 0; i < good.size(); ++i) {
      if (std::isspace(static_cast<unsigned char>(good[i])) && file == "manifest.json") continue;  // layout, not contents
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ 0x10);
      write_text(temp / ("store/" + file), bad);
      const std::string message = error_of(ErrorKind::kBadData, [&] { (void)Store::open(temp / "store"); });
      ASSERT_THAT(message, HasSubstr((temp / "store").string())) << file << " byte " << i;
    }
    write_text(temp / ("store/" + file), good);
    EXPECT_NO_THROW((void)Store::open(temp / "store"));
  }
}

TEST(Store, OneThatIsOverwrittenWhileItIsReadIsNamed) {
  const TempDirectory temp;
  const auto tokenizer = make_tokenizer("esm2");
  write_store(temp / "store", random_records(4, 12, *tokenizer), random_records(2, 5, *tokenizer), *tokenizer);
  const Store store = Store::open(temp / "store");
  std::fstream file(temp / "store/train/tokens.bin", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(64);  // behind the header
  file.put('\xff').flush();
  std::vector<int32_t> tokens(static_cast<size_t>(store.train().length(0)));
  EXPECT_THAT(error_of(ErrorKind::kBadData, [&] { store.train().copy_tokens(0, 0, tokens); }),
              AllOf(HasSubstr("was changed"), HasSubstr((temp / "store/train/tokens.bin").string())));
  store.train().copy_tokens(0, 1, std::span(tokens).subspan(1));  // the others are as they were
}

TEST(Store, EveryCutIsFound) {
  const TempDirectory temp;
  const auto tokenizer = make_tokenizer("esm2");
  write_store(temp / "store", random_records(4, 12, *tokenizer), random_records(2, 5, *tokenizer), *tokenizer);
  for (const std::string file : {"manifest.json", "train/tokens.bin", "valid/records.bin"}) {
    const std::string good = read_text(temp / ("store/" + file));
    for (size_t size = 0; size + 1 < good.size(); ++size) {
      write_text(temp / ("store/" + file), good.substr(0, size));
      error_of(ErrorKind::kBadData, [&] { (void)Store::open(temp / "store"); });
    }
    std::filesystem::remove(temp / ("store/" + file));
    error_of(ErrorKind::kBadData, [&] { (void)Store::open(temp / "store"); });
    write_text(temp / ("store/" + file), good);
  }
}

TEST(Store, AnotherVersionIsNamed) {
  const TempDirectory temp;
  write_store(temp / "store", {}, {}, *make_tokenizer("esm2"));
  std::string manifest = read_text(temp / "store/manifest.json");
  manifest.replace(manifest.find("\"version\": 1"), 12, "\"version\": 2");
  write_text(temp / "store/manifest.json", manifest);
  EXPECT_THAT(error_of(ErrorKind::kBadData, [&] { (void)Store::open(temp / "store"); }),
              HasSubstr("the store is of version 2, this program reads 1"));
}

}  // namespace
}  // namespace cistron::data
