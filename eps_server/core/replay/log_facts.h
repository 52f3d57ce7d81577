#ifndef EPS_SERVER_CORE_REPLAY_LOG_FACTS_H_
#define EPS_SERVER_CORE_REPLAY_LOG_FACTS_H_

// The entries of a shard's contribution log, one function for each kind of message that counts.

#include "base/ids.h"
#include "eps/v1/data.pb.h"
#include "eps/v1/log.pb.h"
#include "eps/v1/shard.pb.h"

namespace eps {

// A contribution that counts. The entry holds its payload and residual beside the fact.
v1::LogFact PushFact(const v1::PushHeader& header, bool nonfinite);
v1::LogFact DecisionFact(const v1::Decision& decision);
v1::LogFact TrustFact(const v1::Trust& trust);
v1::LogFact StatsFact(ShardId from, const v1::Stats& stats);

}  // namespace eps

#endif  // EPS_SERVER_CORE_REPLAY_LOG_FACTS_H_
