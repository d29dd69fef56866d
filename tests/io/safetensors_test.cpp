#include "cistron/io/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "cistron/core/rng.h"
#include "tests/io/temp_directory.h"

namespace cistron::io {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::read_text;
using testing::TempDirectory;
using testing::write_text;

std::string with_length(const std::string& header, const std::string& data, uint64_t length) {
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + data;
}

std::string with_length(const std::string& header, const std::string& data) { return with_length(header, data, header.size()); }

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{}]}})", name, dtype, shape, offsets);
}

class SafetensorsTest : public ::testing::Test {
 protected:
  std::string refused(const std::string& contents) {
    const auto path = write_text(temp_ / "t.safetensors", contents);
    const std::string message = error_of(ErrorKind::kBadData, [&] { SafetensorsFile file(path); });
    EXPECT_THAT(message, HasSubstr(path.string()));
    return message;
  }
  // One header of these entries, over `size` bytes of data.
  std::string refused(std::initializer_list<std::string> entries, size_t size) {
    return refused(with_length(fmt::format("{{{}}}", fmt::join(entries, ",")), std::string(size, 'd')));
  }
  void write_model(const std::string& file, std::vector<TensorSpec> specs) {
    SafetensorsWriter writer(temp_ / file, specs);
    for (const auto& spec : specs) writer.write(spec.name, std::vector<std::byte>(static_cast<size_t>(safetensors_bytes(spec))));
    writer.commit();
  }
  std::string model_refused(const std::string& name) {
    return error_of(ErrorKind::kBadData, [&] { SafetensorsModel model(temp_ / name); });
  }
  TempDirectory temp_;
};

TEST_F(SafetensorsTest, GivesBackWhatWasWritten) {
  const std::vector<TensorSpec> specs = {{"u8", "U8", {3}},      {"bf16", "BF16", {2, 3}}, {"f32", "F32", {5}},
                                         {"f64", "F64", {1, 1}}, {"none", "F32", {0, 7}},  {"scalar", "I64", {}},
                                         {"i32", "I32", {2}},    {"f16", "F16", {1}}};
  std::map<std::string, std::vector<std::byte>> contents;
  const Rng rng(7, 0);
  SafetensorsWriter writer(temp_ / "t.safetensors", specs, {{"format", "pt"}});
  for (const auto& spec : specs) {
    auto& bytes = contents[spec.name];
    for (int64_t i = 0; i < safetensors_bytes(spec); ++i)
      bytes.push_back(static_cast<std::byte>(rng.bits(static_cast<uint64_t>(i) + spec.name.size() * 100)));
    const size_t half = bytes.size() / 2;
    writer.write(spec.name, std::span(bytes).first(half));
    writer.write(spec.name, std::span(bytes).subspan(half));
  }
  writer.commit();

  const SafetensorsFile file(temp_ / "t.safetensors");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  ASSERT_EQ(file.tensors().size(), specs.size());
  for (const auto& spec : specs) {
    const auto& view = file.at(spec.name);
    EXPECT_EQ(view.spec, spec);
    EXPECT_TRUE(std::ranges::equal(view.bytes, contents[spec.name])) << spec.name;
    const auto address = reinterpret_cast<uintptr_t>(view.bytes.data());
    EXPECT_EQ(address % static_cast<uintptr_t>(safetensors_element_size(spec.dtype)), 0u) << spec.name << " is not aligned";
  }
  EXPECT_THAT(error_of(ErrorKind::kBadData, [&] { (void)file.at("other"); }), HasSubstr("\"other\""));
}

TEST_F(SafetensorsTest, AFileOfNoTensorsIsLegal) {
  SafetensorsWriter(temp_ / "t.safetensors", {}).commit();
  EXPECT_TRUE(SafetensorsFile(temp_ / "t.safetensors").tensors().empty());
}

