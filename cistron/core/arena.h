#pragma once
// Memory of one device for one purpose. Offsets are handed out first-fit from a free list, by the same code with and without
// bytes behind them, so that a run on the meta device tells exactly what a real one will use.
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "cistron/core/device.h"

namespace cistron {

/// Where an arena's bytes come from; a device's backend implements it.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  /// 64-byte aligned at least; throws Error(kOutOfSpace) when there is not enough.
  virtual std::byte* allocate(int64_t bytes) = 0;
  virtual void release(std::byte* data, int64_t bytes) = 0;
};

/// Ordinary host memory.
MemorySource& host_memory();

/// Not thread-safe: one arena belongs to one rank's main thread.
class Arena {
 public:
  static constexpr int64_t kAlignment = 256;

  /// Shapes only. `peak()` after a run is the capacity that a planned arena needs for the same run.
  static std::shared_ptr<Arena> meta(std::string name);
  /// One block of `capacity` bytes, taken now. A run that needs more throws Error(kOutOfSpace) naming the arena.
  static std::shared_ptr<Arena> planned(std::string name, Device device, MemorySource& source, int64_t capacity);
  /// A block from the source for each allocation; for tools and tests that have no plan.
  static std::shared_ptr<Arena> growing(std::string name, Device device, MemorySource& source);

  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  struct Block {
    int64_t offset = 0;
    int64_t bytes = 0;          ///< rounded up to kAlignment
    std::byte* data = nullptr;  ///< null on meta
  };
  Block allocate(int64_t bytes);
  void release(const Block& block);

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] Device device() const { return device_; }
  [[nodiscard]] int64_t in_use() const { return in_use_; }
  /// The highest end offset so far, holes included.
  [[nodiscard]] int64_t peak() const { return peak_; }

 private:
  enum class Backing { kNone, kOneBlock, kEach };
  Arena(std::string name, Device device, MemorySource* source, Backing backing, int64_t capacity);
  int64_t take_offset(int64_t bytes);
  void give_offset(int64_t offset, int64_t bytes);

  std::string name_;
  Device device_;
  MemorySource* source_;
  Backing backing_;
  int64_t capacity_;
  std::byte* base_ = nullptr;
  std::map<int64_t, int64_t> holes_;  // offset -> bytes, below end_
  int64_t end_ = 0;
  int64_t in_use_ = 0;
  int64_t peak_ = 0;
};

}  // namespace cistron
