#pragma once
// What each layout of ranks would need, for `cistron plan`: from runs on the meta device, which hold nothing.
#include <cstdint>
#include <string>
#include <vector>

#include "cistron/train/trainer.h"

namespace cistron::train {

/// Every dp x ep = ranks whose ep the experts can be spread over.
std::vector<dist::MeshShape> legal_layouts(int ranks, int64_t experts);

struct LayoutPlan {
  dist::MeshShape shape;
  int rank = 0;            ///< that holds the most
  int64_t parameters = 0;  ///< that it holds, shards counted as such
  MemoryPlan memory;       ///< of that rank
};
LayoutPlan plan_layout(const RunConfig& config, const dist::MeshShape& shape);

/// The first change that makes `shape` fit into `memory` bytes a rank, in words that can be pasted; empty where none of those
/// tried does.
std::string what_would_fit(const RunConfig& config, const dist::MeshShape& shape, int64_t memory);

}  // namespace cistron::train
