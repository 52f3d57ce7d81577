#ifndef EPS_CLI_LAUNCH_ARGUMENTS_H_
#define EPS_CLI_LAUNCH_ARGUMENTS_H_

// Parses the arguments of commands that mix options of their own with configuration keys
// (OptionReader), and reports unknown words.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eps {

// Reads the options that a command declares and returns all other arguments. Thread-compatible.
class OptionReader {
 public:
  // Stores a value, or returns the error for the user.
  using Set = std::function<absl::Status(absl::string_view value)>;

  // Declares `name`, such as "--json", which sets `*given`.
  OptionReader& Flag(std::string name, bool* given);
  // Declares an option that is given as `name`=value or as `name` value. If it is given several
  // times, the last value wins.
  OptionReader& Text(std::string name, std::string* value);
  OptionReader& Value(std::string name, Set set);

  // Reads the declared options and returns the other arguments in order. Errors are those of Set;
  // InvalidArgument also for an option without its value.
  absl::StatusOr<std::vector<std::string>> Read(const std::vector<std::string>& arguments) const;

 private:
  std::vector<std::pair<std::string, bool*>> flags_;
  std::vector<std::pair<std::string, Set>> values_;
};

// Returns the error for a word that is not in `known`; it suggests the nearest one.
absl::Status UnknownCommand(const std::string& word, const std::vector<std::string>& known);

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_ARGUMENTS_H_
