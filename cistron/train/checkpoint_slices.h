#pragma once
// What one rank writes into a checkpoint.
#include <memory>
#include <vector>

#include "cistron/nn/local_parameters.h"

namespace cistron::train {

/// Rows [begin, begin + count) of a parameter, counted over all its dims but the last (a vector's elements).
struct ParameterSlice {
  std::string name;
  Shape shape;  ///< of the whole parameter
  int64_t begin = 0;
  int64_t count = 0;
  Tensor master;            ///< f32 or bf16, `count` rows
  Tensor m, v;              ///< f32, bf16 or 8-bit codes; undefined where there are no moments
  Tensor m_scale, v_scale;  ///< of codes

  [[nodiscard]] bool is_whole() const { return count == nn::num_rows(shape); }
};

/// The word that safetensors has for the dtypes of these.
inline const char* format_word(DType dtype) { return dtype == DType::kU8 ? "U8" : dtype == DType::kBF16 ? "BF16" : "F32"; }

/// What the parameters own on this rank, as views. Slices without a row are left out.
std::vector<ParameterSlice> slices_of(const nn::LocalParameters& parameters);

/// A copy in host memory of its own, which training may go on without.
std::vector<ParameterSlice> copy_of(Context& ctx, const std::vector<ParameterSlice>& slices);

}  // namespace cistron::train
