#ifndef EPS_CLI_TESTING_EPS_FIXTURE_H_
#define EPS_CLI_TESTING_EPS_FIXTURE_H_

// Runs the real program `eps` in tests, mostly on a model that needs no LibTorch. A test that uses
// it needs //cli:eps in its data.

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "cli/launch/child_process.h"
#include "gtest/gtest.h"

namespace eps {

using Arguments = std::vector<std::string>;

inline constexpr std::chrono::seconds kPatience{600};

std::string ReadFile(const std::string& path);
// Creates the folder of the file, too.
void WriteFile(const std::string& path, const std::string& content);

// The end of a run of the program.
struct Result {
  int code = -1;    // 1000 + signal if a signal ended it
  std::string out;  // stdout and stderr
};

// A test with an empty folder, which the destructor removes.
class EpsTest : public testing::Test {
 protected:
  EpsTest();
  ~EpsTest() override;

  std::unique_ptr<ChildProcess> Start(const Arguments& arguments, bool read_stdout,
                                      const Arguments& environment = {});
  // Waits for the end of a process and returns its exit code as in Result.
  static int CodeOf(ChildProcess* child);
  Result Run(const Arguments& arguments, const Arguments& environment = {});
  // Returns the digests of weights and optimizer state that eps checkpoint digest prints.
  std::string Digest(const std::string& checkpoint);
  // Returns the arguments of a run of the synthetic model into the folder `out`.
  Arguments Train(const std::string& out, const Arguments& more) const;
  // Returns the arguments of a run of a small GPT-2, for which it writes a text.
  Arguments TrainGpt2(const std::string& out, const Arguments& more) const;

  std::string folder_;
  int runs_ = 0;
};

}  // namespace eps

#endif  // EPS_CLI_TESTING_EPS_FIXTURE_H_
