#include "cistron/dist/together.h"

#include <algorithm>
#include <exception>

#include "cistron/core/current_error.h"
#include "cistron/dist/check_same.h"

namespace cistron::dist {
namespace {

// Its kind as a letter before the message; empty: all is well.
std::string failure_text(ErrorKind kind, const char* message) {
  return static_cast<char>('0' + static_cast<int>(kind)) + std::string(message);
}

std::string run(const std::function<void()>& act, std::exception_ptr& thrown) {
  try {
    act();
    return {};
  } catch (...) {
    thrown = std::current_exception();
    const Error error = current_error();
    return failure_text(error.kind(), error.what());
  }
}

}  // namespace

void together(Communicator& communicator, const std::function<void()>& act, const std::function<void()>& undo) {
  std::exception_ptr thrown;
  const std::vector<std::string> failures = gather_texts(communicator, run(act, thrown));
  if (std::ranges::all_of(failures, &std::string::empty)) return;
  undo();
  try {
    communicator.barrier().wait();
  } catch (...) {  // NOLINT(bugprone-empty-catch): a rank that leaves now, or is late, must not hide why
  }
  if (thrown) std::rethrow_exception(thrown);
  for (size_t r = 0; r < failures.size(); ++r) {
    if (failures[r].empty()) continue;
    const int rank = communicator.membership().members[r];
    throw Error(static_cast<ErrorKind>(failures[r][0] - '0'), fmt::format("rank {} has failed: {}", rank, failures[r].substr(1)));
  }
}

}  // namespace cistron::dist
