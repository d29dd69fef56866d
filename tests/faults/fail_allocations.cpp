// A library to preload: makes allocations fail, so that a test can have every one fail in turn. Counted from main on, on all
// threads: malloc, calloc, realloc, the aligned ones, operator new. Not those of oneDNN, which doesn't look at what it gets, of
// OpenMP's library, and of the C library's note of a thread_local's destructor: those two end the program by a line of their own.
// From standard input come lines of two numbers: which one fails (from 1; 0: none), and whether (1) every one after it does. For
// each, main runs in a process of its own. Its exit status, or the signal that ended it with a minus, goes to standard output.
//   FAIL_SAID=FILE    where what a run prints goes
//   FAIL_COUNT=FILE   where the number of its allocations goes at the end
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "tests/faults/report.h"

extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* old, size_t size);
void* __libc_memalign(size_t alignment, size_t size);
}

namespace {

std::atomic<bool> in_main{false};
std::atomic<long> allocations{0};
long fail_at = 0;
int for_ever = 0;

// Code whose allocations are let through.
struct Code {
  uintptr_t begin = 0, end = 0;
  bool holds(uintptr_t place) const { return place >= begin && place < end; }
};
Code onednn, openmp, note_destructor;

int find_libraries(dl_phdr_info* info, size_t, void*) {
  const bool is_onednn = std::strstr(info->dlpi_name, "libdnnl") != nullptr;
  if (!is_onednn && std::strstr(info->dlpi_name, "libgomp") == nullptr) return 0;
  Code& code = is_onednn ? onednn : openmp;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
    code.begin = info->dlpi_addr + part.p_vaddr;
    code.end = code.begin + part.p_memsz;
  }
  return 0;
}

void find_function(const char* name, Code& code) {
  Dl_info info{};
  ElfW(Sym)* symbol = nullptr;
  void* const function = dlsym(RTLD_NEXT, name);
  if (function == nullptr || dladdr1(function, &info, reinterpret_cast<void**>(&symbol), RTLD_DL_SYMENT) == 0) return;
  code.begin = reinterpret_cast<uintptr_t>(function);
  code.end = code.begin + symbol->st_size;
}

bool fails(const void* caller) {
  const auto from = reinterpret_cast<uintptr_t>(caller);
  if (!in_main.load(std::memory_order_relaxed) || onednn.holds(from) || openmp.holds(from) || note_destructor.holds(from))
    return false;
  const long number = ++allocations;
  if (fail_at == 0 || number < fail_at || (number > fail_at && for_ever == 0)) return false;
  errno = ENOMEM;
  return true;
}

using Main = int (*)(int, char**, char**);
Main program;

constexpr unsigned kSeconds = 120;  // then it hangs

void print_into(const char* path) {
  const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666), nothing = open("/dev/null", O_RDONLY);
  dup2(nothing, STDIN_FILENO);
  dup2(fd, STDOUT_FILENO);
  dup2(fd, STDERR_FILENO);
  close(nothing);
  close(fd);
}

int counted_main(int argc, char** argv, char** environment) {
  print_into(setting("FAIL_SAID"));
  alarm(kSeconds);
  in_main = true;
  const int status = program(argc, argv, environment);
  in_main = false;  // what static objects do at the end is not counted
  report_count(allocations);
  return status;
}

// Reads byte by byte and without a stream: what is buffered here would be there in every fork.
bool read_order() {
  char line[64] = {};
  size_t size = 0;
  while (size + 1 < sizeof line && read(STDIN_FILENO, line + size, 1) == 1)
    if (line[size++] == '\n') return std::sscanf(line, "%ld %d", &fail_at, &for_ever) == 2;
  return false;
}

int forking_main(int argc, char** argv, char** environment) {
  dl_iterate_phdr(find_libraries, nullptr);
  find_function("__cxa_thread_atexit_impl", note_destructor);
  while (read_order()) {
    const pid_t run = fork();
    if (run == 0) return counted_main(argc, argv, environment);
    int status = 0;
    waitpid(run, &status, 0);
    dprintf(STDOUT_FILENO, "%d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
  }
  _exit(0);
}

void* allocate(const void* caller, size_t alignment, size_t size) {
  if (fails(caller)) return nullptr;
  return alignment == 0 ? __libc_malloc(size) : __libc_memalign(alignment, size);
}

void* allocate_or_throw(const void* caller, size_t alignment, size_t size) {
  if (void* const data = allocate(caller, alignment, size)) return data;
  if (const auto handler = std::get_new_handler()) handler();
  throw std::bad_alloc();
}

#define CALLER __builtin_return_address(0)

}  // namespace

void* operator new(size_t size) { return allocate_or_throw(CALLER, 0, size); }
void* operator new[](size_t size) { return allocate_or_throw(CALLER, 0, size); }
void* operator new(size_t size, std::align_val_t alignment) {
  return allocate_or_throw(CALLER, static_cast<size_t>(alignment), size);
}
void* operator new[](size_t size, std::align_val_t alignment) {
  return allocate_or_throw(CALLER, static_cast<size_t>(alignment), size);
}
void* operator new(size_t size, const std::nothrow_t&) noexcept { return allocate(CALLER, 0, size); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return allocate(CALLER, 0, size); }
void operator delete(void* data) noexcept { std::free(data); }
void operator delete[](void* data) noexcept { std::free(data); }
void operator delete(void* data, size_t) noexcept { std::free(data); }
void operator delete[](void* data, size_t) noexcept { std::free(data); }
void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }
void operator delete[](void* data, std::align_val_t) noexcept { std::free(data); }

extern "C" {

void* malloc(size_t size) { return allocate(CALLER, 0, size); }
void* calloc(size_t count, size_t size) { return fails(CALLER) ? nullptr : __libc_calloc(count, size); }
void* realloc(void* old, size_t size) { return fails(CALLER) ? nullptr : __libc_realloc(old, size); }
void* memalign(size_t alignment, size_t size) { return allocate(CALLER, alignment, size); }
void* aligned_alloc(size_t alignment, size_t size) { return allocate(CALLER, alignment, size); }
int posix_memalign(void** out, size_t alignment, size_t size) {
  void* const data = allocate(CALLER, alignment, size);
  if (data == nullptr) return ENOMEM;
  *out = data;
  return 0;
}

int __libc_start_main(Main main, int argc, char** argv, void (*init)(), void (*fini)(), void (*rtld_fini)(), void* stack_end) {
  program = main;
  using Start = int (*)(Main, int, char**, void (*)(), void (*)(), void (*)(), void*);
  return reinterpret_cast<Start>(dlsym(RTLD_NEXT, "__libc_start_main"))(forking_main, argc, argv, init, fini, rtld_fini,
                                                                        stack_end);
}

}  // extern "C"
