#include "optimizer/rules/opencl/rule_sources.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "optimizer/rules/opencl/adagrad_cl.h"
#include "optimizer/rules/opencl/adagrad_smartinfinity_cl.h"
#include "optimizer/rules/opencl/adam_cl.h"
#include "optimizer/rules/opencl/adamw_cl.h"
#include "optimizer/rules/opencl/adamw_sqrtv_cl.h"
#include "optimizer/rules/opencl/arithmetic_cl.h"
#include "optimizer/rules/opencl/lamb_cl.h"
#include "optimizer/rules/opencl/lion_cl.h"
#include "optimizer/rules/opencl/sgd_cl.h"
#include "optimizer/rules/opencl/sgd_smartinfinity_cl.h"

namespace eps {
namespace {

// A rule and its text.
struct Rule {
  OptimizerName name;
  const char* source;
};
constexpr Rule kRules[] = {
    {OptimizerName::kAdamW, kAdamwCl},
    {OptimizerName::kSgd, kSgdCl},
    {OptimizerName::kAdam, kAdamCl},
    {OptimizerName::kAdagrad, kAdagradCl},
    {OptimizerName::kLion, kLionCl},
    {OptimizerName::kAdamWSqrtV, kAdamwSqrtvCl},
    {OptimizerName::kSgdSmartInfinity, kSgdSmartinfinityCl},
    {OptimizerName::kAdagradSmartInfinity, kAdagradSmartinfinityCl},
    {OptimizerName::kLamb, kLambCl},
};

}  // namespace

absl::StatusOr<std::string> OpenClRule(OptimizerName name) {
  std::vector<std::string> known;
  for (const Rule& rule : kRules) {
    if (rule.name == name) return absl::StrCat(kArithmeticCl, rule.source);
    known.push_back(NameOf(rule.name));
  }
  return absl::UnimplementedError(absl::StrCat("optimizer.name=", NameOf(name),
                                               " has no rule in OpenCL C; those that have one are ",
                                               absl::StrJoin(known, ", ")));
}

}  // namespace eps
