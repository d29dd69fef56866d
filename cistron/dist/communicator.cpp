#include "cistron/dist/communicator.h"

#include <algorithm>

#include "cistron/core/checked.h"
#include "cistron/core/error.h"

namespace cistron::dist {
namespace {

int64_t row_bytes(const Tensor& tensor) {
  int64_t bytes = size_of(tensor.dtype());
  for (int dim = 1; dim < tensor.shape().rank(); ++dim) bytes = checked_mul(bytes, tensor.dim(dim));
  return bytes;
}

std::vector<int64_t> equal_rows(const char* op, const Tensor& whole, int size) {
  CISTRON_CHECK(whole.dim(0) % size == 0, "[{}] {} rows do not divide evenly over {} ranks: give the rows of each", op,
                whole.dim(0), size);
  return std::vector<int64_t>(static_cast<size_t>(size), whole.dim(0) / size);
}

void check_place(const char* op, const Tensor& tensor, const Membership& who) {
  CISTRON_CHECK(tensor.defined() && tensor.device() == who.device, "[{}] a tensor is undefined or not on {}", op,
                to_string(who.device));
}

// The blocks of `tensor` of these rows, one behind the other; together they must be all of it.
std::vector<Segment> blocks(const char* op, const Tensor& tensor, std::span<const int64_t> rows, int size) {
  CISTRON_CHECK(static_cast<int>(rows.size()) == size, "[{}] {} row counts for {} ranks", op, rows.size(), size);
  std::vector<Segment> result;
  int64_t begin = 0;
  for (const int64_t count : rows) {
    CISTRON_CHECK(count >= 0, "[{}] {} rows", op, count);
    result.push_back({begin * row_bytes(tensor), count * row_bytes(tensor)});
    begin = checked_add(begin, count);
  }
  CISTRON_CHECK(begin == tensor.dim(0), "[{}] row counts add up to {}, the tensor has {}", op, begin, tensor.dim(0));
  return result;
}

void check_rows(const char* op, const Tensor& part, const Tensor& whole, int64_t rows) {
  Shape wanted = whole.shape();
  wanted.set(0, rows);
  check_tensor(op, "part", part, wanted, whole.dtype());
}

std::vector<Segment> repeat(const Segment& segment, int size) { return std::vector<Segment>(static_cast<size_t>(size), segment); }

// Blocks of whole elements that differ by one element at most: rank r reduces block r.
std::vector<Segment> reduce_blocks(const Tensor& tensor, int size) {
  const int64_t width = size_of(tensor.dtype());
  std::vector<Segment> result;
  for (int r = 0; r < size; ++r) {
    const int64_t begin = tensor.numel() / size * r + std::min<int64_t>(r, tensor.numel() % size);
    const int64_t count = tensor.numel() / size + (r < tensor.numel() % size ? 1 : 0);
    result.push_back({begin * width, count * width});
  }
  return result;
}

}  // namespace

Pending Communicator::begin(CollectiveOp op, const Tensor& send, const Tensor& receive, Collective call) {
  call.signature.sequence = ++sequence_;
  call.signature.op = op;
  call.signature.dtype = send.dtype();
  call.send = static_cast<const std::byte*>(send.raw());
  call.receive = static_cast<std::byte*>(receive.raw());
  std::unique_ptr<Work> work = start(std::move(call));
  if (work) work->buffers_ = {send, receive};
  return Pending(std::move(work));
}

Pending Communicator::all_gather(const Tensor& part, const Tensor& whole, std::span<const int64_t> rows) {
  check_place("all_gather", part, who_);
  check_place("all_gather", whole, who_);
  const std::vector<int64_t> equal = rows.empty() ? equal_rows("all_gather", whole, size()) : std::vector<int64_t>{};
  const std::vector<Segment> receives = blocks("all_gather", whole, rows.empty() ? equal : rows, size());
  check_rows("all_gather", part, whole, (rows.empty() ? equal : rows)[self()]);
  return begin(CollectiveOp::kAllGather, part, whole, {.sends = repeat({0, part.bytes()}, size()), .receives = receives});
}

Pending Communicator::reduce_scatter(const Tensor& whole, const Tensor& part, std::span<const int64_t> rows) {
  check_place("reduce_scatter", part, who_);
  check_place("reduce_scatter", whole, who_);
  CISTRON_CHECK(can_reduce(whole.dtype()), "[reduce_scatter] {} cannot be reduced", name_of(whole.dtype()));
  const std::vector<int64_t> equal = rows.empty() ? equal_rows("reduce_scatter", whole, size()) : std::vector<int64_t>{};
  const std::vector<Segment> sends = blocks("reduce_scatter", whole, rows.empty() ? equal : rows, size());
  check_rows("reduce_scatter", part, whole, (rows.empty() ? equal : rows)[self()]);
  return begin(CollectiveOp::kReduceScatter, whole, part, {.sends = sends, .receives = repeat({0, part.bytes()}, size())});
}

Pending Communicator::all_reduce(const Tensor& tensor, Reduction reduction) {
  check_place("all_reduce", tensor, who_);
  CISTRON_CHECK(can_reduce(tensor.dtype()), "[all_reduce] {} cannot be reduced", name_of(tensor.dtype()));
  const std::vector<Segment> sends = reduce_blocks(tensor, size());
  return begin(CollectiveOp::kAllReduce, tensor, tensor,
               {.signature = {.reduction = reduction}, .sends = sends, .receives = repeat(sends[self()], size())});
}

Pending Communicator::all_to_all(const Tensor& send, std::span<const int64_t> send_rows, const Tensor& receive,
                                 std::span<const int64_t> receive_rows) {
  check_place("all_to_all", send, who_);
  check_place("all_to_all", receive, who_);
  check_rows("all_to_all", receive, send, receive.dim(0));
  return begin(
      CollectiveOp::kAllToAll, send, receive,
      {.sends = blocks("all_to_all", send, send_rows, size()), .receives = blocks("all_to_all", receive, receive_rows, size())});
}

Pending Communicator::broadcast(const Tensor& tensor, int root) {
  check_place("broadcast", tensor, who_);
  CISTRON_CHECK(root >= 0 && root < size(), "[broadcast] root {} of {} ranks", root, size());
  Collective call{.signature = {.root = root}, .sends = repeat({}, size()), .receives = repeat({}, size())};
  if (rank() == root) call.sends = repeat({0, tensor.bytes()}, size());
  call.receives[static_cast<size_t>(root)] = {0, tensor.bytes()};
  return begin(CollectiveOp::kBroadcast, tensor, tensor, std::move(call));
}

Pending Communicator::barrier() {
  const Tensor nothing = Tensor::view(nullptr, {0}, DType::kU8);
  return begin(CollectiveOp::kBarrier, nothing, nothing, {.sends = repeat({}, size()), .receives = repeat({}, size())});
}

std::unique_ptr<Communicator> Communicator::split(int colour, std::string name) {
  CISTRON_CHECK(!who_.device.is_meta(), "[split] a mesh for planning cannot be split");
  std::vector<int32_t> colours(who_.members.size());
  int32_t mine = colour;
  all_gather(Tensor::view(std::span(&mine, 1)), Tensor::view(std::span(colours))).wait();
  Membership part{.name = std::move(name), .timeout = who_.timeout};
  for (size_t r = 0; r < colours.size(); ++r) {
    if (colours[r] != colour) continue;
    if (r == self()) part.rank = part.size();
    part.members.push_back(who_.members[r]);
  }
  return make_part(std::move(part));
}

}  // namespace cistron::dist
