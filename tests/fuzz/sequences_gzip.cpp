// FASTA and FASTQ behind gzip and bgzip. What zlib unpacks as one whole member must give the records of the plain text.
#include <zlib.h>

#include "tests/fuzz/sequences.h"

using namespace cistron;

namespace {

constexpr size_t kMost = 1 << 16;  // unpacked

/// Of one gzip member that is all of `packed`; else empty.
std::string unpacked(std::string_view packed) {
  z_stream stream{};
  if (inflateInit2(&stream, 15 + 16) != Z_OK) return {};
  std::string text(kMost, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(text.data());
  stream.avail_out = static_cast<uInt>(text.size());
  const bool whole = inflate(&stream, Z_FINISH) == Z_STREAM_END && stream.avail_in == 0;
  text.resize(whole ? stream.total_out : 0);
  inflateEnd(&stream);
  return text;
}

// A member with an extra field may be a block of bgzip, which has more to it.
bool is_plain_gzip(std::string_view packed) { return packed.size() > 3 && (packed[3] & 4) == 0; }

// Packed twice: as a file of its own the text would be unpacked once more.
bool is_packed(std::string_view text) { return text.starts_with("\x1f\x8b"); }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::Folder folder;
  const std::string_view packed = fuzz::text_of(data, size);
  const fuzz::Records records = fuzz::read_records(folder.write("a.gz", packed));
  const std::string text = unpacked(packed);
  if (text.empty() || is_packed(text) || !is_plain_gzip(packed)) return 0;
  const fuzz::Records plain = fuzz::read_records(folder.write("a.fasta", text));
  CISTRON_CHECK(plain.whole == records.whole && plain.text == records.text, "gzip gives {}, plain text {}", records.text,
                plain.text);
  return 0;
}

#ifdef CISTRON_FUZZ
#include "tests/fuzz/json_mutator.h"

namespace {

std::string packed(const std::string& text, int level) {
  z_stream stream{};
  if (deflateInit2(&stream, level, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK) return {};
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

}  // namespace

// Half of the time the text inside, packed again.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  const std::string text = unpacked(fuzz::text_of(data, size));
  if (text.empty() || seed % 2 == 0) return LLVMFuzzerMutate(data, size, max_size);
  return fuzz::put(packed(fuzz::changed_bytes(text, 64), static_cast<int>(seed / 2 % 3) * 3), data, max_size);
}
#endif
