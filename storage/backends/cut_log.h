#ifndef EPS_STORAGE_BACKENDS_CUT_LOG_H_
#define EPS_STORAGE_BACKENDS_CUT_LOG_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/executor.h"
#include "base/memory_account.h"
#include "storage/backends/durable_backend.h"
#include "storage/backends/in_flight.h"
#include "storage/cuts/catalogue.h"
#include "storage/log/contribution_log.h"

namespace eps::durable {

// The contribution log of a job and its record in the catalogue, which every cut advances. Without
// a log it records cuts alone. Call the functions marked "Journal", which use the catalogue, from
// one task at a time. The others are thread-safe.
class CutLog {
 public:
  // Opens the job's log if `options` asks for one. Call once, before anything else. Blocks. All
  // pointers must outlive this object.
  absl::Status Open(const DurableOptions& options, Disk* blocking_disk,
                    const ExtentIdentity& identity, Executor* executor, MemoryAccount* account,
                    InFlight* in_flight);

  // Returns the number of steps between two cuts that the log has room for; 0 without a log.
  uint64_t steps() const { return log_ == nullptr ? 0 : log_->steps(); }

  // Empties the log. Entries wait until Record has recorded the new log.
  void Start(const LogId& id);
  void Append(LogEntry entry, ContributionLog::Done done);
  // Calls `done` once everything appended so far is durable; without a log, on the caller's stack.
  void Flush(ContributionLog::Done done);
  void CancelFlushes(const absl::Status& why);
  void Fail(const absl::Status& status);

  // Journal. Sets *found to the log that can be continued: the log of the process that made the
  // youngest of `cuts`.
  absl::Status Find(const std::vector<CatalogueCut>& cuts, std::optional<FoundLog>* found);
  // Journal. Records the log that Start began, then lets waiting entries be written.
  absl::Status Record(const FoundLog& log);
  // Journal. Records a cut, which commits it, and releases the entries that it covers.
  absl::Status AddCut(const CatalogueCut& cut, const std::vector<std::string>& records);
  // Journal. Reads the next entries. NotFound if the catalogue has no log.
  absl::Status ReadNext(ContributionLog::Page done);
  // Journal. Makes the next cut or read look up the log in the catalogue again.
  void Forget() { logged_.reset(); }

 private:
  Catalogue* catalogue_ = nullptr;
  JobId job_;
  std::unique_ptr<ContributionLog> log_;  // null if none is kept
  std::optional<CatalogueLog> logged_;    // the catalogue's record; nullopt until it is known
};

}  // namespace eps::durable

#endif  // EPS_STORAGE_BACKENDS_CUT_LOG_H_
