#include "cistron/data/fasta.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/data/sequence_files.h"
#include "tests/io/temp_directory.h"

namespace cistron::data {
namespace {

using namespace std::string_literals;
using testing::bgzip_block;
using testing::bgzip_end;
using ::testing::ElementsAre;
using testing::error_of;
using testing::gzip;
using ::testing::HasSubstr;
using ::testing::Pair;
using testing::TempDirectory;
using testing::write_text;

using Records = std::vector<std::pair<std::string, std::string>>;

Records read_all(const std::filesystem::path& path) {
  Records records;
  SequenceReader reader(path);
  for (SequenceRecord record; reader.next(record);) records.emplace_back(record.id, record.residues);
  return records;
}

class FastaTest : public ::testing::Test {
 protected:
  Records read(const std::string& contents) { return read_all(write_text(temp_ / "input", contents)); }
  std::string refused(const std::string& contents) {
    const std::string message = error_of(ErrorKind::kBadData, [&] { (void)read(contents); });
    EXPECT_THAT(message, HasSubstr((temp_ / "input").string()));
    return message;
  }
  TempDirectory temp_;
};

TEST_F(FastaTest, ReadsRecordsOverManyLines) {
  EXPECT_THAT(read(">a first\nMK\nTA\n>b\nGG\n"), ElementsAre(Pair("a", "MKTA"), Pair("b", "GG")));
  EXPECT_THAT(read(">a\nMK"), ElementsAre(Pair("a", "MK"))) << "the last line needs no end";
  EXPECT_THAT(read(">a\tx\r\nMK\r\n\r\nTA\r\n"), ElementsAre(Pair("a", "MKTA"))) << "CRLF and blank lines";
  EXPECT_THAT(read("\n \n>a\nMK\n\n\n"), ElementsAre(Pair("a", "MK")));
  EXPECT_THAT(read("\xef\xbb\xbf>a\nMK\n"), ElementsAre(Pair("a", "MK"))) << "a byte order mark";
  EXPECT_THAT(read(">prot\xc3\xa9ine x\nMK\n"), ElementsAre(Pair("prot\xc3\xa9ine", "MK")));
}

TEST_F(FastaTest, EmptyRecordsAreRecords) {
  EXPECT_THAT(read(">a\n>b\nMK\n>c\n\n>d\nTA\n>e"),
              ElementsAre(Pair("a", ""), Pair("b", "MK"), Pair("c", ""), Pair("d", "TA"), Pair("e", "")));
  EXPECT_THAT(read(">alone"), ElementsAre(Pair("alone", "")));
}

TEST_F(FastaTest, LongLinesAndIdentifiers) {
  const std::string id(1 << 20, 'i'), residues(10'000'000, 'A');
  EXPECT_EQ(read(">" + id + " x\n" + residues + "\n>b\nMK\n"), (Records{{id, residues}, {"b", "MK"}}));
}

TEST_F(FastaTest, BlanksInsideAreLeftOutAndCounted) {
  SequenceReader reader(write_text(temp_ / "input", ">a\nMK TA\t G  \nLL\n"));
  SequenceRecord record;
  ASSERT_TRUE(reader.next(record));
  EXPECT_EQ(record.residues, "MKTAGLL");
  EXPECT_EQ(record.blanks, 3);
  const std::vector<std::string> places = {"2:1", "2:2", "2:4", "2:5", "2:8", "3:1", "3:2"};
  for (size_t i = 0; i < places.size(); ++i)
    EXPECT_EQ(reader.place(record, static_cast<int64_t>(i)), (temp_ / "input").string() + ":" + places[i] + " (record a)");
}

TEST_F(FastaTest, WhatIsNoSequenceIsRefusedWithItsPlace) {
  EXPECT_THAT(refused(""), HasSubstr("the file is empty"));
  EXPECT_THAT(refused("\n\n"), HasSubstr("the file is empty"));
  EXPECT_THAT(refused("MKTA\n"), HasSubstr(":1:1: it must begin with '>' or '@'"));
  EXPECT_THAT(refused("\nMKTA\n>a\nMK\n"), HasSubstr(":2:1:"));
  EXPECT_THAT(refused(">\nMK\n"), HasSubstr("without identifier"));
  EXPECT_THAT(refused(">a\nMK\n> \t\nMK"), HasSubstr(":3:1:"));
  EXPECT_THAT(refused(">a\rMKTA\r>b\rGG\r"), HasSubstr("carriage return"));
  EXPECT_THAT(refused(">a\nMK\rTA\n"), HasSubstr(":2:3:"));
  EXPECT_THAT(refused(">a\nMK\0TA\n"s), HasSubstr("byte 0x00 in the sequence of record a"));
  EXPECT_THAT(refused(">a\0b\nMK\n"s), HasSubstr("byte 0x00 in a header"));
  EXPECT_THAT(refused(">a\nMK\xc3\xa9\n"), HasSubstr(":2:3:"));
  for (const std::string bad : {"\xff", "\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"})
    EXPECT_THAT(refused(">a" + bad + "\nMK\n"), HasSubstr("in a header")) << "not UTF-8";
}

TEST_F(FastaTest, TheTokenizersRefusalNamesThePlace) {
  SequenceReader reader(write_text(temp_ / "input", ">a\nMK\nT1\n"));
  SequenceRecord record;
  ASSERT_TRUE(reader.next(record));
  std::vector<int32_t> ids;
  ReplacedCounts replaced{};
  const auto tokenizer = make_tokenizer("esm2");
  const auto encode = [&](OnUnknown on_unknown) { encode_record(*tokenizer, reader, record, on_unknown, ids, replaced); };
  const std::string message = error_of(ErrorKind::kBadData, [&] { encode(OnUnknown::kError); });
  EXPECT_THAT(message, HasSubstr("'1' is not known"));
  EXPECT_THAT(message, HasSubstr("input:3:2 (record a)"));
  encode(OnUnknown::kReplace);
  EXPECT_THAT(ids, ElementsAre(0, 20, 15, 11, 3, 2));
}

TEST_F(FastaTest, ReadsFastq) {
  EXPECT_THAT(read("@a x\nACGT\n+a\n@@+>\n@b\nAC\nGT\n+\n>>\n@@\n"), ElementsAre(Pair("a", "ACGT"), Pair("b", "ACGT")));
  EXPECT_THAT(read("@a\n\n+\n\n@b\nAC\n+\n!!"), ElementsAre(Pair("a", ""), Pair("b", "AC")));
  EXPECT_THAT(read("@a\r\nAC\r\n+\r\n!!\r\n"), ElementsAre(Pair("a", "AC")));
}

TEST_F(FastaTest, BrokenFastqIsRefused) {
  EXPECT_THAT(refused("@a\nACGT\n"), HasSubstr("no line with '+' in record a"));
  EXPECT_THAT(refused("@a\nACGT\n+\n!!!\n"), HasSubstr("shorter"));
  EXPECT_THAT(refused("@a\nACGT\n+"), HasSubstr("shorter"));
  EXPECT_THAT(refused("@a\nACGT\n+\n!!!!!\n"), HasSubstr("does not fit"));
  EXPECT_THAT(refused("@a\nAC\n+\n!!\n>b\nAC\n"), HasSubstr(":5:1:"));
}

TEST_F(FastaTest, ReadsGzipOfSeveralMembersAndBgzip) {
  const Records expected = {{"a", "MKTA"}, {"b", "GG"}};
  EXPECT_EQ(read(gzip(">a\nMKTA\n>b\nGG\n")), expected);
  EXPECT_EQ(read(gzip(">a\nMK") + gzip("") + gzip("TA\n>b\nGG\n")), expected);
  EXPECT_EQ(read(bgzip_block(">a\nMK") + bgzip_block("TA\n>b\nGG\n") + bgzip_end()), expected);
  EXPECT_EQ(read(bgzip_block(">a\nMKTA\n") + bgzip_end() + bgzip_block(">b\nGG\n") + bgzip_end()), expected);
}

std::string random_fasta(int records) {
  std::string text;
  for (int r = 0; r < records; ++r) {
    text += fmt::format(">r{}\n", r);
    for (uint32_t i = 0; i < 200; ++i) text += "ACDEFGHIKLMNPQRSTVWY"[(i * 7919u + static_cast<uint32_t>(r) * 104729u) % 20u];
    text += "\n";
  }
  return text;
}

// A cut file must never be taken for a shorter one. The whole file, as a control, is read.
TEST_F(FastaTest, EveryCutOfACompressedFileIsRefused) {
  const std::string text = random_fasta(20);
  const std::string one = gzip(text), two = gzip(text.substr(0, 1001)) + gzip(text.substr(1001));
  const std::string blocks = bgzip_block(text.substr(0, 1000)) + bgzip_block(text.substr(1000)) + bgzip_end();
  for (const std::string& whole : {one, two, blocks}) {
    EXPECT_EQ(read(whole).size(), 20u);
    for (size_t size = 0; size < whole.size(); ++size) {
      if (&whole != &one && size == gzip(text.substr(0, 1001)).size() && whole == two) continue;  // whole members: a valid file
      SCOPED_TRACE(size);
      refused(whole.substr(0, size));
    }
  }
}

TEST_F(FastaTest, AFlippedBitInCompressedDataIsRefused) {
  const std::string text = random_fasta(5);
  for (const std::string& whole :
       {gzip(text), gzip(text.substr(0, 500)) + gzip(text.substr(500)), bgzip_block(text) + bgzip_end()}) {
    int refusals = 0, harmless = 0;
    for (size_t i = 0; i < whole.size(); ++i) {
      std::string bad = whole;
      bad[i] = static_cast<char>(bad[i] ^ 0x04);
      try {
        EXPECT_EQ(read(bad), read(whole)) << "byte " << i;  // the header's time, flags and the like carry no data
        ++harmless;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kBadData);
        ++refusals;
      }
    }
    EXPECT_GT(refusals, 2 * harmless);
  }
}

TEST_F(FastaTest, WhatCannotBeOpenedIsRefused) {
  EXPECT_THAT(error_of(ErrorKind::kBadData, [&] { SequenceReader(temp_ / "absent.fasta"); }), HasSubstr("No such file"));
  EXPECT_THAT(error_of(ErrorKind::kBadData, [&] { SequenceReader(temp_.path()); }), HasSubstr("directory"));
  EXPECT_THAT(error_of(ErrorKind::kBadData, [&] { SequenceReader("https://example.org/a.fasta"); }), HasSubstr("No such file"));
}

}  // namespace
}  // namespace cistron::data