TEST_F(SafetensorsTest, TheWriterHoldsItsCallerToTheDeclaration) {
  const std::vector<TensorSpec> specs = {{"a", "F32", {2}}}, twice = {{"a", "F32", {2}}, {"a", "F32", {2}}},
                                unknown = {{"a", "F31", {2}}};
  const std::vector<std::byte> bytes(9);
  {
    SafetensorsWriter writer(temp_ / "t", specs);
    EXPECT_THROW(writer.write("b", bytes), Error);
    EXPECT_THROW(writer.write("a", bytes), Error);
    writer.write("a", std::span(bytes).first(7));
    EXPECT_THROW(writer.commit(), Error);
  }
  EXPECT_THROW(SafetensorsWriter(temp_ / "t", twice), Error);
  EXPECT_THROW(SafetensorsWriter(temp_ / "t", unknown), Error);
  EXPECT_TRUE(std::filesystem::is_empty(temp_.path()));
}

TEST_F(SafetensorsTest, BrokenHeadersAreRefused) {
  refused("");
  refused("1234567");
  EXPECT_THAT(refused(with_length("{}", "", ~uint64_t{0})), HasSubstr("18446744073709551615"));
  EXPECT_THAT(refused(with_length("{}", "", uint64_t{1} << 63)), HasSubstr("at most"));
  EXPECT_THAT(refused(with_length("{}", "", 100'000'001)), HasSubstr("at most"));
  EXPECT_THAT(refused(with_length("{}", "", 3)), HasSubstr("longer than the file"));
  refused(with_length("", ""));
  refused(with_length("[]", ""));
  refused(with_length("{", ""));
  refused(with_length("{}x", ""));
  EXPECT_THAT(refused(with_length("{\"a\xff\":1}", "")), HasSubstr("JSON"));
  EXPECT_THAT(refused(with_length("{\"a\":" + std::string(500'000, '['), "")), HasSubstr("nested deeper"));
  EXPECT_THAT(refused(with_length(R"({"__metadata__":{"a":1}})", "")), HasSubstr("\"a\""));
  EXPECT_THAT(refused(with_length(R"({"__metadata__":[]})", "")), HasSubstr("__metadata__"));
  EXPECT_THAT(refused({entry("a", "U8", "1", "0,1"), entry("a", "U8", "1", "0,1")}, 1), HasSubstr("\"a\" stands twice"));
}

TEST_F(SafetensorsTest, BrokenEntriesAreRefusedByName) {
  for (const std::string bad :
       {R"("t":1)", R"("t":{})", R"("t":{"dtype":"U8","shape":[1]})",
        R"("t":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1})", R"("t":{"dtype":1,"shape":[1],"data_offsets":[0,1]})",
        R"("t":{"dtype":"U8","shape":1,"data_offsets":[0,1]})", R"("t":{"dtype":"U8","shape":[1],"data_offsets":[0]})",
        R"("t":{"dtype":"U8","shape":[1],"data_offsets":[0,1,1]})", R"("t":{"dtype":"U8","shape":[1],"data_offsets":{}})",
        R"("t":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]})", R"("t":{"dtype":"U8","shape":["1"],"data_offsets":[0,1]})",
        R"("t":{"dtype":"U8","shape":[1],"offsets":[0,1]})"})
    EXPECT_THAT(refused({bad}, 1), HasSubstr("tensor \"t\"")) << bad;
  const auto one = [&](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    const std::string message = refused({entry("t", dtype, shape, offsets)}, 8);
    EXPECT_THAT(message, HasSubstr("tensor \"t\"")) << dtype << shape << offsets;
    return message;
  };
  EXPECT_THAT(one("F99", "2", "0,8"), HasSubstr("unknown dtype \"F99\""));
  EXPECT_THAT(one("f32", "2", "0,8"), HasSubstr("unknown dtype"));
  EXPECT_THAT(one("F32", "2", "8,0"), HasSubstr("begin at 8 and end at 0"));
  one("F32", "2", "-8,0");
  one("F32", "-2", "0,8");
  one("F32", "2", "0,18446744073709551615");
  one("F32", "2", "0,9223372036854775808");
  one("F32", "2", "0,1e1");
  EXPECT_THAT(one("F32", "4", "0,16"), HasSubstr("past the end"));
  EXPECT_THAT(one("F32", "3", "0,8"), HasSubstr("12 bytes"));
  EXPECT_THAT(one("F32", "0", "0,8"), HasSubstr("0 bytes"));
  EXPECT_THAT(one("F32", "4611686018427387904", "0,8"), HasSubstr("overflows"));
  EXPECT_THAT(one("F32", "4294967296,4294967296,4294967296", "0,8"), HasSubstr("overflows"));
  EXPECT_THAT(one("U8", "4294967296,4294967296,0", "0,0"), HasSubstr("overflows"));
  EXPECT_THAT(one("U8", "1", "7,8"), HasSubstr("hole"));
}

TEST_F(SafetensorsTest, SpansMustTileTheData) {
  EXPECT_THAT(refused({entry("a", "U8", "4", "0,4"), entry("b", "U8", "4", "2,6")}, 6), HasSubstr("\"b\" overlaps"));
  EXPECT_THAT(refused({entry("a", "U8", "4", "0,4"), entry("b", "U8", "4", "0,4")}, 4), HasSubstr("overlaps"));
  EXPECT_THAT(refused({entry("a", "U8", "4", "0,4"), entry("b", "U8", "4", "5,9")}, 9), HasSubstr("\"b\" has a hole"));
  EXPECT_THAT(refused({entry("a", "U8", "4", "0,4")}, 6), HasSubstr("2 bytes at the end"));
  EXPECT_THAT(refused({}, 1), HasSubstr("1 bytes at the end"));
  // Empty tensors take no room, wherever they claim to be between two others.
  write_text(temp_ / "good", with_length(fmt::format("{{{},{},{}}}", entry("b", "U8", "2", "2,4"), entry("e", "F32", "0", "2,2"),
                                                     entry("a", "U8", "2", "0,2")),
                                         "data"));
  EXPECT_EQ(SafetensorsFile(temp_ / "good").tensors().size(), 3u);
}

TEST_F(SafetensorsTest, ManyTensorsOverTheSameBytesAreRefusedSoon) {
  std::string header = "{";
  for (int i = 0; i < 200'000; ++i)
    header += fmt::format("{}\"{}\":{{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", i > 0 ? "," : "", i);
  EXPECT_THAT(refused(with_length(header + "}", "data")), HasSubstr("overlaps"));
}

// A damaged file is refused, or (a letter in a name, a byte of the data) is another valid file: it never crashes.
TEST_F(SafetensorsTest, AnyFlippedByteIsRefusedOrHarmless) {
  write_model("good.safetensors", {{"layers.0.w", "F32", {2, 2}}, {"b", "U8", {3}}});
  const std::string good = read_text(temp_ / "good.safetensors");
  int refusals = 0;
  for (size_t i = 0; i < good.size(); ++i) {
    for (const int bit : {1, 16, 128}) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ bit);
      write_text(temp_ / "bad.safetensors", bad);
      try {
        EXPECT_EQ(SafetensorsFile(temp_ / "bad.safetensors").tensors().size(), 2u);
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kBadData);
        ++refusals;
      }
    }
  }
  EXPECT_GT(refusals, 200);
  for (size_t size = 0; size < good.size(); ++size) refused(good.substr(0, size));
}

TEST_F(SafetensorsTest, NamesFromTheFileStayOnOneLine) {
  EXPECT_THAT(refused({entry("a\\n\\u001b[31m", "F99", "1", "0,1")}, 1), HasSubstr("a\\n\\u001b"));
  EXPECT_LT(refused({entry(std::string(1 << 20, 'n'), "F99", "1", "0,1")}, 1).size(), 1000u);
}

TEST_F(SafetensorsTest, ShardsAreReadAsOneModel) {
  const std::vector<TensorSpec> specs = {{"a", "F32", {100}}, {"b", "F32", {100}}, {"c", "F32", {300}}, {"d", "F32", {1}}};
  const auto shards = plan_shards(specs, 800);
  ASSERT_EQ(shards.size(), 3u);
  EXPECT_EQ(shards[0].size(), 2u);
  EXPECT_EQ(shards[1].size(), 1u) << "larger than a shard, so alone";
  for (size_t i = 0; i < shards.size(); ++i) write_model(shard_name(static_cast<int64_t>(i), 3), shards[i]);
  write_shard_index(temp_.path(), shards);
  EXPECT_TRUE(std::filesystem::exists(temp_ / "model-00003-of-00003.safetensors"));
  const SafetensorsModel model(temp_.path());
  EXPECT_EQ(model.tensors().size(), 4u);
  EXPECT_EQ(model.at("c").spec, specs[2]);
  EXPECT_THAT(error_of(ErrorKind::kBadData, [&] { (void)model.at("e"); }), HasSubstr("\"e\""));

  std::filesystem::remove(temp_ / shard_name(1, 3));
  EXPECT_THAT(model_refused(""), HasSubstr("\"model-00002-of-00003.safetensors\" is missing"));
}

TEST_F(SafetensorsTest, ASingleFileIsAModel) {
  EXPECT_EQ(shard_name(0, 1), "model.safetensors");
  write_model("model.safetensors", {{"a", "F32", {1}}});
  EXPECT_TRUE(SafetensorsModel(temp_.path()).contains("a"));
  EXPECT_TRUE(SafetensorsModel(temp_ / "model.safetensors").contains("a"));
}

TEST_F(SafetensorsTest, BrokenIndexesAreRefused) {
  write_model("s1.safetensors", {{"a", "F32", {1}}});
  write_model("s2.safetensors", {{"a", "F32", {1}}, {"b", "F32", {1}}});
  const auto index = [&](const std::string& text) {
    write_text(temp_ / "model.safetensors.index.json", text);
    return model_refused("model.safetensors.index.json");
  };
  for (const std::string name : {"../x.safetensors", "/etc/passwd", "..", ".", "", "sub/s1.safetensors", "a\\\\b", "a\\u0000b"})
    EXPECT_THAT(index(R"({"weight_map":{"a":")" + name + R"("}})"), HasSubstr("not a file beside the index")) << name;
  EXPECT_THAT(index(R"({"weight_map":{"a":"s3.safetensors"}})"), HasSubstr("missing"));
  EXPECT_THAT(index(R"({"weight_map":{"a":"s1.safetensors","a":"s2.safetensors"}})"), HasSubstr("stands twice"));
  EXPECT_THAT(index(R"({"weight_map":{"a":"s1.safetensors","b":"s2.safetensors"}})"), HasSubstr("\"a\" is in two shards"));
  EXPECT_THAT(index(R"({"weight_map":{"b":"s1.safetensors"}})"), HasSubstr("does not place tensor \"a\""));
  EXPECT_THAT(index(R"({"weight_map":{"a":"s1.safetensors","c":"s1.safetensors"}})"), HasSubstr("lacks it"));
  EXPECT_THAT(index(R"({"weight_map":{"a":"pytorch_model.bin"}})"), HasSubstr("pickle"));
  index(R"({"weight_map":{"a":1}})");
  index(R"({"weight_map":[]})");
  index("[]");
  index("");
}

TEST_F(SafetensorsTest, PicklesAreNeverRead) {
  for (const std::string name : {"pytorch_model.bin", "model.pt", "m.pth", "m.ckpt"}) {
    write_text(temp_ / name, "\x80\x02.");
    EXPECT_THAT(model_refused(name), HasSubstr("convert it to safetensors")) << name;
  }
  EXPECT_THAT(model_refused(""), HasSubstr("convert it to safetensors"));
  std::filesystem::create_directory(temp_ / "empty");
  EXPECT_THAT(model_refused("empty"), HasSubstr("no model here"));
  EXPECT_THAT(model_refused("absent.safetensors"), HasSubstr("No such file"));
}

}  // namespace
}  // namespace cistron::io
