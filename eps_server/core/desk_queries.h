#ifndef EPS_SERVER_CORE_DESK_QUERIES_H_
#define EPS_SERVER_CORE_DESK_QUERIES_H_

// The questions of a desk about state that another desk owns. The router implements it; tests use
// testing/fake_outbox.h.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/ids.h"
#include "base/job/job_spec.h"
#include "eps/v1/data.pb.h"
#include "eps/v1/log.pb.h"

namespace eps {

// For one thread. No question changes any state.
class DeskQueries {
 public:
  virtual ~DeskQueries() = default;

  // The gradient norm of a step. Returns 0 if it is unknown, and on shards other than the lead.
  virtual double NormOf(uint64_t step) const = 0;
  // The last step whose record is complete. For the lead only.
  virtual uint64_t RecordedStep() const = 0;
  // The first step that the lead has not decided on. For the lead only.
  virtual uint64_t NextDecision() const = 0;
  // The contributions to the open step that come from one of the parts; `parts` has one entry for
  // each part of the job.
  virtual std::vector<v1::Have> Counted(const std::vector<bool>& parts) const = 0;
  // The axes along which an update of the chunk should encode the new weights.
  virtual std::vector<Axis> AxesForUpdate(ChunkId chunk) const = 0;
  // The trust ratios of the open step, for an optimizer that adapts. Null until they are known.
  virtual const v1::Trust* TrustOfOpenStep() const = 0;
  // On the lead, refuses a begin of a worker that computes in another way than a strict job does.
  virtual absl::Status CheckBegin(const v1::BeginStepRequest& request) const = 0;
  // Whether a reduction or an update is in flight.
  virtual bool IsUpdating() const = 0;
  // Whether no backend call is in flight, apart from a scrub.
  virtual bool IsIdle() const = 0;
  // Names what a RECOVERING shard waits for.
  virtual std::string RecoveryWaitsFor() const = 0;
  // Describes the shard at a border, for the contribution log.
  virtual v1::LoggedSession Session() const = 0;
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_DESK_QUERIES_H_
