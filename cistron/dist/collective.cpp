#include "cistron/dist/collective.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "cistron/core/error.h"

namespace cistron::dist {
namespace {

template <class T>
struct Sum {
  T operator()(T a, T b) const { return a + b; }
};

template <class T>
struct Max {
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(b)) return b;
    }
    return b > a ? b : a;
  }
};

// By chunks that stay in the first-level cache, so that memory is read once and a destination may be one of the sources.
template <class T, class Combine>
void reduce_as(std::span<const std::byte* const> sources, std::span<std::byte* const> destinations, int64_t bytes,
               Combine combine) {
  constexpr int64_t kChunk = 1024;
  std::array<T, kChunk> total, next;
  for (int64_t begin = 0; begin < bytes; begin += kChunk * static_cast<int64_t>(sizeof(T))) {
    const int64_t chunk = std::min<int64_t>(bytes - begin, kChunk * static_cast<int64_t>(sizeof(T)));
    const auto count = static_cast<size_t>(chunk) / sizeof(T);
    std::memcpy(total.data(), sources[0] + begin, static_cast<size_t>(chunk));
    for (const std::byte* source : sources.subspan(1)) {
      std::memcpy(next.data(), source + begin, static_cast<size_t>(chunk));
      for (size_t i = 0; i < count; ++i) total[i] = combine(total[i], next[i]);
    }
    for (std::byte* destination : destinations) std::memcpy(destination + begin, total.data(), static_cast<size_t>(chunk));
  }
}

template <class T>
void reduce_typed(Reduction reduction, std::span<const std::byte* const> sources, std::span<std::byte* const> destinations,
                  int64_t bytes) {
  if (reduction == Reduction::kSum) {
    reduce_as<T>(sources, destinations, bytes, Sum<T>{});
  } else {
    reduce_as<T>(sources, destinations, bytes, Max<T>{});
  }
}

std::string_view name_of(CollectiveOp op) {
  switch (op) {
    case CollectiveOp::kBarrier:
      return "barrier";
    case CollectiveOp::kBroadcast:
      return "broadcast";
    case CollectiveOp::kAllGather:
      return "all_gather";
    case CollectiveOp::kAllToAll:
      return "all_to_all";
    case CollectiveOp::kReduceScatter:
      return "reduce_scatter";
    case CollectiveOp::kAllReduce:
      return "all_reduce";
  }
  return "an unknown collective";
}

void deliver_reduction(std::span<const Collective* const> calls, int rank) {
  const auto me = static_cast<size_t>(rank);
  std::vector<const std::byte*> sources;
  std::vector<std::byte*> destinations;
  for (const Collective* call : calls) {
    sources.push_back(call->send + call->sends[me].offset);
    if (call->signature.op == CollectiveOp::kAllReduce) destinations.push_back(call->receive + call->sends[me].offset);
  }
  const Collective& mine = *calls[me];
  if (destinations.empty()) destinations.push_back(mine.receive + mine.receives[me].offset);
  reduce(mine.signature, sources, destinations, mine.receives[me].bytes);
}

}  // namespace

bool is_reduction(CollectiveOp op) { return op == CollectiveOp::kReduceScatter || op == CollectiveOp::kAllReduce; }

bool can_reduce(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kI32 || dtype == DType::kI64;
}

void reduce(const Signature& signature, std::span<const std::byte* const> sources, std::span<std::byte* const> destinations,
            int64_t bytes) {
  switch (signature.dtype) {
    case DType::kF32:
      return reduce_typed<float>(signature.reduction, sources, destinations, bytes);
    case DType::kF64:
      return reduce_typed<double>(signature.reduction, sources, destinations, bytes);
    case DType::kI32:
      return reduce_typed<int32_t>(signature.reduction, sources, destinations, bytes);
    case DType::kI64:
      return reduce_typed<int64_t>(signature.reduction, sources, destinations, bytes);
    default:
      CISTRON_CHECK(false, "[dist] {} cannot be reduced", name_of(signature.dtype));
  }
}

void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
}

void deliver(std::span<const Collective* const> calls, int rank) {
  const auto me = static_cast<size_t>(rank);
  const Collective& mine = *calls[me];
  if (is_reduction(mine.signature.op)) return deliver_reduction(calls, rank);
  for (size_t peer = 0; peer < calls.size(); ++peer) {
    copy_bytes(mine.receive + mine.receives[peer].offset, calls[peer]->send + calls[peer]->sends[me].offset,
               mine.receives[peer].bytes);
  }
}

std::string to_string(const Signature& signature) {
  if (signature.op == CollectiveOp::kBarrier) return "barrier";
  std::string text = fmt::format("{} of {}", name_of(signature.op), name_of(signature.dtype));
  if (signature.op == CollectiveOp::kBroadcast) text += fmt::format(" from its rank {}", signature.root);
  if (signature.reduction == Reduction::kMax) text += " (maximum)";
  return text;
}

std::string place_of(const Signature& signature, const Membership& who) {
  return fmt::format("{} {} of {} on rank {}", name_of(signature.op), signature.sequence, who.name, who.world_rank());
}

std::string ranks_text(std::span<const int> ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

std::string mismatch(const Collective& mine, const Membership& who, const Signature& theirs, int64_t bytes, int them) {
  const int their_rank = who.members[static_cast<size_t>(them)];
  if (theirs != mine.signature) {
    return fmt::format("rank {} called {} where rank {} called {}", their_rank, to_string(theirs), who.world_rank(),
                       to_string(mine.signature));
  }
  const int64_t expected = mine.receives[static_cast<size_t>(them)].bytes;
  if (bytes == expected) return {};
  return fmt::format("rank {} sends {} bytes where rank {} expects {}", their_rank, bytes, who.world_rank(), expected);
}

void throw_mismatch(const std::string& text, const Signature& mine, const Membership& who) {
  throw Error(ErrorKind::kFailed, text, place_of(mine, who),
              "the ranks have taken different ways through the program; report it with the config");
}

void throw_late(std::span<const int> missing, const char* stage, const Signature& mine, const Membership& who) {
  throw Error(ErrorKind::kFailed,
              fmt::format("{} not {} within {} s", ranks_text(missing) + (missing.size() == 1 ? " has" : " have"), stage,
                          std::chrono::duration<double>(who.timeout).count()),
              place_of(mine, who), "look at what they printed last; parallel.timeout_seconds bounds the wait");
}

}  // namespace cistron::dist
