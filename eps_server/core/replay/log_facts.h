#ifndef EPS_SERVER_CORE_REPLAY_LOG_FACTS_H_
#define EPS_SERVER_CORE_REPLAY_LOG_FACTS_H_

// What a shard writes into its contribution log, of each kind of thing that it is told.

#include "base/ids.h"
#include "eps/v1/data.pb.h"
#include "eps/v1/log.pb.h"
#include "eps/v1/shard.pb.h"
#include "eps_server/core/steps/lead.h"

namespace eps {

// A contribution that counts; payload and residual lie beside the fact.
v1::LogFact PushFact(const v1::PushHeader& header, bool nonfinite);
v1::LogFact DecisionFact(const v1::Decision& decision);
v1::LogFact StatsFact(ShardId from, const v1::Stats& stats);
// Of what the request reports, that which is news to the lead; empty if nothing is.
v1::LogFact ReportsFact(const v1::BeginStepRequest& request, const Lead& lead);

}  // namespace eps

#endif  // EPS_SERVER_CORE_REPLAY_LOG_FACTS_H_
