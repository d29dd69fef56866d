#include "cistron/dist/threads.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <thread>

#include "cistron/core/current_error.h"
#include "cistron/core/start_thread.h"
#include "cistron/dist/patience.h"
#include "cistron/dist/rendezvous.h"

namespace cistron::dist {
namespace {

std::vector<int> first_numbers(int count) {
  std::vector<int> result(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) result[static_cast<size_t>(i)] = i;
  return result;
}

// The threads still use what the caller owns, so there is no way back to it.
[[noreturn]] void leave(const std::vector<int>& running, const std::string& failure) {
  fmt::print(stderr, "cistron: error: {} cannot be stopped: after a failure elsewhere: the first error was: {}\n",
             ranks_text(running), failure);
  std::fflush(stderr);
  std::_Exit(static_cast<int>(ErrorKind::kFailed));
}

void wait_for_all(ThreadWorld& world, std::chrono::milliseconds timeout) {
  std::unique_lock lock(world.mutex());
  const auto all_ended = [&] { return world.running().empty(); };
  world.changed().wait(lock, [&] { return all_ended() || world.failure(); });
  Patience patience(timeout);
  while (!all_ended() && !patience.is_over()) world.changed().wait_for(lock, patience.slice());
  if (!all_ended()) leave(world.running(), world.failure()->message);
}

std::exception_ptr run_rank(ThreadWorld& world, Communicator& communicator, const std::function<void(Communicator&)>& fn) {
  try {
    fn(communicator);
  } catch (...) {
    world.fail(communicator.rank(), current_error().what());
    return std::current_exception();
  }
  return nullptr;
}

void rethrow_first(const std::vector<std::exception_ptr>& errors, const ThreadWorld& world) {
  if (!world.failure()) return;
  if (const auto& first = errors[static_cast<size_t>(world.failure()->rank)]) std::rethrow_exception(first);
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace

void run_ranks(int ranks, const std::function<void(Communicator&)>& fn, const Options& options) {
  CISTRON_CHECK(ranks >= 1, "[dist] {} ranks", ranks);
  const auto world = std::make_shared<ThreadWorld>(ranks);
  const auto rendezvous = std::make_shared<Rendezvous>(Rendezvous{.world = world});
  std::vector<std::exception_ptr> errors(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  threads.reserve(errors.size());
  const auto run = [&](int rank) {
    {
      ThreadCommunicator mine({"world", first_numbers(ranks), rank, options.timeout}, rendezvous);
      errors[static_cast<size_t>(rank)] = run_rank(*world, mine, fn);
    }
    world->end(rank);
  };
  try {
    while (std::ssize(threads) < ranks)
      threads.push_back(start_thread([&run, rank = static_cast<int>(threads.size())] { run(rank); }));
  } catch (...) {  // those that have started must end first
    errors[threads.size()] = std::current_exception();
    world->fail(static_cast<int>(threads.size()), current_error().what());
    for (int rank = static_cast<int>(threads.size()); rank < ranks; ++rank) world->end(rank);
  }
  wait_for_all(*world, options.timeout);
  for (std::thread& thread : threads) thread.join();
  rethrow_first(errors, *world);
}

}  // namespace cistron::dist
