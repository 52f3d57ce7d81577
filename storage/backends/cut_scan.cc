#include "storage/backends/cut_scan.h"

#include "absl/strings/str_cat.h"

namespace eps::durable {

void CutScan::Start(const SlotFiles* files, Tier* tier, const CatalogueCut& cut, Purpose purpose,
                    Done done) {
  std::shared_ptr<CutScan> scan(new CutScan(files, tier, cut, purpose, std::move(done)));
  scan->footers_.resize(files->layout().areas().size());
  for (uint64_t i = 0; i < files->staging()->buffers() && scan->BeginNext(); ++i) {
  }
  scan->End(absl::OkStatus());
}

bool CutScan::BeginNext() {
  uint32_t index = 0;
  {
    MutexLock lock(&mu_);
    if (next_ == footers_.size() || !status_.ok()) return false;
    index = next_++;
    ++running_;
  }
  const uint32_t slot = cut_.slot[index] ? 1 : 0;
  const auto checked = [self = shared_from_this(),
                        index](const absl::StatusOr<ExtentFooter>& footer) {
    const absl::Status status = self->CheckFooter(index, footer);
    if (status.ok()) self->BeginNext();
    self->End(status);
  };
  if (purpose_ == Purpose::kAdopt) {
    tier_->Adopt(index, slot, checked);
  } else {
    tier_->Check(slot, index, Extents::Part::kFooter, checked);
  }
  return true;
}

absl::Status CutScan::CheckFooter(uint32_t index, const absl::StatusOr<ExtentFooter>& footer) {
  if (!footer.ok()) return footer.status();
  footers_[index] = *footer;
  const Version expected = ContentVersion(files_->chunk(index), cut_.border.version);
  if (footer->version == expected) return absl::OkStatus();
  return files_->extents()->Damaged(
      cut_.slot[index] ? 1 : 0, index,
      absl::StrCat(NameOf(cut_.border.id), " expected at version ", expected.value(), ", version ",
                   footer->version.value(), " found"));
}

void CutScan::End(const absl::Status& status) {
  absl::Status outcome;
  {
    MutexLock lock(&mu_);
    if (status_.ok()) status_ = status;
    if (--running_ > 0) return;
    outcome = status_;
  }
  if (outcome.ok()) outcome = CheckFooters();
  // Move the callback out: it may own the scan.
  const Done done = std::move(done_);
  done(footers_, outcome);
}

absl::Status CutScan::CheckFooters() const {
  std::vector<uint32_t> crcs;
  for (const ExtentFooter& footer : footers_) crcs.push_back(footer.crc32c);
  const uint32_t crc = CrcOfFooters(crcs);
  if (crc == cut_.extents_crc32c) return absl::OkStatus();
  const Extents& extents = *files_->extents();
  return absl::DataLossError(absl::StrCat(
      extents.residual_file(0)->path(), ", ", extents.residual_file(1)->path(), ": footers of ",
      NameOf(cut_.border.id), ": CRC32C ", absl::Hex(cut_.extents_crc32c, absl::kZeroPad8),
      " expected, ", absl::Hex(crc, absl::kZeroPad8), " found"));
}

}  // namespace eps::durable
