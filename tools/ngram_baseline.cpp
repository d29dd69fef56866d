// ngram-baseline STORE [MAX_ORDER]: the held-out losses of interpolated n-grams fitted on a token store's training split, one a
// line.
#include <fmt/format.h>

#include <cstdlib>
#include <exception>

#include "cistron/core/error.h"
#include "cistron/data/store.h"
#include "cistron/eval/ngram.h"

namespace {

int run(int argc, char** argv) {
  using namespace cistron;
  const int max_order = argc > 2 ? std::atoi(argv[2]) : 4;
  if (argc < 2 || argc > 3 || max_order < 1)
    throw Error(ErrorKind::kUsage, "ngram-baseline", "arguments", "give STORE [MAX_ORDER], as in 'data/proteins 4'");
  const auto store = data::Store::open(argv[1]);
  const auto baselines = eval::ngram_baselines(eval::records_of(store.train()), eval::records_of(store.valid()),
                                               store.tokenizer().vocab_size(), max_order);
  for (const auto& [order, strength, loss] : baselines)
    fmt::print("{}-gram  {:.4f} nats a token  (a = {:.3g})\n", order, loss, strength);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const cistron::Error& error) {
    fmt::print(stderr, "cistron: error: {}\n", error.what());
    return static_cast<int>(error.kind());
  } catch (const std::exception& error) {
    fmt::print(stderr, "cistron: error: {}\n", error.what());
    return 1;
  }
}
