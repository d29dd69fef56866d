#include "cistron/core/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <new>
#include <utility>

#include "cistron/core/checked.h"

namespace cistron {

namespace {

constexpr int64_t kHugePage = int64_t{1} << 21;
constexpr int64_t kElsewhere = -1;  // the offset of a block outside a planned arena's own

class HostMemory final : public MemorySource {
 public:
  std::byte* allocate(int64_t bytes) override {
    const int64_t alignment = bytes < kHugePage ? Arena::kAlignment : kHugePage;
    void* data = nullptr;
    if (posix_memalign(&data, static_cast<size_t>(alignment), static_cast<size_t>(bytes)) != 0)
      throw Error(ErrorKind::kOutOfSpace, fmt::format("out of memory: host: {} bytes asked for", bytes));
    if (bytes >= kHugePage) madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);
    return static_cast<std::byte*>(data);
  }
  void release(std::byte* data, int64_t /*bytes*/) override { std::free(data); }
};

}  // namespace

MemorySource& host_memory() {
  static HostMemory memory;  // stateless
  return memory;
}

Arena::Arena(std::string name, Device device, MemorySource* source, Backing backing, int64_t capacity)
    : name_(std::move(name)), device_(device), source_(source), backing_(backing), capacity_(capacity) {
  if (backing_ == Backing::kOneBlock && capacity_ > 0) base_ = source_->allocate(capacity_);
}

Arena::~Arena() {
  if (base_ != nullptr) source_->release(base_, capacity_);
}

std::shared_ptr<Arena> Arena::meta(std::string name) {
  return std::shared_ptr<Arena>(
      new Arena(std::move(name), Device{DeviceKind::kMeta}, nullptr, Backing::kNone, std::numeric_limits<int64_t>::max()));
}

std::shared_ptr<Arena> Arena::planned(std::string name, Device device, MemorySource& source, int64_t capacity) {
  return std::shared_ptr<Arena>(new Arena(std::move(name), device, &source, Backing::kOneBlock, round_up(capacity, kAlignment)));
}

std::shared_ptr<Arena> Arena::growing(std::string name, Device device, MemorySource& source) {
  return std::shared_ptr<Arena>(new Arena(std::move(name), device, &source, Backing::kEach, std::numeric_limits<int64_t>::max()));
}

// First-fit may need a higher end for a batch of fewer tokens than for the planned one, whose tensors fit their holes: what a
// rank gets varies. As long as no more is in use than was planned, the host's memory, where untouched pages cost nothing, lends a
// block.
Arena::Block Arena::allocate(int64_t bytes) {
  Block block;
  block.bytes = std::max(round_up(bytes, kAlignment), kAlignment);
  const auto fits = [&](const auto& hole) { return hole.second >= block.bytes; };
  const bool splintered = backing_ == Backing::kOneBlock && device_.is_cpu() && block.bytes > capacity_ - end_ &&
                          block.bytes <= capacity_ - in_use_ && std::none_of(holes_.begin(), holes_.end(), fits);
  block.offset = splintered ? kElsewhere : take_offset(block.bytes);
  if (backing_ == Backing::kOneBlock && !splintered) block.data = base_ + block.offset;
  if (backing_ == Backing::kEach || splintered) block.data = source_->allocate(block.bytes);
  in_use_ += block.bytes;
  return block;
}

void Arena::release(const Block& block) {
  if (backing_ == Backing::kEach || block.offset == kElsewhere) source_->release(block.data, block.bytes);
  if (block.offset != kElsewhere) give_offset(block.offset, block.bytes);
  in_use_ -= block.bytes;
}

int64_t Arena::take_offset(int64_t bytes) {
  const auto hole = std::find_if(holes_.begin(), holes_.end(), [&](const auto& h) { return h.second >= bytes; });
  if (hole != holes_.end()) {
    const auto [offset, size] = *hole;
    holes_.erase(hole);
    if (size > bytes) holes_.emplace(offset + bytes, size - bytes);
    return offset;
  }
  if (bytes > capacity_ - end_)
    throw Error(ErrorKind::kOutOfSpace,
                fmt::format("out of memory: arena '{}': {} bytes asked for, {} of {} in use", name_, bytes, in_use_, capacity_));
  const int64_t offset = end_;
  end_ += bytes;
  peak_ = std::max(peak_, end_);
  return offset;
}

void Arena::give_offset(int64_t offset, int64_t bytes) {
  auto next = holes_.lower_bound(offset);
  if (next != holes_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      offset = previous->first;
      bytes += previous->second;
      holes_.erase(previous);
    }
  }
  if (next != holes_.end() && offset + bytes == next->first) {
    bytes += next->second;
    holes_.erase(next);
  }
  if (offset + bytes == end_) {
    end_ = offset;
    return;
  }
  try {
    holes_.emplace(offset, bytes);
  } catch (const std::bad_alloc&) {  // destructors come here: the room is lost, and who needs it will say so
  }
}

}  // namespace cistron
