#include "cistron/dist/expert_exchange.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cistron/core/checked.h"
#include "cistron/core/error.h"
#include "cistron/dist/overflow.h"
#include "cistron/ops/elementwise.h"
#include "cistron/ops/gather.h"

namespace cistron::dist {
namespace {

// Of few tokens many may well go to one rank, and room for them costs nothing.
constexpr int64_t kLeastRoom = 128;

int64_t with_headroom(double mean, double headroom, int64_t most) {
  const double wanted = std::ceil(mean * headroom);
  if (wanted >= static_cast<double>(most)) return most;
  return std::min(most, std::max(kLeastRoom, static_cast<int64_t>(wanted)));
}

/// The rank that holds an expert, by expert.
std::vector<int32_t> holders(const ExpertLayout& layout) {
  std::vector<int32_t> holder(static_cast<size_t>(layout.experts));
  for (int32_t index = 0; index < layout.ep; ++index) {
    const Range held = experts_of(layout.experts, layout.ep, index);
    std::fill_n(holder.begin() + held.begin, held.count, index);
  }
  return holder;
}

/// What one rank is sent by another.
struct Count {
  int64_t tokens = 0;
  int64_t rows = 0;
};

/// destinations [T, min(k, ep)]: the ranks that hold any of a token's experts, ascending, then -1. Gives the counts by rank.
std::vector<Count> find_destinations(const ExpertLayout& layout, const Tensor& experts, const Tensor& destinations) {
  const std::vector<int32_t> holder = holders(layout);
  const auto chosen = experts.span<int32_t>();
  const auto out = destinations.span<int32_t>();
  const auto top_k = static_cast<size_t>(layout.top_k), width = static_cast<size_t>(destinations.dim(1));
  std::vector<Count> counts(static_cast<size_t>(layout.ep));
  std::vector<int32_t> ranks(top_k);
  for (size_t t = 0; t < static_cast<size_t>(experts.dim(0)); ++t) {
    for (size_t j = 0; j < top_k; ++j) {
      const int32_t expert = chosen[t * top_k + j];
      CISTRON_CHECK(expert >= 0 && expert < layout.experts, "[exchange] a token's expert is {} of {}", expert, layout.experts);
      ranks[j] = holder[static_cast<size_t>(expert)];
      ++counts[static_cast<size_t>(ranks[j])].rows;
    }
    std::sort(ranks.begin(), ranks.end());
    const auto end = std::unique(ranks.begin(), ranks.end());
    const auto used = static_cast<size_t>(end - ranks.begin());
    for (size_t i = 0; i < width; ++i) out[t * width + i] = i < used ? ranks[i] : -1;
    for (auto rank = ranks.begin(); rank != end; ++rank) ++counts[static_cast<size_t>(*rank)].tokens;
  }
  return counts;
}

/// Everybody's tokens, and what everybody sends to whom within its ep group.
class Traffic {
 public:
  Traffic(const Mesh& mesh, int64_t tokens, const std::vector<Count>& sent) : shape_(mesh.shape()), width_(1 + 2 * shape_.ep) {
    std::vector<int64_t> mine{tokens};
    for (const Count& count : sent) mine.insert(mine.end(), {count.tokens, count.rows});
    all_.resize(static_cast<size_t>(mesh.world().size() * width_));
    mesh.world().all_gather(Tensor::view(std::span(mine)), Tensor::view(std::span(all_))).wait();
  }
  [[nodiscard]] int64_t tokens_of_group(int dp) const {
    int64_t sum = 0;
    for (int ep = 0; ep < shape_.ep; ++ep) sum += at(dp, ep, 0);
    return sum;
  }
  [[nodiscard]] Count from(int dp, int source, int to) const { return {at(dp, source, 1 + 2 * to), at(dp, source, 2 + 2 * to)}; }
  [[nodiscard]] Count received(int dp, int to) const {
    Count sum;
    for (int source = 0; source < shape_.ep; ++source) {
      sum.tokens += from(dp, source, to).tokens;
      sum.rows += from(dp, source, to).rows;
    }
    return sum;
  }

 private:
  [[nodiscard]] int64_t at(int dp, int ep, int i) const { return all_[static_cast<size_t>((dp * shape_.ep + ep) * width_ + i)]; }

