#ifndef EPS_STORAGE_LOG_LOG_READER_H_
#define EPS_STORAGE_LOG_LOG_READER_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "storage/cuts/cut.h"
#include "storage/log/log_batch.h"
#include "storage/log/log_ring.h"

namespace eps {

// A batch that a LogReader found.
struct FoundBatch {
  uint64_t position = 0;
  uint64_t end = 0;  // the position after it
  Step last_step;    // of its entries
  std::vector<LogEntry> entries;
};

// Reads a log batch by batch. Use from one thread at a time; call ReadNext only after the last call
// has completed, and write nothing meanwhile: the reader uses the ring's buffer. Completions run on
// the ring's executor, on which the reader must live until they have run.
class LogReader {
 public:
  using Done = std::function<void(absl::StatusOr<FoundBatch>)>;

  // `ring` must outlive the reader.
  explicit LogReader(const LogRing* ring) : ring_(ring) {}

  // Begins to read the batches of `id` from `position` on.
  void Rewind(const LogId& id, uint64_t position);

  // Delivers the next batch, or one without entries at the end. It is durable then. A last batch
  // that is not whole was never acknowledged and is left out; one that others follow is DataLoss
  // with file and offset.
  void ReadNext(Done done);

 private:
  // Reads as much into the buffer as may belong to a batch at the position.
  void Load(uint64_t position, LogRing::Done then);
  bool HasWindow(uint64_t position, uint64_t bytes) const;
  // Whether a batch of this log begins there. REQUIRES HasWindow of its block.
  bool HeadAt(uint64_t position, LogBatchHead* head) const;
  void ReadBatch(Done done);
  // Continues at the next lap: a batch that does not fit before the end of a lap is there.
  void ReadLapStart(Done done);
  // Delivers the end, after a check that nothing follows a torn batch.
  void EndReading(Done done);
  // DataLoss if in [begin, end), which is part of one lap, a batch of this log begins that follows
  // another one than the last that was read.
  void CheckNone(uint64_t begin, uint64_t end, LogRing::Done then);

  const LogRing* const ring_;
  LogId id_;
  bool settled_ = false;       // whether all that is readable is durable
  uint64_t window_ = 0;        // position of the buffer's first byte
  uint64_t window_bytes_ = 0;  // that the buffer holds
  uint64_t first_ = 0;         // where reading began
  uint64_t at_ = 0;            // where the next batch may begin
  uint64_t after_ = 0;         // where the last batch ended
};

}  // namespace eps

#endif  // EPS_STORAGE_LOG_LOG_READER_H_
