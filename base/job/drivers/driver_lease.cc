#include "base/job/drivers/driver_lease.h"

#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace eps {

std::string ToText(const DriverLease& lease) {
  return absl::StrCat(lease.board, ":", lease.generation);
}

absl::StatusOr<DriverLease> ParseDriverLease(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits(':', 1));
  DriverLease lease;
  if (!absl::SimpleAtoi(parts.first, &lease.board) ||
      !absl::SimpleAtoi(parts.second, &lease.generation) || !lease.exists()) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is no driver's lease; expected BOARD:GENERATION"));
  }
  return lease;
}

}  // namespace eps