  MeshShape shape_;
  int width_;
  std::vector<int64_t> all_;
};

/// The same on every rank: throws when any is sent more than it has room for.
void check_room(const Traffic& traffic, const MeshShape& shape, const ExpertLayout& layout, double headroom) {
  double enough = 0.0;
  for (int dp = 0; dp < shape.dp; ++dp)
    for (int index = 0; index < shape.ep; ++index) {
      const int64_t tokens = traffic.tokens_of_group(dp);
      const ExpertRoom room = room_for(layout, index, tokens, headroom);
      const Count got = traffic.received(dp, index);
      const ExpertLoad mean = mean_load(layout, index, tokens);
      if (got.tokens > room.tokens) enough = std::max(enough, static_cast<double>(got.tokens) / mean.tokens);
      if (got.rows > room.rows) enough = std::max(enough, static_cast<double>(got.rows) / mean.rows);
    }
  if (enough > 0.0) throw Overflow(headroom, enough);
}

std::vector<int64_t> send_rows(const ExpertRoute& route) {
  const auto counts = route.sends.counts.span<int32_t>();
  return {counts.begin(), counts.end()};
}

int64_t sum(std::span<const int64_t> counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

// The first rows of a send buffer to the first rows of a receive buffer; both may be longer.
void exchange(Context& ctx, const Tensor& send, std::span<const int64_t> sends, const Tensor& receive,
              std::span<const int64_t> receives) {
  ctx.mesh->ep().all_to_all(send.rows(0, sum(sends)), sends, receive.rows(0, sum(receives)), receives).wait();
}

}  // namespace

ExpertLoad mean_load(const ExpertLayout& layout, int index, int64_t tokens) {
  const int64_t held = experts_of(layout.experts, layout.ep, index).count;
  double missed = 1.0;  // the share of tokens none of whose experts is here
  for (int64_t i = 0; i < layout.top_k; ++i)
    missed *= static_cast<double>(std::max<int64_t>(layout.experts - held - i, 0)) / static_cast<double>(layout.experts - i);
  const auto all = static_cast<double>(tokens);
  return {.tokens = all * (1.0 - missed),
          .rows = all * static_cast<double>(layout.top_k) * static_cast<double>(held) / static_cast<double>(layout.experts)};
}

ExpertRoom room_for(const ExpertLayout& layout, int index, int64_t tokens, double headroom) {
  const ExpertLoad mean = mean_load(layout, index, tokens);
  const int64_t most = std::min(layout.top_k, experts_of(layout.experts, layout.ep, index).count);  // choices of a token
  ExpertRoom room{.tokens = with_headroom(mean.tokens, headroom, tokens)};
  room.rows = with_headroom(mean.rows, headroom, checked_mul(room.tokens, most));
  return room;
}

ExpertRoute plan_route(Context& ctx, const Tensor& experts, int64_t num_experts) {
  const MeshShape& shape = ctx.mesh->shape();
  const int dp = shape.dp_index(ctx.mesh->world().rank()), index = shape.ep_index(ctx.mesh->world().rank());
  const ExpertLayout layout{.experts = num_experts, .top_k = experts.dim(1), .ep = shape.ep};
  const int64_t tokens = experts.dim(0), width = std::min<int64_t>(layout.top_k, layout.ep);
  ExpertRoute route{.sends = ops::empty_groups(ctx, tokens, width, layout.ep),
                    .receive_rows = ctx.empty({layout.ep}, DType::kI64)};
  const Tensor destinations = ctx.empty({tokens, width}, DType::kI32), unused = ctx.empty({tokens, width}, DType::kF32);
  ops::zero(ctx, {.out = unused});
  if (ctx.device.is_meta()) {
    route.room = room_for(layout, index, checked_mul(tokens, layout.ep), ctx.headroom);
    return route;
  }
  const Traffic traffic(*ctx.mesh, tokens, find_destinations(layout, experts, destinations));
  check_room(traffic, shape, layout, ctx.headroom);
  route.room = room_for(layout, index, traffic.tokens_of_group(dp), ctx.headroom);
  for (int source = 0; source < shape.ep; ++source)
    route.receive_rows.span<int64_t>()[static_cast<size_t>(source)] = traffic.from(dp, source, index).tokens;
  // Packed, whatever products want: the rows of all ranks are sent as they lie.
  ops::build_groups(ctx, {.experts = destinations, .weights = unused, .groups = route.sends, .alignment = 1});
  return route;
}

Tensor send_tokens(Context& ctx, const ExpertRoute& route, const Tensor& x) {
  Tensor received = ctx.empty({route.room.tokens, x.dim(1)}, x.dtype());
  const Tensor send = ctx.empty({route.sends.max_rows(), x.dim(1)}, x.dtype());
  ops::gather(ctx, {.x = x, .groups = route.sends, .out = send});
  if (!ctx.device.is_meta()) exchange(ctx, send, send_rows(route), received, route.receive_rows.span<int64_t>());
  return received;
}

Tensor send_choices(Context& ctx, const ExpertRoute& route, const Tensor& experts) {
  Tensor received = send_tokens(ctx, route, experts);
  if (ctx.device.is_meta()) return received;
  const auto used = static_cast<size_t>(sum(route.receive_rows.span<int64_t>()) * experts.dim(1));
  const auto rest = received.span<int32_t>().subspan(used);
  std::fill(rest.begin(), rest.end(), -1);
  return received;
}

Tensor return_tokens(Context& ctx, const ExpertRoute& route, const Tensor& parts) {
  Tensor out = ctx.empty({route.sends.num_tokens(), parts.dim(1)}, parts.dtype());
  const Tensor back = ctx.empty({route.sends.max_rows(), parts.dim(1)}, parts.dtype());
  if (!ctx.device.is_meta()) exchange(ctx, parts, route.receive_rows.span<int64_t>(), back, send_rows(route));
  ops::combine(ctx, {.x = back, .groups = route.sends, .out = out});
  return out;
}

}  // namespace cistron::dist
