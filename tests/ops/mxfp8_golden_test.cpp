// Against golden/mxfp8.golden, which ml_dtypes made (golden/mxfp8_golden.py): elements, scales and their layouts.
#include <fstream>
#include <sstream>

#include "cistron/ops/mxfp8_format.h"
#include "tests/ops/mxfp8_support.h"

namespace cistron {
namespace {

struct Case {
  std::string kind, elements, scales;
  int64_t odd_every = 0, group = 0, experts = 0, rows = 0, width = 0, sections = 0;
};

std::vector<Case> read_cases() {
  std::ifstream file(CISTRON_GOLDEN_DIR "/mxfp8.golden");
  std::vector<Case> cases;
  for (std::string line; std::getline(file, line);) {
    Case c;
    std::istringstream in(line);
    in >> c.kind;
    if (c.kind == "e4m3")
      in >> c.elements;
    else
      in >> c.odd_every >> c.group >> c.experts >> c.rows >> c.width >> c.sections >> c.elements >> c.scales;
    cases.push_back(c);
  }
  return cases;
}

uint16_t plain_bits(uint64_t i, uint64_t width, uint64_t odd_every) {
  constexpr uint16_t kOdd[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x007F, 0x7F7F, 0xFF7F,
                               0x7F80, 0xFF80, 0x7FC0, 0x43E0, 0x43E1, 0x43DF};
  if (i % odd_every == 5) return kOdd[i / odd_every % std::size(kOdd)];
  const uint64_t h = (i * 2654435761U + 12345) % (1ULL << 32);
  return static_cast<uint16_t>((h >> 31) << 15 | (96 + (i / width) * 7 % 41 + (h >> 8) % 12) << 7 | ((h >> 20) & 127));
}

uint16_t edge_bits(uint64_t i) {
  const uint64_t r = i / 128;
  const uint64_t k = i % 128;
  const uint64_t top = (4 + r / 3) << 7;
  if (k == r % 128) return static_cast<uint16_t>(top + 0x60 + r % 3 - 1);
  return static_cast<uint16_t>((plain_bits(i, 128, 1ULL << 40) & 0x807FU) | (top - (1 + k % 4) * 128));
}

Tensor inputs(const Context& ctx, const Case& c) {
  Tensor x = ctx.empty(c.kind == "rows" || c.kind == "columns" ? Shape{c.rows, c.width} : Shape{c.experts, c.rows, c.width},
                       DType::kBF16);
  uint64_t i = 0;
  for (bf16& value : x.span<bf16>()) {
    value.bits =
        c.odd_every == 0 ? edge_bits(i) : plain_bits(i, static_cast<uint64_t>(c.width), static_cast<uint64_t>(c.odd_every));
    ++i;
  }
  return x;
}

std::string fnv(std::span<const uint8_t> bytes) {
  uint64_t h = 0xcbf29ce484222325U;
  for (const uint8_t byte : bytes) h = (h ^ byte) * 0x100000001b3U;
  return fmt::format("{:016x}", h);
}

std::string hex(std::span<const uint8_t> bytes) {
  std::string text;
  for (const uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

enum class By { kReference, kFast };

ops::MxTensor quantized(Context& ctx, const Case& c, By by) {
  const Tensor x = inputs(ctx, c);
  const bool weight = c.kind == "weight" || c.kind == "turned";
  const ops::MxTensor out =
      weight ? ops::mxfp8_empty_weights(ctx, x.shape(), c.group, c.sections) : ops::mxfp8_empty(ctx, c.rows, c.width, c.group);
  test::poison(out);
  if (weight && by == By::kFast) ops::mxfp8_quantize_weights(ctx, {.w = x, .out = out});
  if (weight && by == By::kReference) test::reference_quantize_weights(x, out);
  if (!weight && by == By::kFast) ops::mxfp8_quantize(ctx, {.x = x, .out = out});
  if (!weight && by == By::kReference) test::reference_quantize(x, {}, out.columns.depth(), out);
  return out;
}

TEST(Mxfp8Golden, QuantizersAgree) {
  test::CpuContext ctx(2);
  int64_t seen = 0;
  for (const Case& c : read_cases()) {
    if (c.kind == "e4m3") continue;
    SCOPED_TRACE(fmt::format("{} {} group {}", c.kind, c.odd_every, c.group));
    for (const By by : {By::kReference, By::kFast}) {
      const ops::MxTensor out = quantized(ctx, c, by);
      const ops::MxOperand& copy = c.kind == "rows" || c.kind == "weight" ? out.rows : out.columns;
      EXPECT_EQ(fnv(copy.elements.span<uint8_t>()), c.elements);
      EXPECT_EQ(hex(copy.scales.span<uint8_t>()), c.scales);
      copy.elements.span<uint8_t>().back() ^= 1U;  // the comparison sees one bit
      EXPECT_NE(fnv(copy.elements.span<uint8_t>()), c.elements);
    }
    ++seen;
  }
  EXPECT_EQ(seen, 12);
}

TEST(Mxfp8Golden, ElementsOfEveryBf16Agree) {
  std::vector<uint8_t> bytes;
  for (uint32_t bits = 0; bits < 0x8000U; ++bits) bytes.push_back(ops::e4m3_from_float(std::bit_cast<float>(bits << 16)));
  EXPECT_EQ(fnv(bytes), read_cases().back().elements);
}

}  // namespace
}  // namespace cistron
