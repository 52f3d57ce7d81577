#ifndef EPS_STORAGE_BACKENDS_CUT_SCAN_H_
#define EPS_STORAGE_BACKENDS_CUT_SCAN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "storage/backends/slot_files.h"
#include "storage/cuts/catalogue.h"
#include "storage/tier.h"

namespace eps::durable {

// Reads and checks every chunk of a cut, as many at a time as there are staging buffers, and
// compares their footers with the cut's record. Stops at the first damage. Thread-safe; keeps
// itself alive until it calls back.
class CutScan : public std::enable_shared_from_this<CutScan> {
 public:
  // Receives the footers by index, if the status is OK.
  using Done = std::function<void(const std::vector<ExtentFooter>&, const absl::Status&)>;
  enum class Purpose {
    kCheck,  // read the footers only
    kAdopt,  // read everything and make it the tier's state
  };

  // `files` and `tier` must outlive the scan. `done` runs on any thread, without locks held.
  static void Start(const SlotFiles* files, Tier* tier, const CatalogueCut& cut, Purpose purpose,
                    Done done);

 private:
  CutScan(const SlotFiles* files, Tier* tier, const CatalogueCut& cut, Purpose purpose, Done done)
      : files_(files), tier_(tier), cut_(cut), purpose_(purpose), done_(std::move(done)) {}

  // Begins the next chunk. Returns false if none is left or an error occurred.
  bool BeginNext() EPS_EXCLUDES(mu_);
  absl::Status CheckFooter(uint32_t index, const absl::StatusOr<ExtentFooter>& footer);
  // Decrements running_; the last call reports the outcome.
  void End(const absl::Status& status) EPS_EXCLUDES(mu_);
  absl::Status CheckFooters() const;

  const SlotFiles* const files_;
  Tier* const tier_;
  const CatalogueCut cut_;
  const Purpose purpose_;
  Done done_;
  std::vector<ExtentFooter> footers_;  // each entry is written by the task of its chunk
  Mutex mu_;
  uint32_t next_ EPS_GUARDED_BY(mu_) = 0;     // the next chunk to begin
  uint32_t running_ EPS_GUARDED_BY(mu_) = 1;  // chunks being read, plus one for Start
  absl::Status status_ EPS_GUARDED_BY(mu_);   // the first error
};

}  // namespace eps::durable

#endif  // EPS_STORAGE_BACKENDS_CUT_SCAN_H_
