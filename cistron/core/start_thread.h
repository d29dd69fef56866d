#pragma once
#include <functional>
#include <thread>

namespace cistron {

/// Error(kFailed) that says what to do where the system gives no thread.
std::thread start_thread(std::function<void()> run);

}  // namespace cistron
