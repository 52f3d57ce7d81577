#ifndef EPS_STORAGE_TESTING_CATALOGUE_SAMPLES_H_
#define EPS_STORAGE_TESTING_CATALOGUE_SAMPLES_H_

// Jobs, cuts and logs for tests of the catalogue.

#include <map>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/checksum.h"
#include "storage/cuts/catalogue.h"

namespace eps {

// Returns a job whose id fits its text. Different names give different jobs.
inline CatalogueJob SampleJob(const std::string& name) {
  CatalogueJob job;
  job.spec_text = absl::StrCat("eps_job_spec = 1\nname = ", name, "\n");
  const Sha256Digest digest = Sha256Of(job.spec_text);
  uint64_t id = 0;
  for (int i = 0; i < 8; ++i) id = id << 8 | digest[i];
  job.id = JobId(id);
  job.shard = 1;
  job.shards = 3;
  job.promised = Term(1);
  job.extents_nonce = 0x0123456789abcdef;
  return job;
}

// Returns a cut in which no field is zero; no two cuts are equal.
inline CatalogueCut SampleCut(uint64_t step, uint64_t term) {
  CatalogueCut cut;
  cut.border.id = {Step(step), Term(term)};
  cut.border.version = Version(step + 100);
  cut.border.update = step + 50;
  cut.border.lagged_norm = 0.1 * static_cast<double>(step + 1);
  cut.border.opened = true;
  if (step % 2 == 1) cut.border.loss_scale = LossScale{static_cast<int32_t>(step) - 9, 7, 2};
  for (uint64_t i = 0; i < 19; ++i) cut.slot.push_back((step * 7 + i) % 3 == 0);
  cut.extents_crc32c = static_cast<uint32_t>(0xdead0000 + step);
  cut.residuals_slot = 1;
  cut.residuals_bytes = 4096 + step;
  cut.residuals_crc32c = static_cast<uint32_t>(0xbeef0000 + term);
  return cut;
}

// Returns a log of that term after the cut of that step. No two fields are equal.
inline CatalogueLog SampleLog(uint64_t term, uint64_t step) {
  CatalogueLog log;
  log.log.id = {Term(term), 0xfedcba9876543210 + term};
  log.log.opened = {Step(step + 200), Term(term + 300)};
  log.log.base = {Step(step), Term(term + 400)};
  log.position = 0x100000000 + 4096 * step;
  return log;
}

inline auto Fields(const CatalogueJob& job) {
  return std::tie(job.id, job.spec_text, job.shard, job.shards, job.promised, job.extents_nonce,
                  job.placement.drives, job.placement.drive);
}
inline bool operator==(const CatalogueJob& a, const CatalogueJob& b) {
  return Fields(a) == Fields(b);
}
inline std::ostream& operator<<(std::ostream& os, const CatalogueJob& job) {
  return os << "job " << job.id << " promised " << job.promised << " shard " << job.shard;
}

inline auto Fields(const CatalogueCut& cut) {
  return std::tie(cut.border.id, cut.border.version, cut.border.update, cut.border.lagged_norm,
                  cut.border.loss_scale, cut.border.opened, cut.slot, cut.extents_crc32c,
                  cut.residuals_slot, cut.residuals_bytes, cut.residuals_crc32c);
}
inline bool operator==(const CatalogueCut& a, const CatalogueCut& b) {
  return Fields(a) == Fields(b);
}
inline std::ostream& operator<<(std::ostream& os, const CatalogueCut& cut) {
  return os << "cut " << cut.border.id.step << " of term " << cut.border.id.term;
}

inline auto Fields(const CatalogueLog& log) {
  return std::tie(log.log.id.term, log.log.id.incarnation, log.log.opened, log.log.base,
                  log.position);
}
inline bool operator==(const CatalogueLog& a, const CatalogueLog& b) {
  return Fields(a) == Fields(b);
}
inline std::ostream& operator<<(std::ostream& os, const CatalogueLog& log) {
  return os << "log of term " << log.log.id.term << " from " << log.position;
}

// A KeyValueStore in memory that survives nothing. Thread-compatible.
class MapStore final : public KeyValueStore {
 public:
  absl::Status Write(const std::vector<Change>& changes) override {
    if (!fail.ok()) return fail;
    ++writes;
    for (const Change& change : changes) {
      if (change.value) {
        records[change.key] = *change.value;
      } else {
        records.erase(change.key);
      }
    }
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<std::pair<std::string, std::string>>> Scan(
      absl::string_view prefix) const override {
    if (!fail.ok()) return fail;
    std::vector<std::pair<std::string, std::string>> found;
    for (const auto& record : records) {
      if (absl::StartsWith(record.first, prefix)) found.push_back(record);
    }
    return found;
  }

  std::map<std::string, std::string> records;
  absl::Status fail;  // the status of every call, unless OK
  int writes = 0;
};

}  // namespace eps

#endif  // EPS_STORAGE_TESTING_CATALOGUE_SAMPLES_H_
