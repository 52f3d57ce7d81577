// eps-verify: the program that `eps verify` executes. ParseVerifyArguments lists its options.

#include <iostream>
#include <string>
#include <vector>

#include "base/exit_code.h"
#include "verify/verify.h"

namespace {

int Fail(const absl::Status& status) {
  std::cerr << "eps verify: " << status.message() << std::endl;
  return static_cast<int>(eps::ExitCodeOf(status));
}

}  // namespace

int main(int argc, char** argv) {
  const auto command = eps::ParseVerifyArguments(std::vector<std::string>(argv + 1, argv + argc));
  if (!command.ok()) return Fail(command.status());
  if (!command->text.empty()) {
    std::cout << command->text;
    return static_cast<int>(eps::ExitCode::kOk);
  }
  const absl::StatusOr<bool> equal = eps::RunVerify(command->options, &std::cout);
  if (!equal.ok()) return Fail(equal.status());
  return static_cast<int>(*equal ? eps::ExitCode::kOk : eps::ExitCode::kDifferent);
}
