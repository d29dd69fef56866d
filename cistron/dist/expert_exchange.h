#pragma once
// Expert parallelism: tokens to the ranks that hold their experts, and the results back, over the mesh's ep axis.
//
// A token goes once to each rank that holds any of its k experts, with its expert numbers and routing weights. What comes back is
// that rank's part of the sum over the token's experts; here the parts are added in rank order. Backward takes the same way: the
// gradient of the sum goes out, the gradients of the parts' tokens and weights come back and are added.
//
// No token is dropped. There is room for `Context::headroom` times the mean; when any rank of the world is sent more, all of them
// throw the same Overflow (dist/overflow.h) before a token moves. All ranks of the world come here together, each with any number
// of tokens.
//
// T tokens of this rank, k experts each, C received tokens that there is room for, E experts of the model. On the meta device all
// ranks are taken to have T tokens.
#include <vector>

#include "cistron/dist/mesh.h"
#include "cistron/ops/groups.h"

namespace cistron::dist {

/// What an expert-parallel rank has room for.
struct ExpertRoom {
  int64_t tokens = 0;  ///< C
  int64_t rows = 0;    ///< choices of its experts, before their segments are aligned
};

struct ExpertLayout {
  int64_t experts = 0;
  int64_t top_k = 0;
  int ep = 1;
};

/// The mean when `tokens` tokens, of all ranks of an ep group, choose evenly among the experts.
struct ExpertLoad {
  double tokens = 0.0;
  double rows = 0.0;
};
ExpertLoad mean_load(const ExpertLayout& layout, int index, int64_t tokens);

/// headroom x the mean on ep rank `index`; a few tokens more than that at small sizes, and never more than there can be.
ExpertRoom room_for(const ExpertLayout& layout, int index, int64_t tokens, double headroom);

/// Which of this rank's tokens go where, and how many come.
struct ExpertRoute {
  ops::Groups sends;    // "experts" are the ep ranks: token_rows [T, min(k, ep)]
  Tensor receive_rows;  // [ep] i64 on the host: from each rank
  ExpertRoom room;      // here
};

/// `experts` [T, k] i32, numbers in the whole model; others throw.
ExpertRoute plan_route(Context& ctx, const Tensor& experts, int64_t num_experts);

/// x [T, n] of each rank's tokens to [C, n] of the received tokens, any dtype. What lies past the last one is undefined.
Tensor send_tokens(Context& ctx, const ExpertRoute& route, const Tensor& x);
/// The same for expert numbers [T, k] i32; -1 past the last one.
Tensor send_choices(Context& ctx, const ExpertRoute& route, const Tensor& experts);
/// parts [C, n], f32 or bf16, back to where their tokens came from, where they are added: [T, n].
Tensor return_tokens(Context& ctx, const ExpertRoute& route, const Tensor& parts);

}  // namespace cistron::dist
