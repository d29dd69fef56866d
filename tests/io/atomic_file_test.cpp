#include "cistron/io/atomic_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>

#include "tests/io/faults.h"
#include "tests/io/temp_directory.h"

namespace cistron::io {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using testing::error_of;
using testing::FailCalls;
using ::testing::HasSubstr;
using testing::read_text;
using testing::TempDirectory;
using testing::write_text;

std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

TEST(AtomicFile, IsWholeOrAbsent) {
  const TempDirectory temp;
  {
    AtomicFile file(temp / "a");
    file.write("hello ");
    file.write_at(8, std::as_bytes(std::span("there", 5)));
    file.write("w!");
    EXPECT_FALSE(fs::exists(temp / "a"));
    file.commit();
  }
  EXPECT_EQ(read_text(temp / "a"), "hello w!there");
  {
    AtomicFile file(temp / "a");
    file.write("lost");
  }
  EXPECT_EQ(read_text(temp / "a"), "hello w!there");
  EXPECT_THAT(names_in(temp.path()), ElementsAre("a"));
}

TEST(AtomicFile, WritesLargeFiles) {
  const TempDirectory temp;
  std::string text(5'000'001, 'x');
  for (size_t i = 0; i < text.size(); i += 7) text[i] = static_cast<char>(i);
  write_file(temp / "a", text);
  EXPECT_EQ(read_text(temp / "a"), text);
}

TEST(AtomicFile, NamesFileAndReason) {
  const TempDirectory temp;
  const std::string message = error_of(ErrorKind::kFailed, [&] { write_file(temp / "no/such", "x"); });
  EXPECT_THAT(message, HasSubstr("no/such"));
  EXPECT_THAT(message, HasSubstr("No such file or directory"));
}

// Fails each system call in turn until there is none left: the old file stays, or the new one is there, and nothing else.
template <class Save, class Check>
void fail_each_call(ErrorKind kind, int error, int64_t times, const Save& save, const Check& check) {
  int64_t call = 1;
  for (bool failed = true; failed; ++call) {
    ASSERT_LT(call, 200);
    SCOPED_TRACE(call);
    const FailCalls faults(call, error, times);
    try {
      save();
      failed = FailCalls::count() >= call;  // a failure that was got round
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), kind) << e.what();
      EXPECT_THAT(e.what(), HasSubstr(std::generic_category().message(error)));
    }
    check();
  }
  EXPECT_GT(call, 4) << "the calls were not intercepted";
}

TEST(AtomicFile, SurvivesTheFailureOfAnyCall) {
  const TempDirectory temp;
  for (const auto& [error, kind] :
       {std::pair(EIO, ErrorKind::kFailed), {ENOSPC, ErrorKind::kOutOfSpace}, {EDQUOT, ErrorKind::kOutOfSpace}}) {
    write_text(temp / "a", "old");
    fail_each_call(
        kind, error, 1, [&] { write_file(temp / "a", std::string(10000, 'n')); },
        [&] {
          const std::string now = read_text(temp / "a");
          EXPECT_TRUE(now == "old" || now == std::string(10000, 'n'));
          EXPECT_THAT(names_in(temp.path()), ElementsAre("a"));
        });
    EXPECT_EQ(read_text(temp / "a"), std::string(10000, 'n'));
  }
}

TEST(AtomicDirectory, ASignalDuringAnyCallGoesUnnoticed) {
  int64_t call = 1;
  for (bool interrupted = true; interrupted; ++call) {
    SCOPED_TRACE(call);
    const TempDirectory temp;
    const FailCalls faults(call, EINTR, 3);
    AtomicDirectory directory(temp / "d");
    write_file(directory.partial() / "f", std::string(10000, 'n'));
    directory.commit();
    EXPECT_EQ(read_text(temp / "d/f"), std::string(10000, 'n'));
    interrupted = FailCalls::count() >= call;
  }
  EXPECT_GT(call, 12) << "opening, locking, writing and syncing were not interrupted";
}

TEST(AtomicFile, AWriteThatTakesNothingIsAnError) {
  const TempDirectory temp;
  const FailCalls faults(1, 0, 1000);
  EXPECT_THAT(error_of(ErrorKind::kFailed, [&] { write_file(temp / "a", "new"); }), HasSubstr("Input/output error"));
}

