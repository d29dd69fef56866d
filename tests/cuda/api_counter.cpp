#include "tests/cuda/api_counter.h"

#include <cupti.h>
#include <dlfcn.h>

#include <string_view>

#include "cistron/core/error.h"
#include "cistron/cuda/runtime/runtime.h"

namespace cistron::test {
namespace {

struct Cupti {
  decltype(&cuptiSubscribe) subscribe = nullptr;
  decltype(&cuptiUnsubscribe) unsubscribe = nullptr;
  decltype(&cuptiEnableDomain) enable_domain = nullptr;
  std::string problem;
};

const Cupti& cupti() {
  static const Cupti found = [] {
    Cupti c;
    void* library = nullptr;
    for (const char* name : {"libcupti.so.13", "libcupti.so.12", "libcupti.so"})
      if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      c.problem = "no libcupti: put it on LD_LIBRARY_PATH";
      return c;
    }
    c.subscribe = reinterpret_cast<decltype(c.subscribe)>(dlsym(library, "cuptiSubscribe"));
    c.unsubscribe = reinterpret_cast<decltype(c.unsubscribe)>(dlsym(library, "cuptiUnsubscribe"));
    c.enable_domain = reinterpret_cast<decltype(c.enable_domain)>(dlsym(library, "cuptiEnableDomain"));
    if (c.subscribe == nullptr || c.unsubscribe == nullptr || c.enable_domain == nullptr)
      c.problem = "a libcupti without callbacks";
    return c;
  }();
  return found;
}

void check(CUptiResult result, const char* what) {
  CISTRON_CHECK(result == CUPTI_SUCCESS, "[cupti] {} gives {}", what, static_cast<int>(result));
}

void CUPTIAPI callback(void* user, CUpti_CallbackDomain domain, CUpti_CallbackId /*id*/, const void* data) {
  if (domain != CUPTI_CB_DOMAIN_DRIVER_API) return;
  const auto* info = static_cast<const CUpti_CallbackData*>(data);
  if (info->callbackSite == CUPTI_API_ENTER) static_cast<ApiCounter*>(user)->count(info->functionName, info->functionParams);
}

/// The first parameter of every cuMemcpy* is the destination.
bool to_host(const void* parameters) {
  cudaPointerAttributes attributes{};
  const void* destination = *static_cast<void* const*>(parameters);
  if (cudaPointerGetAttributes(&attributes, destination) != cudaSuccess) return true;
  return attributes.type == cudaMemoryTypeHost || attributes.type == cudaMemoryTypeUnregistered;
}

bool is_wait(std::string_view f, const void* parameters) {
  const auto has = [&](std::string_view part) { return f.find(part) != std::string_view::npos; };
  if (has("Synchronize") || has("DtoH")) return true;
  if (has("cuMemAlloc") || has("cuMemFree") || has("cuMemHostAlloc")) return !has("Async");
  if (!has("cuMemcpy") && !has("cuMemset")) return false;
  if (!has("Async")) return true;
  return has("cuMemcpyAsync") && to_host(parameters);  // of unified addresses: no direction in the name
}

}  // namespace

std::string ApiCounter::unavailable() { return cupti().problem; }

ApiCounter::ApiCounter() {
  CUpti_SubscriberHandle handle = nullptr;
  check(cupti().subscribe(&handle, callback, this), "cuptiSubscribe");
  subscriber_ = handle;
  check(cupti().enable_domain(1, handle, CUPTI_CB_DOMAIN_DRIVER_API), "cuptiEnableDomain");
}

ApiCounter::~ApiCounter() { cupti().unsubscribe(static_cast<CUpti_SubscriberHandle>(subscriber_)); }

std::map<std::string, int> ApiCounter::waits() const {
  const std::lock_guard lock(mutex_);
  return waits_;
}

void ApiCounter::count(const char* function, const void* parameters) {
  thread_local bool inside = false;  // what is asked in here counts nothing
  if (inside) return;
  inside = true;
  ++calls_;
  if (is_wait(function, parameters)) {
    const std::lock_guard lock(mutex_);
    ++waits_[function];
  }
  inside = false;
}

}  // namespace cistron::test
