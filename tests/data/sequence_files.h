#pragma once
#include <htslib/bgzf.h>

#include <string>

#include "cistron/core/error.h"

namespace cistron::testing {

/// One bgzip block of under 64 KiB: a gzip member whose extra field holds its own length (SAM specification, 4.1).
inline std::string bgzip_block(const std::string& text) {
  std::string block(BGZF_MAX_BLOCK_SIZE, '\0');
  size_t size = block.size();
  CISTRON_CHECK(bgzf_compress(block.data(), &size, text.data(), text.size(), 6) == 0, "bgzf_compress");
  block.resize(size);
  return block;
}

/// The block that ends a bgzip file.
inline std::string bgzip_end() { return bgzip_block(""); }

/// One plain gzip member: the same without the extra field.
inline std::string gzip(const std::string& text) {
  const std::string header("\x1f\x8b\x08\0\0\0\0\0\0\xff", 10);
  return header + bgzip_block(text).substr(18);
}

}  // namespace cistron::testing
