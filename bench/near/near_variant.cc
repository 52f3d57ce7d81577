#include "bench/near/near_variant.h"

#include "absl/strings/str_cat.h"

namespace eps {
namespace {

namespace smart = planner::smart_infinity;

constexpr int kSets = 3;
constexpr int kHostChunks = 2;  // per device, in flight on a host that updates

}  // namespace

NearVariant Raid0(const NearRule& rule, bool host_is_papers) {
  NearVariant variant;
  variant.name = host_is_papers ? "RAID0, paper's host" : "RAID0, link alone";
  variant.rule = rule;
  variant.host_updates = true;
  variant.host_is_papers = host_is_papers;
  variant.sets = kHostChunks;
  if (host_is_papers) variant.paper = smart::Variant::kBase;
  return variant;
}

NearVariant Naive(const NearRule& rule) {
  NearVariant variant;
  variant.name = "SU";
  variant.rule = rule;
  variant.host_is_papers = true;
  variant.paper = smart::Variant::kNaive;
  return variant;
}

NearVariant Handover(const NearRule& rule) {
  NearVariant variant = Naive(rule);
  variant.name = "SU+O";
  variant.hands_buffers_over = true;
  variant.paper = smart::Variant::kHandover;
  return variant;
}

NearVariant TopK(const NearRule& rule, double c) {
  constexpr double kPairBytes = 8;
  NearVariant variant = Handover(rule);
  variant.gradient_bytes = 4 * c;
  const double selected = variant.gradient_bytes / kPairBytes;
  variant.name = absl::StrCat("SU+O+C, top ", 100 * selected, " %");
  variant.gradients = absl::StrCat("topk:", selected, ":raw32:fp32");
  variant.paper = smart::Variant::kTopK;
  return variant;
}

NearVariant Ours(const NearRule& rule, bool eager) {
  NearVariant variant;
  variant.name = eager ? "ours, eager" : "ours, sealed";
  variant.rule = rule;
  variant.sets = kSets;
  variant.eager = eager;
  variant.gradients_in_memory = !eager;
  variant.encodes_weights = true;
  return variant;
}

}  // namespace eps
