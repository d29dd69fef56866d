#pragma once
// What the tests on a card share: a context there, and tensors that go there and come back.
#include <functional>

#include "cistron/ops/groups.h"
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
void copy_to_device(const Tensor& device, const Tensor& host);
Tensor to_host(const Context& cpu, const Tensor& device);
/// Every byte 0xff: NaN in every float format, the largest u8.
Tensor poisoned_on_device(const Context& cuda, const Shape& shape, DType dtype);
void poison_on_device(const Tensor& tensor);

/// A context on the CPU and one on the card, and things that travel between them.
class OnCard : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = CudaContext::unavailable(); !why.empty()) GTEST_SKIP() << why;
  }
  [[nodiscard]] Tensor device(const Tensor& host) const { return to_device(cuda_, host); }
  [[nodiscard]] ops::Groups device(ops::Groups groups) const;
  [[nodiscard]] Tensor host(const Tensor& device) const { return to_host(cpu_, device); }
  [[nodiscard]] Tensor poisoned_there(const Shape& shape, DType dtype) const { return poisoned_on_device(cuda_, shape, dtype); }
  /// `run` writes tensors on the card; gives them here, after it gave the same bits again.
  std::vector<Tensor> twice(const std::function<std::vector<Tensor>()>& run) const;

  CpuContext cpu_{2};
  CudaContext cuda_;
};

/// The same for operands in MXFP8.
ops::MxOperand to_device(const Context& cuda, ops::MxOperand host);
ops::MxTensor to_host(const Context& cpu, ops::MxTensor device);
void poison_on_device(const ops::MxTensor& tensor);

}  // namespace cistron::test

/// First line of a test's SetUp.
#define CISTRON_NEEDS_CARD() \
  if (const std::string why = ::cistron::test::CudaContext::unavailable(); !why.empty()) GTEST_SKIP() << why
