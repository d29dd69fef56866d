#pragma once
// What one rank asks of a collective, in the form that all backends share: which bytes go to whom and which come from whom.
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cistron/core/device.h"
#include "cistron/core/dtype.h"

namespace cistron::dist {

enum class CollectiveOp : uint8_t { kBarrier, kBroadcast, kAllGather, kAllToAll, kReduceScatter, kAllReduce };
enum class Reduction : uint8_t { kSum, kMax };

struct Segment {
  int64_t offset = 0;
  int64_t bytes = 0;
};

/// What must be equal on all ranks.
struct Signature {
  int64_t sequence = 0;  ///< 1 for a communicator's first collective
  CollectiveOp op = CollectiveOp::kBarrier;
  DType dtype = DType::kU8;
  Reduction reduction = Reduction::kSum;
  int32_t root = 0;
  friend bool operator==(const Signature&, const Signature&) = default;
};

struct Collective {
  Signature signature;
  const std::byte* send = nullptr;
  std::byte* receive = nullptr;
  std::vector<Segment> sends;     ///< by peer: what it gets, within `send`
  std::vector<Segment> receives;  ///< by peer: where its bytes go, within `receive`; a reduction has one place for all
};

/// Who takes part, and how long they wait for each other. Messages name ranks by their number in the world.
struct Membership {
  std::string name;          ///< "world", "dp", "ep"
  std::vector<int> members;  ///< ranks of the world, by rank here
  int rank = 0;              ///< the caller's, here
  std::chrono::milliseconds timeout{};
  Device device;  ///< where the tensors lie

  [[nodiscard]] int size() const { return static_cast<int>(members.size()); }
  [[nodiscard]] int world_rank() const { return members[static_cast<size_t>(rank)]; }
};

[[nodiscard]] bool is_reduction(CollectiveOp op);

/// dst = the reduction of `sources` in their order, in their dtype, stored to every destination. A destination may be a source.
/// f32, f64, i32, i64. A sum is ((s0 + s1) + s2) + ...; in a maximum NaN wins.
void reduce(const Signature& signature, std::span<const std::byte* const> sources, std::span<std::byte* const> destinations,
            int64_t bytes);
[[nodiscard]] bool can_reduce(DType dtype);

/// Everything that rank `rank` is due, taken from the ranks' own memory (an all-reduce: block `rank`, stored on all ranks). The
/// calls for different ranks touch different bytes.
void deliver(std::span<const Collective* const> calls, int rank);

void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes);

/// `all_gather of f32`
std::string to_string(const Signature& signature);
/// `all_gather 17 of world on rank 2`
std::string place_of(const Signature& signature, const Membership& who);
/// `rank 2`, `ranks 2, 5`
std::string ranks_text(std::span<const int> ranks);

/// Why `theirs`, with which rank `them` announces `bytes` for this rank, does not fit this rank's call; empty when it does.
std::string mismatch(const Collective& mine, const Membership& who, const Signature& theirs, int64_t bytes, int them);
/// An error with that text.
[[noreturn]] void throw_mismatch(const std::string& text, const Signature& mine, const Membership& who);
/// `stage` is what `missing` have not done: "arrived".
[[noreturn]] void throw_late(std::span<const int> missing, const char* stage, const Signature& mine, const Membership& who);

}  // namespace cistron::dist
