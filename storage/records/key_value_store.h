#ifndef EPS_STORAGE_RECORDS_KEY_VALUE_STORE_H_
#define EPS_STORAGE_RECORDS_KEY_VALUE_STORE_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eps {

// An ordered map of byte strings with atomic, durable writes: the interface between records and
// database. Thread-safe; calls block. After a failed write all later writes fail too.
class KeyValueStore {
 public:
  // The new value of one key.
  struct Change {
    std::string key;
    std::optional<std::string> value;  // nullopt removes the key
  };

  virtual ~KeyValueStore() = default;
  // Applies all changes or none; they are synced when it returns OK. Internal with the folder and
  // the reason.
  virtual absl::Status Write(const std::vector<Change>& changes) = 0;
  // Returns the pairs whose key begins with `prefix`, by key. DataLoss names the damaged file.
  virtual absl::StatusOr<std::vector<std::pair<std::string, std::string>>> Scan(
      absl::string_view prefix) const = 0;
};

}  // namespace eps

#endif  // EPS_STORAGE_RECORDS_KEY_VALUE_STORE_H_
