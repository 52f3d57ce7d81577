#ifndef EPS_SERVER_CORE_TRANSFER_WATCH_DESK_H_
#define EPS_SERVER_CORE_TRANSFER_WATCH_DESK_H_

// The records of a job's steps, and the clients that watch them. Used on the lead.

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "base/ids.h"
#include "eps/v1/control.pb.h"
#include "eps_server/core/events.h"
#include "eps_server/core/outbox.h"
#include "eps_server/core/shard_facts.h"

namespace eps {

// For one thread. Borrows facts and outbox, which must outlive it. Owns the records of the job.
class WatchDesk {
 public:
  WatchDesk(const ShardFacts* facts, Outbox* outbox) : facts_(*facts), outbox_(outbox) {}

  // Sends the records that the client lacks, then later ones as they arrive. UNIMPLEMENTED on a
  // shard that is not the lead.
  void On(const event::Watch& e);
  // Keeps a record and sends it to the watches that lack it.
  void On(const internal_event::Recorded& e);
  // Ends the watches of a finished job that have received all they asked for.
  void On(const internal_event::RecordsUpToDate& e);

  // Replaces the records by those of a restored border.
  void Restore(const std::vector<v1::StepRecord>& records);
  // Replaces the records by those of an earlier term.
  void Inherit(const WatchDesk& earlier) { records_ = earlier.records_; }

  // Sets the last step, if there is one.
  void FillStatus(v1::StatusReply* status) const;
  // Forgets a watch whose client ended it.
  void Closed(StreamId stream) { watchers_.erase(stream); }
  // Ends every watch with `why`: the job failed, or the term is over and the records of steps that
  // will be repeated are withdrawn.
  void EndTerm(const absl::Status& why);

 private:
  // The progress of one client: the last step and evaluation sent, and the evaluation to wait for.
  struct Watcher {
    uint64_t after_step = 0;
    uint64_t after_evaluation = 0;
    uint64_t until_evaluation = 0;

    // Returns true, and advances, if the record is newer than those the client has.
    bool Takes(const v1::StepRecord& record);
  };

  const ShardFacts& facts_;
  Outbox* const outbox_;
  std::vector<effect::SharedRecord> records_;  // in order
  std::map<StreamId, Watcher> watchers_;
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_TRANSFER_WATCH_DESK_H_
