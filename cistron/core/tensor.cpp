#include "cistron/core/tensor.h"

#include <fmt/format.h>

#include <utility>

#include "cistron/core/checked.h"

namespace cistron {

namespace {

struct OwnedBlock {
  std::shared_ptr<Arena> arena;
  Arena::Block block;
  OwnedBlock(std::shared_ptr<Arena> a, int64_t bytes) : arena(std::move(a)), block(arena->allocate(bytes)) {}
  ~OwnedBlock() { arena->release(block); }
  OwnedBlock(const OwnedBlock&) = delete;
  OwnedBlock& operator=(const OwnedBlock&) = delete;
};

}  // namespace

Tensor Tensor::empty(const std::shared_ptr<Arena>& arena, const Shape& shape, DType dtype) {
  auto owned = std::make_shared<OwnedBlock>(arena, checked_mul(shape.numel(), size_of(dtype)));
  Tensor tensor = view(owned->block.data, shape, dtype, arena->device());
  tensor.owner_ = std::move(owned);
  return tensor;
}

Tensor Tensor::view(void* data, const Shape& shape, DType dtype, Device device) {
  Tensor tensor;
  tensor.data_ = static_cast<std::byte*>(data);
  tensor.shape_ = shape;
  tensor.dtype_ = dtype;
  tensor.device_ = device;
  return tensor;
}

Tensor Tensor::reshape(const Shape& shape) const {
  CISTRON_CHECK(shape.numel() == numel(), "[reshape] {} has not as many elements as {}", to_string(shape), to_string(shape_));
  Tensor result = *this;
  result.shape_ = shape;
  return result;
}

Tensor Tensor::rows(int64_t begin, int64_t count) const {
  CISTRON_CHECK(begin >= 0 && count >= 0 && begin + count <= dim(0), "[rows] {} + {} of {}", begin, count, dim(0));
  Tensor result = *this;
  result.shape_.set(0, count);
  const int64_t row_bytes = dim(0) == 0 ? 0 : bytes() / dim(0);
  if (data_ != nullptr) result.data_ = data_ + begin * row_bytes;
  return result;
}

void Tensor::check_dtype(DType wanted) const {
  CISTRON_CHECK(dtype_ == wanted, "a tensor of {} was read as {}", name_of(dtype_), name_of(wanted));
}

void check_tensor(const char* op, const char* what, const Tensor& tensor, const Shape& shape, DType dtype) {
  CISTRON_CHECK(tensor.shape() == shape && tensor.dtype() == dtype, "[{}] {} is {} {}, wanted {} {}", op, what,
                to_string(tensor.shape()), name_of(tensor.dtype()), to_string(shape), name_of(dtype));
}

}  // namespace cistron
