#include "cistron/cpu/fast/onednn.h"

#include <omp.h>

#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>

#include "cistron/core/error.h"
#include "cistron/cpu/fast/chain_gemm.h"

namespace cistron::cpu {

namespace {

using Dims = dnnl::memory::dims;

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

// oneDNN's OpenMP runtime would split a product by its own number of threads; ours are outside. The caller's setting comes back.
class OneOpenMpThread {
 public:
  OneOpenMpThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneOpenMpThread() { omp_set_num_threads(before_); }
  OneOpenMpThread(const OneOpenMpThread&) = delete;
  OneOpenMpThread& operator=(const OneOpenMpThread&) = delete;

 private:
  int before_;
};

dnnl::memory::data_type type_of(DType dtype) {
  return dtype == DType::kBF16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

dnnl::memory::desc describe(int64_t rows, int64_t cols, int64_t ld, bool transposed, DType dtype) {
  return {Dims{rows, cols}, type_of(dtype), transposed ? Dims{1, ld} : Dims{ld, 1}};
}

dnnl::matmul make_matmul(const dnnl::memory::desc& a, const dnnl::memory::desc& b, const dnnl::memory::desc& c, bool accumulate) {
  dnnl::post_ops post;
  if (accumulate) post.append_sum(1.0F);
  dnnl::primitive_attr attr;
  attr.set_post_ops(post);
#if DNNL_VERSION_MAJOR >= 3
  return dnnl::matmul(dnnl::matmul::primitive_desc(engine(), a, b, c, attr));
#else
  return dnnl::matmul(dnnl::matmul::primitive_desc(dnnl::matmul::desc(a, b, c), attr, engine()));
#endif
}

class Product {
 public:
  explicit Product(const Gemm& g)
      : a_(describe(g.m, g.k, g.lda, g.transpose_a, g.in), engine(), nullptr),
        b_(describe(g.k, g.n, g.ldb, g.transpose_b, g.in), engine(), nullptr),
        c_(describe(g.m, g.n, g.ldc, false, g.out), engine(), nullptr),
        matmul_(make_matmul(a_.get_desc(), b_.get_desc(), c_.get_desc(), g.accumulate)),
        stream_(engine()) {}

  void run(const void* a, const void* b, void* c) {
    a_.set_data_handle(const_cast<void*>(a));
    b_.set_data_handle(const_cast<void*>(b));
    c_.set_data_handle(c);
    try {
      matmul_.execute(stream_, {{DNNL_ARG_SRC, a_}, {DNNL_ARG_WEIGHTS, b_}, {DNNL_ARG_DST, c_}});
    } catch (const dnnl::error& error) {
      if (error.status != dnnl_out_of_memory) throw Error(ErrorKind::kFailed, "a product failed", "oneDNN", error.message);
      throw Error(ErrorKind::kOutOfSpace, "out of memory", "oneDNN, in a product", "use a smaller model or batch");
    }
  }

 private:
  dnnl::memory a_, b_, c_;
  dnnl::matmul matmul_;
  dnnl::stream stream_;
};

struct HashGemm {
  size_t operator()(const Gemm& g) const {
    size_t hash = 0;
    for (const int64_t value : {g.m, g.n, g.k, g.lda, g.ldb, g.ldc,
                                int64_t{g.transpose_a} | int64_t{g.transpose_b} << 1 | int64_t{g.accumulate} << 2 |
                                    static_cast<int64_t>(g.in) << 8 | static_cast<int64_t>(g.out) << 16})
      hash = (hash ^ static_cast<size_t>(value)) * 0x9e3779b97f4a7c15U + (hash >> 29);
    return hash;
  }
};

bool can_use(dnnl::cpu_isa wanted) {
  const auto bits = static_cast<unsigned>(wanted);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & bits) == bits;
}

}  // namespace

bool has_fast_bf16() {
  static const bool has = can_use(dnnl::cpu_isa::avx512_core_bf16);
  return has;
}

bool has_amx() {
  static const bool has = can_use(dnnl::cpu_isa::avx512_core_amx);
  return has;
}

void gemm(const Gemm& shape, const void* a, const void* b, void* c) {
  if (shape.in == DType::kBF16 && !has_fast_bf16())
    throw Error(ErrorKind::kUsage, "bf16 products", "this processor has no avx512_bf16", "choose the recipe fp32");
  static const bool has_avx512 = can_use(dnnl::cpu_isa::avx512_core);
  if (shape.in == DType::kF32 && !has_avx512)
    return chain_gemm(shape, static_cast<const float*>(a), static_cast<const float*>(b), static_cast<float*>(c));
  const OneOpenMpThread one_thread;
  thread_local std::unordered_map<Gemm, Product, HashGemm> products;
  products.try_emplace(shape, shape).first->second.run(a, b, c);
}

}  // namespace cistron::cpu
