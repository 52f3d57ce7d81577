#include "eps_server/core/replay/log_facts.h"

namespace eps {

v1::LogFact PushFact(const v1::PushHeader& header, bool nonfinite) {
  v1::LogFact fact;
  *fact.mutable_push()->mutable_header() = header;
  fact.mutable_push()->set_nonfinite(nonfinite);
  return fact;
}

v1::LogFact DecisionFact(const v1::Decision& decision) {
  v1::LogFact fact;
  *fact.mutable_decision() = decision;
  return fact;
}

v1::LogFact TrustFact(const v1::Trust& trust) {
  v1::LogFact fact;
  *fact.mutable_trust() = trust;
  return fact;
}

v1::LogFact StatsFact(ShardId from, const v1::Stats& stats) {
  v1::LogFact fact;
  fact.mutable_stats()->set_shard(from.value());
  *fact.mutable_stats()->mutable_stats() = stats;
  return fact;
}

}  // namespace eps
