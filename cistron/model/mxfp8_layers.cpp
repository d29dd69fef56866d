#include "cistron/model/mxfp8_layers.h"

#include "cistron/core/error.h"

namespace cistron::model {

namespace {

/// Hopper's products contract 128 values at a time, whatever shares a scale.
int64_t unit_of(Precision precision, const Device& device) { return device.is_cuda() ? 128 : mx_group(precision); }

struct Width {
  std::string_view name;
  int64_t value;
  std::string_view advice;
};

}  // namespace

void check_mxfp8(const ModelConfig& c, const Mxfp8Layers& layers, Precision precision, const Device& device,
                 std::string_view where) {
  if (mx_group(precision) == 0) return;
  if (layers.bf16_first + layers.bf16_last >= c.layers)
    throw Error(ErrorKind::kUsage,
                fmt::format("mxfp8 in none of {} layers: the first {} and the last {} stay in bf16", c.layers, layers.bf16_first,
                            layers.bf16_last),
                where, "lower precision.mxfp8.bf16_first or bf16_last, or use bf16");
  constexpr std::string_view kOther = "use bf16, or another width";
  constexpr std::string_view kExpertsAlone = "use bf16, or precision.mxfp8.attention = false";
  std::vector<Width> widths{{"hidden", c.hidden, kOther}, {"intermediate", c.intermediate, kOther}};
  if (layers.attention) {
    widths.push_back({"heads x head_dim", c.heads * c.head_dim, kExpertsAlone});
    widths.push_back({"(heads + 2 kv_heads) x head_dim", (c.heads + 2 * c.kv_heads) * c.head_dim, kExpertsAlone});
  }
  const int64_t unit = unit_of(precision, device);
  for (const Width& width : widths)
    if (width.value % unit != 0)
      throw Error(ErrorKind::kUsage,
                  fmt::format("mxfp8 takes widths that are multiples of {}, and {} is {}", unit, width.name, width.value), where,
                  width.advice);
}

}  // namespace cistron::model
