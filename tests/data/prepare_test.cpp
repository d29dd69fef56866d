#include "cistron/data/prepare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "cistron/core/rng.h"
#include "cistron/data/store.h"
#include "tests/data/sequence_files.h"
#include "tests/data/store_fixture.h"
#include "tests/io/temp_directory.h"

namespace cistron::data {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::TempDirectory;
using testing::write_text;

class PrepareTest : public ::testing::Test {
 protected:
  PrepareOptions options(const std::vector<std::string>& contents) {
    PrepareOptions result{.tokenizer = "esm2", .out = temp_ / "store", .valid_fraction = 0};
    for (const auto& text : contents) {
      result.files.push_back(temp_ / fmt::format("f{}.fasta", result.files.size()));
      write_text(result.files.back(), text);
    }
    return result;
  }

  static std::string random_fasta(int records, uint64_t seed) {
    std::string text;
    for (int r = 0; r < records; ++r) {
      const Rng rng(seed, static_cast<uint64_t>(r));
      text += fmt::format(">{}.{}\n", seed, r);
      for (uint64_t i = 0; i < 30; ++i) text += "ACDEFGHIKLMNPQRSTVWY"[rng.below(i, 20)];
      text += "\n";
    }
    return text;
  }

  TempDirectory temp_;
};

TEST_F(PrepareTest, StoresEveryRecordOfEveryFile) {
  PrepareOptions o = options({">a\nMK\n>b\nTAG\n", testing::gzip(">c\nLLLL\n")});
  const PrepareReport report = prepare(o);
  EXPECT_EQ(report.files, 2);
  EXPECT_EQ(report.records, 3);
  EXPECT_EQ(report.residues, 9);
  EXPECT_EQ(report.shortest, 2);
  EXPECT_EQ(report.longest, 4);
  EXPECT_EQ(report.median, 3);
  EXPECT_EQ(report.train.records, 3);
  EXPECT_EQ(report.train.tokens, 15);
  const Store store = Store::open(o.out);
  ASSERT_EQ(store.train().num_records(), 3);
  EXPECT_EQ(store.train().id(2), "c");
  EXPECT_EQ(testing::tokens_of(store.train(), 1), (std::vector<int32_t>{0, 11, 5, 6, 2}));
}

TEST_F(PrepareTest, ReportsWhatItChangedAndLeftOut) {
  PrepareOptions o = options({">a\nMJ*K K\n>empty\n>b\nmj*kk\n>none\n"});
  const PrepareReport report = prepare(o);
  EXPECT_EQ(report.records, 2);
  EXPECT_EQ(report.replaced['J'], 1);
  EXPECT_EQ(report.replaced['j'], 1);
  EXPECT_EQ(report.replaced['*'], 2);
  EXPECT_EQ(report.blanks, 1);
  EXPECT_EQ(report.exact_duplicates, 1) << "case makes no other sequence";
  ASSERT_EQ(report.refusals.size(), 1u);
  EXPECT_EQ(report.refusals[0].records, 2);
  EXPECT_THAT(report.refusals[0].first, HasSubstr("f0.fasta:3"));
  const auto json = nlohmann::json::parse(report.json());
  EXPECT_EQ(json.at("records"), 2);
  EXPECT_EQ(json.at("replaced").at("*"), 2);
  EXPECT_EQ(json.at("left_out").at(0).at("records"), 2);
  EXPECT_EQ(report.json().find('\n'), std::string::npos);
  EXPECT_THAT(report.text(), HasSubstr("2 of '*'"));
  EXPECT_THAT(report.text(), HasSubstr("the first at"));
}

TEST_F(PrepareTest, DuplicatedIdentifiersAreNamedOrRenamed) {
  PrepareOptions o = options({">a\nMK\n>b\nMKK\n", "\n>a_2\nTT\n>a\nTA\n>a\nTAA\n"});
  const std::string message = error_of(ErrorKind::kBadData, [&] { (void)prepare(o); });
  EXPECT_THAT(message, HasSubstr("f0.fasta:1 and "));
  EXPECT_THAT(message, HasSubstr("f1.fasta:4"));
  EXPECT_FALSE(std::filesystem::exists(o.out));
  EXPECT_FALSE(std::filesystem::exists(o.out.string() + ".partial"));
  o.on_duplicate = OnDuplicate::kRename;
  EXPECT_EQ(prepare(o).renamed, 2);
  const Store store = Store::open(o.out);
  std::vector<std::string_view> ids;
  for (int64_t r = 0; r < store.train().num_records(); ++r) ids.push_back(store.train().id(r));
  EXPECT_EQ(ids, (std::vector<std::string_view>{"a", "b", "a_2", "a_3", "a_4"}));
}

// 0.3 of 2,000 distinct sequences: 600, deviation 20.5.
TEST_F(PrepareTest, TheSplitFollowsTheResiduesAlone) {
  std::string copies = random_fasta(2000, 1);
  for (char& c : copies) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (size_t at = 0; (at = copies.find('>', at)) != std::string::npos; ++at) copies.insert(at + 1, "copy");
  PrepareOptions o = options({random_fasta(2000, 1), copies});
  o.valid_fraction = 0.3;
  const PrepareReport report = prepare(o);
  EXPECT_EQ(report.exact_duplicates, 2000);
  EXPECT_NEAR(static_cast<double>(report.valid.records) / 2, 600, 6 * 20.5);
  const Store store = Store::open(o.out);
  std::set<std::vector<int32_t>> sides[2];
  for (const Split split : {Split::kTrain, Split::kValid})
    for (int64_t r = 0; r < store.split(split).num_records(); ++r)
      sides[static_cast<size_t>(split)].insert(testing::tokens_of(store.split(split), r));
  EXPECT_EQ(sides[0].size() + sides[1].size(), 2000u);
  std::vector<std::vector<int32_t>> both;
  std::ranges::set_intersection(sides[0], sides[1], std::back_inserter(both));
  EXPECT_TRUE(both.empty());

  std::swap(o.files[0], o.files[1]);
  o.out = temp_ / "swapped";
  EXPECT_EQ(prepare(o).valid.records, report.valid.records);
}

TEST_F(PrepareTest, TheSameInputGivesTheSameStore) {
  PrepareOptions o = options({random_fasta(50, 1)});
  prepare(o);
  const uint64_t first = Store::open(o.out).fingerprint();
  o.force = true;
  prepare(o);
  EXPECT_EQ(Store::open(o.out).fingerprint(), first);
}

TEST_F(PrepareTest, RefusesAndLeavesNothing) {
  const auto refuses = [&](ErrorKind kind, const PrepareOptions& o, const std::string& expected) {
    EXPECT_THAT(error_of(kind, [&] { (void)prepare(o); }), HasSubstr(expected));
    EXPECT_FALSE(std::filesystem::exists(o.out));
    EXPECT_FALSE(std::filesystem::exists(o.out.string() + ".partial"));
  };
  refuses(ErrorKind::kUsage, options({}), "no input");
  refuses(ErrorKind::kBadData, options({">a\n>b\n"}), "every record is empty");
  refuses(ErrorKind::kBadData, options({">a\nMK\n", "MK\n"}), "f1.fasta:1:1");
  refuses(ErrorKind::kBadData, options({">a\nM1K\n"}), "f0.fasta:2:2 (record a)");
  refuses(ErrorKind::kBadData, options({testing::gzip(">a\nMK\n").substr(0, 25)}), "f0.fasta");
  PrepareOptions o = options({">a\nMK\n"});
  o.tokenizer = "esm3";
  refuses(ErrorKind::kUsage, o, "esm2, nucleotide");
  o = options({">a\nMK\n"});
  o.valid_fraction = 1.5;
  refuses(ErrorKind::kUsage, o, "--valid-fraction");
  o.valid_fraction = std::nan("");
  refuses(ErrorKind::kUsage, o, "--valid-fraction");
}

TEST_F(PrepareTest, AnExistingStoreSurvivesAFailedReplacement) {
  PrepareOptions o = options({">a\nMK\n"});
  prepare(o);
  const uint64_t before = Store::open(o.out).fingerprint();
  error_of(ErrorKind::kUsage, [&] { (void)prepare(o); });
  write_text(o.files[0], ">a\nM1\n");
  o.force = true;
  error_of(ErrorKind::kBadData, [&] { (void)prepare(o); });
  EXPECT_EQ(Store::open(o.out).fingerprint(), before);
}

}  // namespace
}  // namespace cistron::data
