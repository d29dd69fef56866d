#include "cistron/dist/check_same.h"

#include <algorithm>
#include <numeric>

#include "cistron/core/error.h"

namespace cistron::dist {
namespace {

// Of several that are equally common, the one of the lowest rank.
const std::string& most_common(const std::vector<std::string>& values) {
  return *std::max_element(values.begin(), values.end(), [&](const std::string& a, const std::string& b) {
    return std::count(values.begin(), values.end(), a) < std::count(values.begin(), values.end(), b);
  });
}

}  // namespace

std::vector<std::string> gather_texts(Communicator& communicator, std::string_view value) {
  std::vector<int64_t> lengths(static_cast<size_t>(communicator.size()));
  std::vector<int64_t> length{static_cast<int64_t>(value.size())};
  communicator.all_gather(Tensor::view(std::span(length)), Tensor::view(std::span(lengths))).wait();
  std::vector<uint8_t> all(static_cast<size_t>(std::accumulate(lengths.begin(), lengths.end(), int64_t{0})));
  std::vector<uint8_t> mine(value.begin(), value.end());
  communicator.all_gather(Tensor::view(std::span(mine)), Tensor::view(std::span(all)), lengths).wait();
  std::vector<std::string> texts;
  for (auto begin = all.begin(); const int64_t count : lengths) {
    texts.emplace_back(begin, begin + count);
    begin += count;
  }
  return texts;
}

void check_same(Communicator& communicator, std::string_view what, std::string_view value) {
  const std::vector<std::string> values = gather_texts(communicator, value);
  const std::string& usual = most_common(values);
  std::vector<int> odd;
  std::string details;
  for (size_t r = 0; r < values.size(); ++r) {
    if (values[r] == usual) continue;
    odd.push_back(communicator.membership().members[r]);
    details += fmt::format("{} on rank {}, ", values[r], odd.back());
  }
  if (odd.empty()) return;
  throw Error(ErrorKind::kUsage, fmt::format("{} {} another {}", ranks_text(odd), odd.size() == 1 ? "has" : "have", what),
              fmt::format("{}{} on the others", details, usual), "start all ranks with the same program, config and seed");
}

}  // namespace cistron::dist
