#include "base/config/parameter_groups.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "re2/re2.h"

namespace eps {
namespace {

template <class... Parts>
absl::Status RefuseRule(size_t number, const GroupRule& rule, const Parts&... parts) {
  return absl::InvalidArgumentError(
      absl::StrCat("optimizer.groups: rule ", number, ", match \"", rule.match, "\": ", parts...));
}

// The tensors of a rule: its first one, whether or not it belongs to an earlier rule, and a count.
struct Found {
  const TensorSpec* first = nullptr;
  size_t taken = 0;  // that belong to no earlier rule
};

}  // namespace

absl::Status ApplyGroupRules(const std::vector<GroupRule>& rules, JobSpec* spec) {
  std::vector<std::unique_ptr<RE2>> expressions;
  for (size_t i = 0; i < rules.size(); ++i) {
    expressions.push_back(std::make_unique<RE2>(rules[i].match, RE2::Quiet));
    if (!expressions[i]->ok()) {
      return RefuseRule(i, rules[i], "not a regular expression: ", expressions[i]->error());
    }
    if (rules[i].frozen && (rules[i].lr_multiplier != 1 || rules[i].weight_decay.has_value())) {
      return RefuseRule(i, rules[i],
                        "frozen tensors have no lr_multiplier and no weight_decay; leave them out");
    }
  }
  const std::vector<ParameterGroup> usual = spec->groups;
  std::map<std::pair<size_t, uint32_t>, GroupId> made;  // by rule and group of the layout
  std::vector<Found> found(rules.size());
  for (TensorSpec& tensor : spec->tensors) {
    bool is_taken = false;
    for (size_t i = 0; i < rules.size(); ++i) {
      if (!RE2::PartialMatch(tensor.name, *expressions[i])) continue;
      if (found[i].first == nullptr) found[i].first = &tensor;
      if (std::exchange(is_taken, true)) continue;
      ++found[i].taken;
      const uint32_t before = tensor.group.value();
      if (usual[before].frozen) continue;  // by the model's program
      const auto [group, is_new] =
          made.emplace(std::pair(i, before), GroupId(static_cast<uint32_t>(spec->groups.size())));
      tensor.group = group->second;
      if (!is_new) continue;
      const bool decays = usual[before].name == kDecayGroup && !rules[i].frozen;
      spec->groups.push_back(
          {absl::StrCat("groups.", i, ".", usual[before].name),
           decays ? rules[i].weight_decay.value_or(usual[before].weight_decay) : 0.0,
           rules[i].lr_multiplier, rules[i].frozen});
    }
  }
  for (size_t i = 0; i < rules.size(); ++i) {
    if (found[i].first == nullptr) {
      return RefuseRule(i, rules[i], "no tensor has such a name; names are as ",
                        spec->tensors.empty() ? "" : spec->tensors.back().name);
    }
    if (found[i].taken == 0) {
      return RefuseRule(i, rules[i], "all its tensors, such as ", found[i].first->name,
                        ", belong to earlier rules");
    }
  }
  return absl::OkStatus();
}

}  // namespace eps
