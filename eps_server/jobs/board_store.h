#ifndef EPS_SERVER_JOBS_BOARD_STORE_H_
#define EPS_SERVER_JOBS_BOARD_STORE_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "eps_server/jobs/job_board.h"
#include "storage/records/key_value_store.h"

namespace eps {

// The durable records of the board of jobs; docs/formats/catalogue.md, "The board". Without a
// database it keeps nothing. Thread-compatible; calls block.
class BoardStore {
 public:
  // `store_or_null` must outlive this.
  explicit BoardStore(KeyValueStore* store_or_null) : store_or_null_(store_or_null) {}

  // Returns the stored board, or an empty one that `new_board` names. Writes nothing. DataLoss
  // names the key of a damaged record; FailedPrecondition that of one of a later release.
  absl::StatusOr<std::unique_ptr<JobBoard>> Read(uint64_t new_board, int64_t now_ms) const;
  // Makes a plan durable; one that is not `durable` needs nothing.
  absl::Status Write(const BoardPlan& plan);

 private:
  KeyValueStore* const store_or_null_;
};

}  // namespace eps

#endif  // EPS_SERVER_JOBS_BOARD_STORE_H_
