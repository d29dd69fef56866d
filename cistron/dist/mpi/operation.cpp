#include <algorithm>
#include <array>

#include "cistron/core/checked.h"
#include "cistron/core/error.h"
#include "cistron/dist/mpi/runtime.h"

namespace cistron::dist {
namespace {

constexpr int64_t kMessage = int64_t{64} << 20;  // longest single message; MPI counts in 32 bits
// A reduction holds no more of its peers' parts than this, or than kLeastPiece of each, whatever is reduced.
constexpr int64_t kStaging = int64_t{16} << 20, kLeastPiece = int64_t{64} << 10;

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw Error(ErrorKind::kFailed, call, "MPI", std::string(text.data(), static_cast<size_t>(length)));
}

}  // namespace

// Each rank begins with its right neighbour, so that not all send to rank 0 first.
std::vector<int> MpiOperation::peers_in_turn() const {
  std::vector<int> peers;
  for (int step = 1; step < who_.size(); ++step) peers.push_back((who_.rank + step) % who_.size());
  return peers;
}

void MpiOperation::send(int peer, const void* data, int64_t bytes, int tag) {
  for (int64_t begin = 0; begin < bytes; begin += kMessage) {
    const int count = narrow<int>(std::min(kMessage, bytes - begin));
    messages_.push_back({peer, false});
    check_mpi(MPI_Isend(static_cast<const std::byte*>(data) + begin, count, MPI_BYTE, who_.members[static_cast<size_t>(peer)],
                        tag, MPI_COMM_WORLD, &requests_.emplace_back(MPI_REQUEST_NULL)),
              "MPI_Isend");
  }
}

void MpiOperation::receive(int peer, void* data, int64_t bytes, int tag) {
  for (int64_t begin = 0; begin < bytes; begin += kMessage) {
    const int count = narrow<int>(std::min(kMessage, bytes - begin));
    messages_.push_back({peer, true});
    check_mpi(MPI_Irecv(static_cast<std::byte*>(data) + begin, count, MPI_BYTE, who_.members[static_cast<size_t>(peer)], tag,
                        MPI_COMM_WORLD, &requests_.emplace_back(MPI_REQUEST_NULL)),
              "MPI_Irecv");
  }
}

void MpiOperation::begin() {
  sent_.resize(who_.members.size());
  received_.resize(who_.members.size());
  received_[static_cast<size_t>(who_.rank)] = {call_.signature, call_.sends[static_cast<size_t>(who_.rank)].bytes};
  check_header(who_.rank);
  for (const int peer : peers_in_turn()) {
    const auto i = static_cast<size_t>(peer);
    sent_[i] = {call_.signature, call_.sends[i].bytes};
    receive(peer, &received_[i], sizeof(Header), header_tag());
    send(peer, &sent_[i], sizeof(Header), header_tag());
  }
}

void MpiOperation::check_header(int peer) const {
  const Header& header = received_[static_cast<size_t>(peer)];
  const std::string text = mismatch(call_, who_, header.signature, header.bytes, peer);
  if (!text.empty()) throw_mismatch(text, call_.signature, who_);
}

bool MpiOperation::messages_complete() {
  if (requests_.empty()) return true;
  std::vector<int> indices(requests_.size());
  int count = 0;
  check_mpi(MPI_Testsome(narrow<int>(requests_.size()), requests_.data(), &count, indices.data(), MPI_STATUSES_IGNORE),
            "MPI_Testsome");
  for (int i = 0; stage_ == Stage::kHeaders && i < count; ++i) {
    const Message& message = messages_[static_cast<size_t>(indices[static_cast<size_t>(i)])];
    if (message.receive) check_header(message.peer);
  }
  if (!std::all_of(requests_.begin(), requests_.end(), [](MPI_Request request) { return request == MPI_REQUEST_NULL; }))
    return false;
  requests_.clear();
  messages_.clear();
  return true;
}

