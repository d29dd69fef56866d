#pragma once
// The least that each operation costs, for the profile. Pad rows of routed tensors count nothing.
#include "cistron/core/operation_timer.h"

namespace cistron::ops {

struct Add;
struct AddRmsNormForward;
struct AdamW;
struct AttentionBackward;
struct AttentionForward;
struct Cast;
struct Combine;
struct EmbeddingBackward;
struct EmbeddingForward;
struct Gather;
struct GradNorm;
struct GroupedBiasBackward;
struct GroupedGemmDgrad;
struct GroupedGemmForward;
struct GroupedGemmWgrad;
struct GroupedSwigluBackward;
struct GroupedSwigluForward;
struct LinearCrossEntropy;
struct MatmulDgrad;
struct MatmulForward;
struct MatmulWgrad;
struct Mxfp8GroupedGemm;
struct Mxfp8GroupedSwigluBackward;
struct Mxfp8GroupedSwigluForward;
struct Mxfp8GroupedWgrad;
struct Mxfp8Quantize;
struct Mxfp8QuantizeWeights;
struct RmsNormBackward;
struct RmsNormForward;
struct Rope;
struct RouterBackward;
struct RouterForward;
struct RouterStats;
struct ScaledSwigluBackward;
struct ScaledSwigluForward;
struct Zero;

/// Not known: small operations.
template <class Args>
Cost cost_of(const Args& /*args*/) {
  return {};
}

Cost cost_of(const Add& args);
Cost cost_of(const AddRmsNormForward& args);
Cost cost_of(const AdamW& args);
Cost cost_of(const AttentionBackward& args);
Cost cost_of(const AttentionForward& args);
Cost cost_of(const Cast& args);
Cost cost_of(const Combine& args);
Cost cost_of(const EmbeddingBackward& args);
Cost cost_of(const EmbeddingForward& args);
Cost cost_of(const Gather& args);
Cost cost_of(const GradNorm& args);
Cost cost_of(const GroupedBiasBackward& args);
Cost cost_of(const GroupedGemmDgrad& args);
Cost cost_of(const GroupedGemmForward& args);
Cost cost_of(const GroupedGemmWgrad& args);
Cost cost_of(const GroupedSwigluBackward& args);
Cost cost_of(const GroupedSwigluForward& args);
Cost cost_of(const LinearCrossEntropy& args);
Cost cost_of(const MatmulDgrad& args);
Cost cost_of(const MatmulForward& args);
Cost cost_of(const MatmulWgrad& args);
Cost cost_of(const Mxfp8GroupedGemm& args);
Cost cost_of(const Mxfp8GroupedSwigluBackward& args);
Cost cost_of(const Mxfp8GroupedSwigluForward& args);
Cost cost_of(const Mxfp8GroupedWgrad& args);
Cost cost_of(const Mxfp8Quantize& args);
Cost cost_of(const Mxfp8QuantizeWeights& args);
Cost cost_of(const RmsNormBackward& args);
Cost cost_of(const RmsNormForward& args);
Cost cost_of(const Rope& args);
Cost cost_of(const RouterBackward& args);
Cost cost_of(const RouterForward& args);
Cost cost_of(const RouterStats& args);
Cost cost_of(const ScaledSwigluBackward& args);
Cost cost_of(const ScaledSwigluForward& args);
Cost cost_of(const Zero& args);

}  // namespace cistron::ops
