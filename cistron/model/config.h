#pragma once
// The shape of a Mixtral-style decoder. Names follow the literature; Hugging Face's names are in hugging_face.h.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cistron::model {

/// Both ends included.
struct Range {
  double least, most;
};
constexpr Range kRopeTheta{1e-6, 1e18}, kRmsEps{1e-12, 1}, kInitStd{0, 10}, kClipQkv{0, 1e6}, kRouterLoss{0, 1e3};

struct ModelConfig {
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t intermediate = 0;  // of each expert
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;  // 0: hidden / heads
  int64_t experts = 0;
  int64_t top_k = 0;
  int64_t context = 0;  // the longest sequence
  int64_t vocabulary = 0;
  double rope_theta = 1e4;
  double rms_eps = 1e-5;
  double init_std = 0.02;
  double clip_qkv = 0.0;   // q, k, v are clamped to +-clip_qkv; 0: not at all
  double aux_loss = 0.01;  // coefficient of the load-balancing loss
  double z_loss = 0.0;     // coefficient of the router's z-loss
  bool tied_head = false;  // the head is the embedding table

  /// Throws Error(kUsage) naming the key, its value and what would do. Fills head_dim when it is 0.
  void validate();
  [[nodiscard]] int64_t parameters() const;
  /// Parameters that take part in one token: all but the experts it is not routed to.
  [[nodiscard]] int64_t active_parameters() const;
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

/// The ready shapes of biology: tiny-protein, mixtral-8x7b, fine-grained-64, progen3-3b, genos-1.2b. Throws Error(kUsage) with
/// the nearest name.
ModelConfig preset(std::string_view name);
std::vector<std::string> preset_names();

}  // namespace cistron::model
