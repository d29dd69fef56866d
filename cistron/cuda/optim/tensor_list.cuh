#pragma once
// Many arrays in one launch. Their addresses travel in the kernel's parameters, which hold 32,764 bytes: no copy, no table to
// keep, and a captured graph has them too. More arrays than fit take further launches.
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "cistron/core/checked.h"
#include "cistron/core/tensor.h"
#include "cistron/cuda/runtime/runtime.h"

namespace cistron::cuda {

/// `Entry` has `int64_t elements` and `int32_t first_block`: its first piece's number in this launch.
template <class Entry, int kCapacity>
struct TensorList {
  Entry entries[kCapacity];
  int32_t count;

  /// The entry that a block's piece belongs to.
  [[nodiscard]] __device__ const Entry& of_block(int block) const {
    int low = 0, high = count - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (entries[middle].first_block <= block)
        low = middle;
      else
        high = middle - 1;
    }
    return entries[low];
  }
};

/// launch(list, blocks) for all entries with elements, as many at a time as fit, one block for each `piece` of an array.
template <class List, class Entry, class Launch>
void for_tensor_lists(std::span<const Entry> entries, int64_t piece, Launch&& launch) {
  constexpr size_t kCapacity = std::extent_v<decltype(List::entries)>;
  static_assert(sizeof(List) <= 32000);
  auto list = std::make_unique<List>();
  int64_t blocks = 0;
  const auto flush = [&] {
    if (list->count > 0) launch(*list, narrow<uint32_t>(blocks));
    list->count = 0;
    blocks = 0;
  };
  list->count = 0;
  for (const Entry& entry : entries) {
    if (entry.elements == 0) continue;
    if (static_cast<size_t>(list->count) == kCapacity) flush();
    Entry& placed = list->entries[list->count++];
    placed = entry;
    placed.first_block = narrow<int32_t>(blocks);
    blocks += ceil_div(entry.elements, piece);
  }
  flush();
}

}  // namespace cistron::cuda
