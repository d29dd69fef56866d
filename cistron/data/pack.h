#pragma once
// Sequences packed end to end, without padding, and the windows that long records become.
#include <cstdint>
#include <span>
#include <vector>

namespace cistron::data {

/// T tokens, S sequences. Labels are the next token of the same sequence.
struct PackedBatch {
  std::vector<int32_t> tokens;      // [T]
  std::vector<int32_t> labels;      // [T], -1 where there is none: a sequence's last token
  std::vector<int32_t> positions;   // [T], from 0 in each sequence
  std::vector<int32_t> cu_seqlens;  // [S + 1], from 0 to T
  std::vector<float> loss_weight;   // [T], 0 where there is no label
  int64_t label_count = 0;          // labels that are not -1

  [[nodiscard]] int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
  [[nodiscard]] int64_t num_sequences() const { return static_cast<int64_t>(cu_seqlens.size()) - 1; }

  PackedBatch() : cu_seqlens{0} {}
  void reserve(int64_t num_tokens);
  /// Opens a sequence of `length` tokens and returns its place in `tokens`, to be filled before `close_sequence`. Tokens before
  /// `first_scored` get no label pointing at them: they are context that another window has already scored. Empty is legal and
  /// adds nothing.
  std::span<int32_t> open_sequence(int64_t length);
  void close_sequence(int64_t first_scored = 1);
};

/// Any sequences, in order. Those that exceed the model's context are the caller's to cut (`scoring_windows`).
PackedBatch pack(std::span<const std::vector<int32_t>> sequences);

/// Tokens [begin, end) of a record. `first_scored` counts from `begin`: tokens before it are context only.
struct Window {
  int64_t begin = 0, end = 0;
  int64_t first_scored = 1;
  [[nodiscard]] int64_t length() const { return end - begin; }
  bool operator==(const Window&) const = default;
};

/// How many windows of at most `context` tokens a record of `length` tokens becomes: ceil(length / context).
int64_t num_windows(int64_t length, int64_t context);

/// Window `index` of them. They cover the record once, in order, and their lengths differ by at most one, so that none is a
/// scrap.
Window training_window(int64_t length, int64_t context, int64_t index);

/// Windows in which every token but the first is predicted exactly once; each after the first repeats `overlap` tokens, >= 1 and
/// < context, as context.
std::vector<Window> scoring_windows(int64_t length, int64_t context, int64_t overlap);

}  // namespace cistron::data
