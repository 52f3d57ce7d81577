#ifndef EPS_STORAGE_CUTS_COMMON_CUT_H_
#define EPS_STORAGE_CUTS_COMMON_CUT_H_

// Chooses the cut that the shards of a job restore: the youngest one that all of them have.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/cuts/cut.h"

namespace eps {

// Returns a name for messages: "step 40 (term 2)".
std::string CutName(const CutId& cut);

// The cuts of one shard.
struct HeldCuts {
  std::string holder;  // for messages: "shard 1 at 10.0.0.2:7000"
  std::vector<CutId> cuts;
  bool opened = false;  // whether one of them was made after training had begun
  std::string damage;   // why the shard lacks another one; empty if nothing is damaged
};

// Returns the youngest cut that every shard has, or nullopt if training had not begun on any shard.
// `watermark` is the youngest cut known to have been on all shards, if any. If there is no common
// cut, NotFound, with the cuts of each shard, if one of them has none, else FailedPrecondition;
// Internal if it is older than `watermark`.
absl::StatusOr<std::optional<CutId>> HighestCommonCut(const std::vector<HeldCuts>& shards,
                                                      const std::optional<CutId>& watermark);

}  // namespace eps

#endif  // EPS_STORAGE_CUTS_COMMON_CUT_H_
