#pragma once
#include <memory>
#include <span>

#include "cistron/core/arena.h"
#include "cistron/core/dtype.h"
#include "cistron/core/shape.h"

namespace cistron {

/// A contiguous row-major array: owning (shares an arena block, returned when the last tensor over it goes) or a view of
/// memory that somebody else owns. Copies are shallow. On the meta device it has a shape and no bytes.
class Tensor {
 public:
  Tensor() = default;
  /// Uninitialised elements from `arena`.
  static Tensor empty(const std::shared_ptr<Arena>& arena, const Shape& shape, DType dtype);
  /// A view of foreign memory, which must outlive it.
  static Tensor view(void* data, const Shape& shape, DType dtype, Device device = {});
  template <class T>
  static Tensor view(std::span<T> data) {
    return view(const_cast<std::remove_const_t<T>*>(data.data()), {static_cast<int64_t>(data.size())},
                dtype_of<std::remove_const_t<T>>());
  }

  [[nodiscard]] bool defined() const { return shape_.rank() > 0; }
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] Device device() const { return device_; }
  [[nodiscard]] const Shape& shape() const { return shape_; }
  [[nodiscard]] int64_t dim(int i) const { return shape_[i]; }
  [[nodiscard]] int64_t numel() const { return shape_.numel(); }
  [[nodiscard]] int64_t bytes() const { return numel() * size_of(dtype_); }

  /// Null on meta. The typed form throws unless T is the dtype.
  [[nodiscard]] void* raw() const { return data_; }
  template <class T>
  [[nodiscard]] T* data() const {
    check_dtype(dtype_of<T>());
    return static_cast<T*>(static_cast<void*>(data_));
  }
  /// The elements, for host tensors.
  template <class T>
  [[nodiscard]] std::span<T> span() const {
    return {data<T>(), static_cast<size_t>(numel())};
  }

  /// The same elements under another shape of equal size.
  [[nodiscard]] Tensor reshape(const Shape& shape) const;
  /// Rows [begin, begin + count) of dim 0, sharing storage.
  [[nodiscard]] Tensor rows(int64_t begin, int64_t count) const;

 private:
  void check_dtype(DType wanted) const;

  std::shared_ptr<void> owner_;
  std::byte* data_ = nullptr;
  Shape shape_;
  DType dtype_ = DType::kF32;
  Device device_;
};

/// Throws, tagged with `op` and naming `what`, unless `tensor` has this shape and dtype.
void check_tensor(const char* op, const char* what, const Tensor& tensor, const Shape& shape, DType dtype);

}  // namespace cistron
