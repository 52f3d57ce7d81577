#include "worker/tokenizer_process.h"

#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/descriptor.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using std::chrono::milliseconds;

// The tool of the tree itself, run with the standard library: bytes as a vocabulary need no more.
PythonTools BytesTool() { return {"python3", {"PYTHONPATH=python", "PYTHONDONTWRITEBYTECODE=1"}}; }

// Returns a program that runs these lines of shell instead of the tool.
PythonTools Script(const std::string& lines) {
  const std::string path = testing::TempDir() + "/" +
                           testing::UnitTest::GetInstance()->current_test_info()->name() + ".sh";
  std::ofstream(path) << "#!/bin/sh\n" << lines << "\n";
  chmod(path.c_str(), 0755);
  return {path, {}};
}

absl::Status StartError(const PythonTools& tools, milliseconds start = milliseconds(60'000)) {
  return TokenizerProcess::Start(tools, "bytes", start).status();
}

TEST(TokenizerProcessTest, EncodesAndDecodes) {
  auto process = TokenizerProcess::Start(BytesTool(), "bytes");
  ASSERT_TRUE(process.ok()) << process.status();
  EXPECT_EQ(*(*process)->Encode("h\xC3\xA9\n"), (std::vector<int32_t>{104, 195, 169, 10}));
  EXPECT_EQ(*(*process)->Decode({104, 195, 169, 34}), "h\xC3\xA9\"");
  EXPECT_EQ(*(*process)->Decode({}), "");
  EXPECT_EQ((*process)->Encode("a\xFF")->size(), 4u) << "U+FFFD has three bytes";
  const absl::Status chat = (*process)->EncodeChat("hello").status();
  EXPECT_TRUE(absl::StrContains(chat.message(), "no chat template")) << chat;
  EXPECT_EQ(*(*process)->Decode({104}), "h") << "an error ends only its request";
}

TEST(TokenizerProcessTest, GivesTheReasonOfTheTool) {
  const absl::Status status = TokenizerProcess::Start(BytesTool(), "/nonexistent/folder").status();
  EXPECT_TRUE(absl::StrContains(status.message(), "/nonexistent/folder is no folder")) << status;
}

TEST(TokenizerProcessTest, NoWaitIsWithoutALimit) {
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(StartError(Script("exec tail -f /dev/null"), milliseconds(50))));
  auto silent = TokenizerProcess::Start(Script("echo '{\"ready\": 1}'; exec tail -f /dev/null"),
                                        "bytes", milliseconds(60'000), milliseconds(50));
  ASSERT_TRUE(silent.ok()) << silent.status();
  const absl::Status status = (*silent)->Encode("a").status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "--prompt-ids")) << status;
}

TEST(TokenizerProcessTest, NoticesAProcessThatEnds) {
  EXPECT_TRUE(absl::IsUnavailable(StartError({"/nonexistent/python", {}})));
  EXPECT_TRUE(absl::IsUnavailable(StartError(Script("exit 3"))));
  auto process = TokenizerProcess::Start(Script("echo '{\"ready\": 1}'"), "bytes");
  ASSERT_TRUE(process.ok()) << process.status();
  EXPECT_TRUE(absl::IsUnavailable((*process)->Encode("a").status()));
}

TEST(TokenizerProcessTest, RefusesAnswersOfAnotherForm) {
  for (const char* answer : {"nonsense", "[]", "{}", "{\"ready\": 1"}) {
    const absl::Status status = StartError(Script(absl::StrCat("echo '", answer, "'")));
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  }
  auto process = TokenizerProcess::Start(
      Script(
          "echo '{\"ready\": 1}'; read x; echo '{\"ids\": [\"a\"]}'; read x; echo '{\"text\": 1}'"),
      "bytes");
  ASSERT_TRUE(process.ok()) << process.status();
  EXPECT_TRUE(absl::IsInternal((*process)->Encode("a").status()));
  EXPECT_TRUE(absl::IsInternal((*process)->Decode({1}).status()));
}

// Returns whether a process has ended within ten seconds.
bool Ends(pid_t pid) {
  const Descriptor process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!process.ok()) return true;  // it has ended already
  pollfd wait = {process.get(), POLLIN, 0};
  return poll(&wait, 1, 10'000) == 1;
}

TEST(TokenizerProcessTest, EndsWithItsParent) {
  const std::string path = testing::TempDir() + "/tokenizer.pid";
  const PythonTools tools =
      Script(absl::StrCat("echo $$ > ", path, "; echo '{\"ready\": 1}'; exec tail -f /dev/null"));
  const pid_t child = fork();
  if (child == 0) {
    const auto process = TokenizerProcess::Start(tools, "bytes");
    _exit(process.ok() ? 0 : 1);  // without a destructor
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  pid_t pid = 0;
  ASSERT_TRUE(absl::SimpleAtoi(text.str(), &pid)) << text.str();
  EXPECT_TRUE(Ends(pid));
}

}  // namespace
}  // namespace eps
