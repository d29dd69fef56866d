#pragma once
// What the tests on a card share: a context there, and tensors that go there and come back.
#include <functional>

#include "cistron/ops/mxfp8.h"
#include "tests/ops/support.h"

namespace cistron::test {

/// A context on card 0; `unavailable()` says why there is none, or "".
class CudaContext : public Context {
 public:
  CudaContext();
  static std::string unavailable();
};

/// What `run` queues, captured into a graph and replayed `times` times; scratch comes from an arena of `bytes`.
void replay_captured(int64_t bytes, int times, const std::function<void(Context&)>& run);

Tensor to_device(const Context& cuda, const Tensor& host);
Tensor to_host(const Context& cpu, const Tensor& device);
/// Every byte 0xff: NaN in every float format, the largest u8.
Tensor poisoned_on_device(const Context& cuda, const Shape& shape, DType dtype);
void poison_on_device(const Tensor& tensor);

/// The same for operands in MXFP8.
ops::MxOperand to_device(const Context& cuda, ops::MxOperand host);
ops::MxTensor to_host(const Context& cpu, ops::MxTensor device);
void poison_on_device(const ops::MxTensor& tensor);

}  // namespace cistron::test

/// First line of a test's SetUp.
#define CISTRON_NEEDS_CARD() \
  if (const std::string why = ::cistron::test::CudaContext::unavailable(); !why.empty()) GTEST_SKIP() << why
