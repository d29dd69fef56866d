#include "cistron/ops/gather.h"

#include <cstring>

#include "cistron/cpu/fast/parallel.h"
#include "cistron/cpu/fast/routed_rows.h"
#include "cistron/cpu/fast/vec_math.h"

namespace cistron::cpu {

void gather(Context& ctx, const ops::Gather& args) {
  const auto row_bytes = static_cast<size_t>(args.x.dim(1) * size_of(args.x.dtype()));
  const auto* x = static_cast<const std::byte*>(args.x.raw());
  const auto* source_row = args.groups.source_row.data<int32_t>();
  auto* out = static_cast<std::byte*>(args.out.raw());
  for_rows(ctx, used_rows(args.groups), args.x.dim(1), [=](int64_t r) {
    std::byte* to = out + static_cast<size_t>(r) * row_bytes;
    if (source_row[r] < 0)
      std::memset(to, 0, row_bytes);
    else
      std::memcpy(to, x + static_cast<size_t>(source_row[r]) * row_bytes, row_bytes);
  });
}

namespace {

template <class T>
void combine_rows(const Context& ctx, const ops::Combine& args) {
  const int64_t hidden = args.x.dim(1);
  const int64_t top_k = args.groups.top_k();
  const T* x = args.x.data<T>();
  const auto* token_rows = args.groups.token_rows.data<int32_t>();
  T* out = args.out.data<T>();
  const bool accumulate = args.accumulate;
  for_rows(ctx, args.out.dim(0), top_k * hidden, [=](int64_t t) {
    const int32_t* rows = token_rows + t * top_k;
    T* to = out + t * hidden;
    for_lanes(hidden, [=](Lanes l) {
      F16 sum{};
      for (int64_t j = 0; j < top_k; ++j)
        if (rows[j] >= 0) sum += l.load(x + rows[j] * hidden);
      l.store(to, accumulate ? l.load(to) + sum : sum);
    });
  });
}

}  // namespace

void gather_choices(Context& ctx, const ops::GatherChoices& args) {
  const auto* rows = args.rows.data<float>();
  const auto* token_rows = args.groups.token_rows.data<int32_t>();
  auto* out = args.out.data<float>();
  for_chunks(ctx, args.out.numel(), kTaskElements, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = token_rows[i] < 0 ? 0.0F : rows[token_rows[i]];
  });
}

void combine(Context& ctx, const ops::Combine& args) {
  with_float_type(args.x.dtype(), [&](auto type) { combine_rows<decltype(type)>(ctx, args); });
}

}  // namespace cistron::cpu
