#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace cistron {

/// Up to four dims, row-major: the last one is contiguous.
class Shape {
 public:
  static constexpr int kMaxRank = 4;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims);

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int64_t operator[](int dim) const { return dims_[static_cast<size_t>(dim)]; }
  void append(int64_t dim);
  void set(int dim, int64_t size);
  /// The product of the dims (1 for rank 0); throws on overflow.
  [[nodiscard]] int64_t numel() const;
  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

/// `[8, 512, 256]`
std::string to_string(const Shape& shape);

}  // namespace cistron