void MpiOperation::exchange_bytes() {
  const auto me = static_cast<size_t>(who_.rank);
  for (const int peer : peers_in_turn()) {
    const auto i = static_cast<size_t>(peer);
    receive(peer, call_.receive + call_.receives[i].offset, call_.receives[i].bytes, bytes_tag());
    send(peer, call_.send + call_.sends[i].offset, call_.sends[i].bytes, bytes_tag());
  }
  copy_bytes(call_.receive + call_.receives[me].offset, call_.send + call_.sends[me].offset, call_.receives[me].bytes);
}

// Equal on all ranks, since all cut alike; of whole elements.
int64_t MpiOperation::piece_bytes() const { return std::max(kLeastPiece, kStaging / who_.size() / kLeastPiece * kLeastPiece); }

Segment MpiOperation::piece_of(const Segment& block) const {
  const int64_t begin = std::min(reduced_, block.bytes);
  return {block.offset + begin, std::min(piece_bytes(), block.bytes - begin)};
}

void MpiOperation::exchange_pieces() {
  const auto me = static_cast<size_t>(who_.rank);
  const int64_t own = piece_of(call_.receives[me]).bytes, longest = std::min(piece_bytes(), call_.receives[me].bytes);
  if (staging_ == nullptr)
    staging_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(longest) * who_.members.size());
  for (const int peer : peers_in_turn()) {
    const Segment theirs = piece_of(call_.sends[static_cast<size_t>(peer)]);
    receive(peer, staging_.get() + own * peer, own, bytes_tag());
    send(peer, call_.send + theirs.offset, theirs.bytes, bytes_tag());
  }
}

void MpiOperation::reduce_piece() {
  const auto me = static_cast<size_t>(who_.rank);
  const Segment own = piece_of(call_.receives[me]);
  std::vector<const std::byte*> sources;
  for (int peer = 0; peer < who_.size(); ++peer) sources.push_back(staging_.get() + own.bytes * peer);
  sources[me] = call_.send + piece_of(call_.sends[me]).offset;
  std::byte* const destination = call_.receive + own.offset;
  reduce(call_.signature, sources, {&destination, 1}, own.bytes);
  reduced_ += piece_bytes();
}

// Every rank goes as many rounds as the longest block takes.
bool MpiOperation::has_more_pieces() const {
  return std::ranges::any_of(call_.sends, [&](const Segment& block) { return block.bytes > reduced_; });
}

void MpiOperation::exchange_reduced() {
  const Segment& own = call_.receives[static_cast<size_t>(who_.rank)];
  for (const int peer : peers_in_turn()) {
    const Segment& theirs = call_.sends[static_cast<size_t>(peer)];
    receive(peer, call_.receive + theirs.offset, theirs.bytes, bytes_tag());
    send(peer, call_.receive + own.offset, own.bytes, bytes_tag());
  }
}

MpiOperation::Stage MpiOperation::next_stage() {
  const bool reduces = is_reduction(call_.signature.op);
  if (stage_ == Stage::kBytes && reduces) reduce_piece();
  if (stage_ != Stage::kReduced && reduces && has_more_pieces()) {
    exchange_pieces();
    return Stage::kBytes;
  }
  staging_.reset();
  if (stage_ == Stage::kHeaders && !reduces) {
    exchange_bytes();
    return Stage::kBytes;
  }
  if (stage_ != Stage::kReduced && call_.signature.op == CollectiveOp::kAllReduce) {
    exchange_reduced();
    return Stage::kReduced;
  }
  return Stage::kDone;
}

bool MpiOperation::advance() {
  while (!done() && messages_complete()) stage_ = next_stage();
  return done();
}

std::vector<int> MpiOperation::unfinished(bool receive) const {
  std::vector<int> ranks;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL || messages_[i].receive != receive) continue;
    ranks.push_back(who_.members[static_cast<size_t>(messages_[i].peer)]);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

void MpiOperation::throw_late_peers() const {
  const std::vector<int> silent = unfinished(true);
  if (!silent.empty()) throw_late(silent, stage_ == Stage::kHeaders ? "arrived" : "sent all of its part", call_.signature, who_);
  throw_late(unfinished(false), "taken its part", call_.signature, who_);
}

}  // namespace cistron::dist
