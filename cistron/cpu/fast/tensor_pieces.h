#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace cistron::cpu {

/// Items [begin, end) of tensor number `tensor`: pieces of many tensors are one list of tasks.
struct TensorPiece {
  size_t tensor;
  int64_t begin, end;
};

/// `size(tensor)` items of each, at most `most` in a piece.
template <class Tensors, class Size>
std::vector<TensorPiece> cut_tensors(const Tensors& tensors, int64_t most, Size&& size) {
  std::vector<TensorPiece> pieces;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t end = size(tensors[i]);
    for (int64_t begin = 0; begin < end; begin += most) pieces.push_back({i, begin, std::min(end, begin + most)});
  }
  return pieces;
}

}  // namespace cistron::cpu
