#include "cistron/data/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/io/temp_directory.h"

namespace cistron::data {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

TEST(Tokenizer, Esm2HasThePublishedIds) {
  const auto tokenizer = make_tokenizer("esm2");
  const std::vector<std::string> expected = {"<cls>", "<pad>", "<eos>", "<unk>", "L", "A", "G", "V", "S", "E",        "R",
                                             "T",     "I",     "D",     "P",     "K", "Q", "N", "F", "Y", "M",        "H",
                                             "W",     "C",     "X",     "B",     "U", "Z", "O", ".", "-", "<null_1>", "<mask>"};
  EXPECT_EQ(tokenizer->token_strings(), expected);
  EXPECT_EQ(tokenizer->vocab_size(), 33);
  const SpecialIds special = tokenizer->special();
  EXPECT_EQ(special.begin, 0);
  EXPECT_EQ(special.pad, 1);
  EXPECT_EQ(special.end, 2);
  EXPECT_EQ(special.unknown, 3);
  EXPECT_EQ(special.mask, 32);
  EXPECT_THAT(
      encode_whole(*tokenizer, "LAGVSERTIDPKQNFYMHWCXBUZO.-", "r"),
      ElementsAre(0, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 2));
  EXPECT_EQ(encode_whole(*tokenizer, "lagvsertidpkqnfymhwcxbuzo", "r"),
            encode_whole(*tokenizer, "LAGVSERTIDPKQNFYMHWCXBUZO", "r"));
}

TEST(Tokenizer, Esm2CountsWhatBecomesUnknown) {
  const auto tokenizer = make_tokenizer("esm2");
  std::vector<int32_t> ids = {7};
  ReplacedCounts replaced{};
  EXPECT_EQ(tokenizer->encode("MJ*j", OnUnknown::kError, ids, replaced), -1);
  EXPECT_THAT(ids, ElementsAre(7, 20, 3, 3, 3));
  EXPECT_EQ(replaced['J'], 1);
  EXPECT_EQ(replaced['j'], 1);
  EXPECT_EQ(replaced['*'], 1);
  EXPECT_EQ(tokenizer->encode("MK1", OnUnknown::kError, ids, replaced), 2);
  EXPECT_EQ(ids.size(), 5u) << "a refused record must leave nothing behind";
  EXPECT_EQ(tokenizer->encode("MK1\xff", OnUnknown::kReplace, ids, replaced), -1);
  EXPECT_THAT(ids, ElementsAre(7, 20, 3, 3, 3, 20, 15, 3, 3));
  EXPECT_EQ(replaced['1'], 1);
  EXPECT_EQ(replaced[0xff], 1);
}

// Every byte has one of three fates, none of them by accident.
TEST(Tokenizer, EveryByteIsDefined) {
  for (const auto name : tokenizer_names()) {
    const auto tokenizer = make_tokenizer(name);
    int known = 0;
    for (int byte = 0; byte < 256; ++byte) {
      const char c = static_cast<char>(byte);
      std::vector<int32_t> ids;
      ReplacedCounts replaced{};
      const int64_t refused = tokenizer->encode({&c, 1}, OnUnknown::kError, ids, replaced);
      if (refused < 0 && replaced[static_cast<size_t>(byte)] == 0) ++known;
      const bool visible = byte > ' ' && byte <= '~';
      EXPECT_TRUE(visible || refused == 0) << name << " " << byte;
    }
    EXPECT_EQ(known, name == "esm2" ? 25 * 2 + 2 : 94);
  }
}

TEST(Tokenizer, NucleotideIsTheByte) {
  const auto tokenizer = make_tokenizer("nucleotide");
  EXPECT_EQ(tokenizer->vocab_size(), 128);
  EXPECT_THAT(encode_whole(*tokenizer, "ACGTacgtN", "r"), ElementsAre(2, 65, 67, 71, 84, 97, 99, 103, 116, 78, 0));
  EXPECT_EQ(tokenizer->special().pad, 1);
  EXPECT_EQ(tokenizer->special().unknown, 3);
  EXPECT_EQ(tokenizer->token_strings()[0], "<EOS>");
  EXPECT_EQ(tokenizer->token_strings()[2], "<BOS>");
  EXPECT_EQ(tokenizer->token_strings()[65], "A");
}

TEST(Tokenizer, DecodesResiduesOnly) {
  const auto tokenizer = make_tokenizer("esm2");
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{0, 20, 15, 3, 30, 1, 2, 32}), "MKX-");
  EXPECT_THROW((void)tokenizer->decode(std::vector<int32_t>{33}), Error);
  EXPECT_THROW((void)tokenizer->decode(std::vector<int32_t>{-1}), Error);
}

TEST(Tokenizer, ErrorsSayWhereAndWhat) {
  const std::string unknown_name = error_of(ErrorKind::kUsage, [] { (void)make_tokenizer("esm3"); });
  EXPECT_THAT(unknown_name, HasSubstr("esm3"));
  EXPECT_THAT(unknown_name, HasSubstr("esm2, nucleotide"));
  const auto tokenizer = make_tokenizer("esm2");
  const std::string refused = error_of(ErrorKind::kBadData, [&] { (void)encode_whole(*tokenizer, "MK\x01T", "--prompt"); });
  EXPECT_THAT(refused, HasSubstr("byte 0x01"));
  EXPECT_THAT(refused, HasSubstr("--prompt, column 3"));
}

}  // namespace
}  // namespace cistron::data
