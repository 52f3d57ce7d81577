#ifndef EPS_SERVER_CORE_PUSH_PUSH_TEXTS_H_
#define EPS_SERVER_CORE_PUSH_PUSH_TEXTS_H_

// Why a contribution is refused, for people. Each text names the chunk, or its tensor, and the
// part.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "eps/v1/data.pb.h"
#include "eps_server/core/shard_facts.h"

namespace eps {

// Checks the header of a contribution that names an element which is not finite. REQUIRES: its
// chunk is one of the job.
absl::Status CheckNonfinite(const JobFacts& job, const v1::PushHeader& header);
// `element` of the chunk is not admissible, for the reason `status`.
std::string NonfiniteText(const JobFacts& job, const v1::ContributionKey& key, uint64_t element,
                          const absl::Status& status);
// The last payload that its process may send arrived damaged.
std::string DamagedText(const v1::ContributionKey& key);
// The payload was not complete in time.
std::string LatePayloadText(const JobFacts& job, const v1::ContributionKey& key);

}  // namespace eps

#endif  // EPS_SERVER_CORE_PUSH_PUSH_TEXTS_H_
