#ifndef EPS_SERVER_CORE_TESTING_SHARD_ANSWERS_H_
#define EPS_SERVER_CORE_TESTING_SHARD_ANSWERS_H_

// The answers of shards to their clients, for tests.

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/bytes.h"
#include "base/ids.h"
#include "eps/v1/control.pb.h"
#include "eps/v1/data.pb.h"
#include "eps_server/core/events.h"

namespace eps {

// Collects the answers by stream or by tag; tags are unique among all streams. For one thread.
class ShardAnswers {
 public:
  // Keeps the answer that the effect sends; ignores all other effects.
  void Note(const Effect& effect);

  std::map<uint64_t, v1::Ack> acks;
  std::map<uint64_t, Bytes> fetched;
  std::map<uint64_t, std::map<uint32_t, Bytes>> residuals;  // by tag and chunk
  std::map<uint64_t, absl::Status> failed_fetches;
  std::map<StreamId, absl::Status> closed;
  std::map<StreamId, std::vector<effect::ReplyMessage>> replies;
  std::map<StreamId, std::vector<std::pair<v1::ExportStateReply, Bytes>>> exported;
  uint64_t credits = 0;
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_TESTING_SHARD_ANSWERS_H_