TEST(AtomicDirectory, ANameWithoutRoomForASuffixIsRefused) {
  const TempDirectory temp;
  for (const size_t size : {247U, 248U, 255U, 256U, 4096U}) {
    const std::string name(size, 'n');
    EXPECT_THAT(error_of(ErrorKind::kUsage, [&] { AtomicDirectory(temp / name, true); }), HasSubstr("at most 246")) << size;
    EXPECT_THAT(error_of(ErrorKind::kUsage, [&] { write_file(temp / name, ""); }), HasSubstr("at most 246")) << size;
  }
  EXPECT_TRUE(names_in(temp.path()).empty());
  const std::string longest(246, 'n');
  for (int i = 0; i < 2; ++i) AtomicDirectory(temp / longest, true).commit();
  EXPECT_THAT(names_in(temp.path()), ElementsAre(longest));
}

TEST(AtomicDirectory, IsWholeOrAbsent) {
  const TempDirectory temp;
  {
    AtomicDirectory directory(temp / "runs/d/");
    EXPECT_EQ(directory.partial(), temp / "runs/d.partial");
    fs::create_directory(directory.partial() / "sub");
    write_text(directory.partial() / "sub/f", "x");
    EXPECT_FALSE(fs::exists(temp / "runs/d"));
    directory.commit();
  }
  EXPECT_EQ(read_text(temp / "runs/d/sub/f"), "x");
  {
    const AtomicDirectory lost(temp / "runs/e");
  }
  EXPECT_THAT(names_in(temp / "runs"), ElementsAre("d"));
}

TEST(AtomicDirectory, ReplacesOnlyWhenTold) {
  const TempDirectory temp;
  fs::create_directory(temp / "d");
  write_text(temp / "d/old", "x");
  EXPECT_THAT(error_of(ErrorKind::kUsage, [&] { AtomicDirectory(temp / "d"); }), HasSubstr("--force"));
  AtomicDirectory directory(temp / "d", true);
  write_text(directory.partial() / "new", "y");
  directory.commit();
  EXPECT_THAT(names_in(temp / "d"), ElementsAre("new"));
  EXPECT_THAT(names_in(temp.path()), ElementsAre("d"));
}

TEST(AtomicDirectory, IsWrittenByOneAtATime) {
  const TempDirectory temp;
  {
    AtomicDirectory first(temp / "d", true);
    write_file(first.partial() / "a", "1");
    EXPECT_THAT(error_of(ErrorKind::kUsage, [&] { AtomicDirectory(temp / "d", true); }), HasSubstr("another process"));
    first.commit();
    EXPECT_TRUE(fs::exists(temp / "d/a")) << "the one that was refused touched nothing";
    AtomicDirectory second(temp / "d", true);
    second.commit();
  }
  EXPECT_FALSE(fs::exists(temp / "d/a"));
  EXPECT_THAT(error_of(ErrorKind::kUsage, [&] { AtomicDirectory(temp / "d"); }), HasSubstr("exists already"));
  EXPECT_FALSE(fs::exists(temp / "d.partial"));
}

constexpr const char* kMark = ".cistron-partial";

TEST(AtomicDirectory, WhatAKilledRunLeftIsSweptAway) {
  const TempDirectory temp;
  fs::create_directories(temp / "d.partial/junk");
  write_text(temp / "d.partial" / kMark, "");
  fs::create_directory(temp / "e.partial");  // killed before it was marked
  for (const char* name : {"d", "e"}) {
    AtomicDirectory directory(temp / name);
    EXPECT_THAT(names_in(directory.partial()), ElementsAre(kMark));
    write_text(directory.partial() / "f", "y");
    directory.commit();
    EXPECT_THAT(names_in(temp / name), ElementsAre("f"));
  }
}

TEST(AtomicDirectory, WhatAKilledRunWasReplacingIsPutBack) {
  const TempDirectory temp;
  const auto leave = [&] {
    fs::create_directories(temp / "d.replaced");
    write_text(temp / "d.replaced/f", "old");
    write_text(temp / "d.replaced" / kMark, "");
  };
  leave();
  EXPECT_THAT(error_of(ErrorKind::kUsage, [&] { AtomicDirectory(temp / "d"); }), HasSubstr("exists already"));
  EXPECT_EQ(read_text(temp / "d/f"), "old");
  leave();  // the new one was there already: this one is of no use
  AtomicDirectory directory(temp / "d", true);
  EXPECT_EQ(read_text(temp / "d/f"), "old");
  directory.commit();
  EXPECT_THAT(names_in(temp.path()), ElementsAre("d"));
}

