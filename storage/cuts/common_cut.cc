#include "storage/cuts/common_cut.h"

#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace eps {

std::string CutName(const CutId& cut) {
  return absl::StrCat("step ", cut.step.value(), " (term ", cut.term.value(), ")");
}

absl::StatusOr<std::optional<CutId>> HighestCommonCut(const std::vector<HeldCuts>& shards,
                                                      const std::optional<CutId>& watermark) {
  std::set<CutId> common;
  bool opened = false;
  bool missing = false;  // a shard has nothing, though nothing is damaged there
  std::vector<std::string> texts;
  for (size_t i = 0; i < shards.size(); ++i) {
    std::set<CutId> cuts(shards[i].cuts.begin(), shards[i].cuts.end());
    std::vector<std::string> names;
    for (const CutId& cut : shards[i].cuts) names.push_back(CutName(cut));
    opened |= shards[i].opened;
    const std::string& damage = shards[i].damage;
    missing |= cuts.empty() && damage.empty();
    texts.push_back(absl::StrCat(shards[i].holder, " has ",
                                 names.empty() ? "none" : absl::StrJoin(names, ", "),
                                 damage.empty() ? "" : ", and a damaged one: ", damage));
    if (i == 0) {
      common = std::move(cuts);
      continue;
    }
    for (auto it = common.begin(); it != common.end();) {
      it = cuts.count(*it) == 0 ? common.erase(it) : std::next(it);
    }
  }
  const std::string known = absl::StrCat("cuts: ", absl::StrJoin(texts, "; "));
  if (common.empty()) {
    if (!opened && !watermark.has_value()) return std::optional<CutId>();
    const std::string text = absl::StrCat(
        "no cut is there on all shards, so there is no state to continue from (", known,
        "); bring back the missing data directory, or start from a checkpoint with other empty "
        "ones (storage.path)");
    return missing ? absl::NotFoundError(text) : absl::FailedPreconditionError(text);
  }
  const CutId highest = *common.rbegin();
  if (watermark.has_value() && highest < *watermark) {
    return absl::InternalError(absl::StrCat("the cut of ", CutName(*watermark),
                                            " was on all shards and no longer is (", known, ")"));
  }
  return std::optional<CutId>(highest);
}

}  // namespace eps
