#include "cistron/ops/embedding.h"

#include <cstring>

#include "cistron/cpu/fast/parallel.h"
#include "cistron/cpu/fast/vec_math.h"

namespace cistron::cpu {

namespace {

void check_tokens(const char* op, const Tensor& tokens, int64_t vocab) {
  const auto span = tokens.span<int32_t>();
  for (size_t t = 0; t < span.size(); ++t)
    CISTRON_CHECK(span[t] >= 0 && span[t] < vocab, "[{}] token {} at position {} is outside the vocabulary of {}", op, span[t], t,
                  vocab);
}

/// Adds rows of `dy` into columns [begin, end) of the table: each column sees the tokens in their order.
template <class T>
void add_columns(const ops::EmbeddingBackward& args, int64_t begin, int64_t end) {
  const int64_t hidden = args.dy.dim(1);
  const T* dy = args.dy.data<T>();
  const auto* tokens = args.tokens.data<int32_t>();
  auto* table = args.dtable.grad.data<float>();
  for (int64_t t = 0; t < args.dy.dim(0); ++t) {
    float* row = table + tokens[t] * hidden + begin;
    const T* from = dy + t * hidden + begin;
    for_lanes(end - begin, [=](Lanes l) { l.store(row, l.load(row) + l.load(from)); });
  }
}

void zero_columns(const Tensor& table, int64_t begin, int64_t end) {
  auto* data = table.data<float>();
  for (int64_t v = 0; v < table.dim(0); ++v)
    std::memset(data + v * table.dim(1) + begin, 0, static_cast<size_t>(end - begin) * sizeof(float));
}

}  // namespace

void embedding_forward(Context& ctx, const ops::EmbeddingForward& args) {
  check_tokens("embedding_forward", args.tokens, args.table.dim(0));
  const int64_t row_bytes = args.table.dim(1) * size_of(args.table.dtype());
  const auto* table = static_cast<const std::byte*>(args.table.raw());
  const auto* tokens = args.tokens.data<int32_t>();
  auto* out = static_cast<std::byte*>(args.out.raw());
  for_rows(ctx, args.out.dim(0), args.out.dim(1),
           [=](int64_t t) { std::memcpy(out + t * row_bytes, table + tokens[t] * row_bytes, static_cast<size_t>(row_bytes)); });
}

void embedding_backward(Context& ctx, const ops::EmbeddingBackward& args) {
  constexpr int64_t kColumns = 64;  // 256 bytes: whole cache lines
  check_tokens("embedding_backward", args.tokens, args.dtable.grad.dim(0));
  with_float_type(args.dy.dtype(), [&](auto type) {
    for_chunks(ctx, args.dy.dim(1), kColumns, [&](int64_t begin, int64_t end) {
      if (!args.dtable.accumulate) zero_columns(args.dtable.grad, begin, end);
      add_columns<decltype(type)>(args, begin, end);
    });
  });
}

}  // namespace cistron::cpu