TEST(AtomicDirectory, AUsersOwnFolderOrFileOfThoseNamesStays) {
  for (const char* suffix : {"partial", "replaced"})
    for (const char* kind : {"folder", "file", "link"}) {
      const TempDirectory temp;
      const fs::path theirs = temp / (std::string("d.") + suffix);
      fs::create_directory(temp / "home");
      write_text(temp / "home/precious", "x");
      if (kind == std::string("folder")) fs::copy(temp / "home", theirs);
      if (kind == std::string("file")) write_text(theirs, "x");
      if (kind == std::string("link")) fs::create_directory_symlink(temp / "home", theirs);
      fs::create_directory(temp / "d");
      write_text(temp / "d/f", "old");
      EXPECT_THAT(error_of(ErrorKind::kUsage, [&] { AtomicDirectory(temp / "d", true).commit(); }), HasSubstr("in the way"));
      EXPECT_THAT(names_in(temp.path()), ElementsAre("d", theirs.filename().string(), "home")) << kind;
      EXPECT_EQ(read_text(temp / "home/precious"), "x");
      EXPECT_EQ(read_text(kind == std::string("file") ? theirs : theirs / "precious"), "x");
      EXPECT_THAT(names_in(temp / "d"), ElementsAre("f"));
    }
}

TEST(AtomicDirectory, AFolderThatCannotBeListedIsNotTakenForAUsers) {
  const TempDirectory temp;
  const int lowest = dup(STDERR_FILENO);
  close(lowest);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit one_more{static_cast<rlim_t>(lowest) + 1, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &one_more), 0);
  const std::string message = error_of(ErrorKind::kFailed, [&] { const AtomicDirectory directory(temp / "d"); });
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_THAT(message, HasSubstr("cannot list"));
  EXPECT_THAT(message, HasSubstr("Too many open files"));
  EXPECT_TRUE(names_in(temp.path()).empty());
}

TEST(AtomicFile, NeverWritesThroughALink) {
  const TempDirectory temp;
  write_text(temp / "victim", "precious");
  fs::create_symlink(temp / "victim", temp / "a.partial");
  fs::create_symlink(temp / "none", temp / "b.partial");
  fs::create_hard_link(temp / "victim", temp / "c.partial");
  for (const char* name : {"a", "b", "c"}) {
    write_file(temp / name, "new");
    EXPECT_EQ(read_text(temp / name), "new");
  }
  EXPECT_EQ(read_text(temp / "victim"), "precious");
  EXPECT_THAT(names_in(temp.path()), ElementsAre("a", "b", "c", "victim"));
}

TEST(AtomicDirectory, LeavesADirectoryNamedOldAlone) {
  const TempDirectory temp;
  fs::create_directories(temp / "d");
  fs::create_directories(temp / "d.old");
  AtomicDirectory(temp / "d", true).commit();
  EXPECT_THAT(names_in(temp.path()), ElementsAre("d", "d.old"));
}

TEST(AtomicDirectory, SurvivesTheFailureOfAnyCall) {
  for (const int64_t times : {1, 1000}) {
    const TempDirectory temp;
    fs::create_directory(temp / "d");
    write_text(temp / "d/f", "old");
    const auto save = [&] {
      AtomicDirectory directory(temp / "d", true);
      FileWriter file(directory.partial() / "f");
      file.write("new");
      file.close();
      directory.commit();
    };
    const auto check = [&] {
      const std::string now = read_text(temp / "d/f");
      EXPECT_TRUE(now == "old" || now == "new") << now;
      EXPECT_FALSE(fs::exists(temp / "d.partial"));
      EXPECT_TRUE(now == "new" || names_in(temp.path()) == std::vector<std::string>{"d"});
    };
    fail_each_call(ErrorKind::kFailed, EIO, times, save, check);
    EXPECT_EQ(read_text(temp / "d/f"), "new");
  }
}

}  // namespace
}  // namespace cistron::io
