#include "storage/cuts/catalogue.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/checksum.h"
#include "base/status_macros.h"
#include "storage/records/sealed_record.h"

namespace eps {
namespace {

using Change = KeyValueStore::Change;

constexpr absl::string_view kJobs = "job/";
constexpr absl::string_view kServed = "served";
constexpr absl::string_view kDrives = "drives";

std::string JobKey(JobId job) { return absl::StrFormat("job/%016x", job.value()); }
std::string CutsPrefix(JobId job) { return absl::StrFormat("cut/%016x/", job.value()); }
std::string CutKey(JobId job, const CutId& id) {
  return absl::StrFormat("cut/%016x/%016x/%016x", job.value(), id.step.value(), id.term.value());
}
std::string LogKey(JobId job) { return absl::StrFormat("log/%016x", job.value()); }
std::string RecordsPrefix(JobId job) { return absl::StrFormat("record/%016x/", job.value()); }
std::string RecordKey(JobId job, uint64_t number) {
  return absl::StrFormat("record/%016x/%016x", job.value(), number);
}

std::string Describe(const CutId& id) {
  return absl::StrCat("step ", id.step.value(), " of term ", id.term.value());
}

// Parses one number of a key: 16 digits. Returns false if the key has another shape.
bool ReadNumber(absl::string_view* key, absl::string_view before, uint64_t* value) {
  if (key->size() < before.size() + 16 || key->substr(0, before.size()) != before) return false;
  *value = 0;
  for (const char c : key->substr(before.size(), 16)) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit && (c < 'a' || c > 'f')) return false;
    *value = *value << 4 | static_cast<uint64_t>(digit ? c - '0' : c - 'a' + 10);
  }
  key->remove_prefix(before.size() + 16);
  return true;
}

bool ReadId(absl::string_view key, absl::string_view before, JobId* job) {
  uint64_t id = 0;
  if (!ReadNumber(&key, before, &id) || !key.empty()) return false;
  *job = JobId(id);
  return true;
}

JobId IdOf(absl::string_view spec_text) {
  const Sha256Digest digest = Sha256Of(spec_text);
  uint64_t id = 0;
  for (int i = 0; i < 8; ++i) id = id << 8 | digest[i];
  return JobId(id);
}

std::string EncodeJob(const CatalogueJob& job) {
  RecordWriter writer;
  writer.U32(job.shard);
  writer.U32(job.shards);
  writer.U64(job.promised.value());
  writer.U64(job.extents_nonce);
  writer.U64(job.spec_text.size());
  writer.Text(job.spec_text);
  if (job.placement.drives > 0) {
    writer.U32(job.placement.drives);
    writer.U32(static_cast<uint32_t>(job.placement.drive.size()));
    for (const uint32_t drive : job.placement.drive) {
      const char byte = static_cast<char>(drive);
      writer.Text(absl::string_view(&byte, 1));
    }
  }
  return std::move(writer).Take();
}

// Reads what the record of a job on drives has after its other fields. Returns false if it is
// damaged.
bool ReadPlacement(RecordReader* reader, DrivePlacement* placement) {
  placement->drives = reader->U32();
  if (placement->drives == 0 || placement->drives > kMaxDrives) return false;
  for (const char byte : reader->Text(reader->U32())) {
    placement->drive.push_back(static_cast<uint8_t>(byte));
    if (placement->drive.back() >= placement->drives) return false;
  }
  return true;
}

absl::StatusOr<CatalogueJob> DecodeJob(absl::string_view key, absl::string_view record) {
  CatalogueJob job;
  if (!ReadId(key, kJobs, &job.id)) return DamagedRecord(key, "not a key of a job");
  EPS_ASSIGN_OR_RETURN(const absl::string_view fields,
                       UnsealRecord(key, record, kDrivesRecordVersion));
  RecordReader reader(fields);
  job.shard = reader.U32();
  job.shards = reader.U32();
  job.promised = Term(reader.U64());
  job.extents_nonce = reader.U64();
  job.spec_text = std::string(reader.Text(reader.U64()));
  if (!reader.complete() && !ReadPlacement(&reader, &job.placement)) {
    return DamagedRecord(key, "its drives are no drives");
  }
  if (!reader.complete()) return DamagedRecord(key, "its fields and its size disagree");
  if (job.shard >= job.shards) {
    return DamagedRecord(key, absl::StrCat("shard ", job.shard, " of ", job.shards));
  }
  if (const JobId id = IdOf(job.spec_text); id != job.id) {
    return DamagedRecord(key, absl::StrFormat("its spec is that of job %016x", id.value()));
  }
  return job;
}

Change PutJob(const CatalogueJob& job) {
  std::string key = JobKey(job.id);
  std::string record = SealRecord(
      key, EncodeJob(job), job.placement.drives > 0 ? kDrivesRecordVersion : kFirstRecordVersion);
  return {std::move(key), std::move(record)};
}

void WriteList(const std::vector<std::string>& texts, RecordWriter* writer) {
  writer->U32(static_cast<uint32_t>(texts.size()));
  for (const std::string& text : texts) {
    writer->U32(static_cast<uint32_t>(text.size()));
    writer->Text(text);
  }
}

std::vector<std::string> ReadList(absl::string_view fields, RecordReader* reader) {
  // Each entry takes at least four bytes, which bounds the count whatever the record claims.
  const uint64_t count = std::min<uint64_t>(reader->U32(), fields.size() / 4);
  std::vector<std::string> texts;
  for (uint64_t i = 0; i < count; ++i) texts.emplace_back(reader->Text(reader->U32()));
  return texts;
}

std::string EncodeServed(const ServedJob& served) {
  RecordWriter writer;
  writer.U64(served.id.value());
  WriteList(served.servers, &writer);
  writer.U64(served.driver.board);
  writer.U64(served.driver.generation);
  if (!(served.scope == JobScope())) {
    writer.U32(static_cast<uint32_t>(served.scope.name.size()));
    writer.Text(served.scope.name);
    writer.U64(served.scope.uid);
  }
  return std::move(writer).Take();
}

absl::StatusOr<ServedJob> DecodeServed(absl::string_view record) {
  EPS_ASSIGN_OR_RETURN(const absl::string_view fields, UnsealRecord(kServed, record));
  RecordReader reader(fields);
  ServedJob served;
  served.id = JobId(reader.U64());
  served.servers = ReadList(fields, &reader);
  // Records of earlier builds end here, or after the driver.
  if (!reader.complete()) {
    served.driver.board = reader.U64();
    served.driver.generation = reader.U64();
  }
  if (!reader.complete()) {
    served.scope.name = std::string(reader.Text(reader.U32()));
    served.scope.uid = reader.U64();
  }
  if (!reader.complete()) return DamagedRecord(kServed, "its fields and its size disagree");
  return served;
}

std::string EncodeCut(const CatalogueCut& cut) {
  RecordWriter writer;
  writer.U64(cut.border.version.value());
  writer.U64(cut.border.update);
  writer.F64(cut.border.lagged_norm);
  writer.U32(cut.border.opened ? 1 : 0);
  writer.U64(cut.records);
  writer.U32(cut.extents_crc32c);
  writer.U32(cut.residuals_slot);
  writer.U64(cut.residuals_bytes);
  writer.U32(cut.residuals_crc32c);
  writer.U32(static_cast<uint32_t>(cut.slot.size()));
  std::string bits((cut.slot.size() + 7) / 8, '\0');
  for (size_t i = 0; i < cut.slot.size(); ++i) {
    if (cut.slot[i]) bits[i / 8] = static_cast<char>(bits[i / 8] | 1 << (i % 8));
  }
  writer.Text(bits);
  if (const auto& scale = cut.border.loss_scale) {
    writer.U32(static_cast<uint32_t>(scale->log2));
    writer.U64(uint64_t{scale->hysteresis_left} << 32 | scale->good_steps);
  }
  return std::move(writer).Take();
}

absl::StatusOr<CatalogueCut> DecodeCut(JobId job, absl::string_view key, absl::string_view record) {
  absl::string_view rest = key;
  uint64_t id = 0;
  uint64_t step = 0;
  uint64_t term = 0;
  if (!ReadNumber(&rest, "cut/", &id) || !ReadNumber(&rest, "/", &step) ||
      !ReadNumber(&rest, "/", &term) || !rest.empty() || JobId(id) != job) {
    return DamagedRecord(key, "not a key of a cut");
  }
  EPS_ASSIGN_OR_RETURN(const absl::string_view fields, UnsealRecord(key, record));
  RecordReader reader(fields);
  CatalogueCut cut;
  cut.border.id = {Step(step), Term(term)};
  cut.border.version = Version(reader.U64());
  cut.border.update = reader.U64();
  cut.border.lagged_norm = reader.F64();
  const uint32_t opened = reader.U32();
  cut.border.opened = opened != 0;
  cut.records = reader.U64();
  cut.extents_crc32c = reader.U32();
  cut.residuals_slot = reader.U32();
  cut.residuals_bytes = reader.U64();
  cut.residuals_crc32c = reader.U32();
  const uint32_t chunks = reader.U32();
  const absl::string_view bits = reader.Text((uint64_t{chunks} + 7) / 8);
  if (!reader.complete()) {
    cut.border.loss_scale = {{static_cast<int32_t>(reader.U32()), reader.U32(), reader.U32()}};
  }
  if (!reader.complete()) return DamagedRecord(key, "its fields and its size disagree");
  if (opened > 1)
    return DamagedRecord(key, absl::StrCat("\"opened\" is neither 0 nor 1: ", opened));
  if (chunks % 8 != 0 && static_cast<uint8_t>(bits.back()) >> (chunks % 8) != 0) {
    return DamagedRecord(key, "it has slots beyond its number of chunks");
  }
  cut.slot.resize(chunks);
  for (uint32_t i = 0; i < chunks; ++i) cut.slot[i] = (bits[i / 8] >> (i % 8) & 1) != 0;
  return cut;
}

std::string EncodeLog(const CatalogueLog& log) {
  RecordWriter writer;
  writer.U64(log.log.id.term.value());
  writer.U64(log.log.id.incarnation);
  for (const CutId& cut : {log.log.opened, log.log.base}) {
    writer.U64(cut.step.value());
    writer.U64(cut.term.value());
  }
  writer.U64(log.position);
  return std::move(writer).Take();
}

absl::StatusOr<CatalogueLog> DecodeLog(absl::string_view key, absl::string_view record) {
  EPS_ASSIGN_OR_RETURN(const absl::string_view fields, UnsealRecord(key, record));
  RecordReader reader(fields);
  CatalogueLog log;
  log.log.id.term = Term(reader.U64());
  log.log.id.incarnation = reader.U64();
  for (CutId* const cut : {&log.log.opened, &log.log.base}) {
    cut->step = Step(reader.U64());
    cut->term = Term(reader.U64());
  }
  log.position = reader.U64();
  if (!reader.complete()) return DamagedRecord(key, "its fields and its size disagree");
  return log;
}

Change PutLog(JobId job, const CatalogueLog& log) {
  std::string key = LogKey(job);
  std::string sealed = SealRecord(key, EncodeLog(log));
  return {std::move(key), std::move(sealed)};
}

absl::Status CheckPromise(const CatalogueJob& job, Term term) {
  if (job.promised <= term) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("job %016x: term %d is promised, so term %d may not be served",
                      job.id.value(), job.promised.value(), term.value()));
}

}  // namespace

absl::StatusOr<std::vector<CatalogueJob>> Catalogue::Jobs() const {
  EPS_ASSIGN_OR_RETURN(const auto records, store_->Scan(kJobs));
  std::vector<CatalogueJob> jobs;
  for (const auto& record : records) {
    EPS_ASSIGN_OR_RETURN(CatalogueJob job, DecodeJob(record.first, record.second));
    jobs.push_back(std::move(job));
  }
  return jobs;
}

absl::StatusOr<CatalogueJob> Catalogue::FindJob(JobId job) const {
  EPS_ASSIGN_OR_RETURN(const auto records, store_->Scan(JobKey(job)));
  if (records.empty()) {
    return absl::NotFoundError(absl::StrFormat("job %016x is not in the catalogue", job.value()));
  }
  return DecodeJob(records[0].first, records[0].second);
}

absl::Status Catalogue::AddJob(const CatalogueJob& job) {
  if (const JobId id = IdOf(job.spec_text); id != job.id) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "a spec of job %016x is given as that of job %016x", id.value(), job.id.value()));
  }
  if (job.shard >= job.shards) {
    return absl::InvalidArgumentError(
        absl::StrFormat("job %016x: shard %d of %d", job.id.value(), job.shard, job.shards));
  }
  EPS_ASSIGN_OR_RETURN(const auto found, store_->Scan(JobKey(job.id)));
  if (!found.empty()) {
    return absl::AlreadyExistsError(
        absl::StrFormat("job %016x is in the catalogue already", job.id.value()));
  }
  return store_->Write({PutJob(job)});
}

absl::Status Catalogue::RemoveJob(JobId job) {
  // Do not call FindJob here: a damaged record must remain removable.
  EPS_ASSIGN_OR_RETURN(const auto found, store_->Scan(JobKey(job)));
  EPS_ASSIGN_OR_RETURN(const auto cuts, store_->Scan(CutsPrefix(job)));
  if (found.empty()) return FindJob(job).status();
  std::vector<Change> changes = {{JobKey(job), std::nullopt}};
  for (const auto& cut : cuts) changes.push_back({cut.first, std::nullopt});
  EPS_ASSIGN_OR_RETURN(const auto log, store_->Scan(LogKey(job)));
  if (!log.empty()) changes.push_back({log[0].first, std::nullopt});
  EPS_ASSIGN_OR_RETURN(const auto records, store_->Scan(RecordsPrefix(job)));
  for (const auto& record : records) changes.push_back({record.first, std::nullopt});
  EPS_ASSIGN_OR_RETURN(const std::optional<ServedJob> served, Served());
  if (served.has_value() && served->id == job) {
    changes.push_back({std::string(kServed), std::nullopt});
  }
  return store_->Write(changes);
}

absl::Status Catalogue::SetDrives(const std::vector<std::string>& drives) {
  RecordWriter writer;
  WriteList(drives, &writer);
  return store_->Write({{std::string(kDrives),
                         SealRecord(kDrives, std::move(writer).Take(), kDrivesRecordVersion)}});
}

absl::StatusOr<std::vector<std::string>> Catalogue::Drives() const {
  EPS_ASSIGN_OR_RETURN(const auto records, store_->Scan(kDrives));
  if (records.empty()) return std::vector<std::string>();
  EPS_ASSIGN_OR_RETURN(const absl::string_view fields,
                       UnsealRecord(kDrives, records[0].second, kDrivesRecordVersion));
  RecordReader reader(fields);
  std::vector<std::string> drives = ReadList(fields, &reader);
  if (!reader.complete()) return DamagedRecord(kDrives, "its fields and its size disagree");
  return drives;
}

absl::Status Catalogue::SetServed(const ServedJob& served) {
  EPS_RETURN_IF_ERROR(FindJob(served.id).status());
  return store_->Write({{std::string(kServed), SealRecord(kServed, EncodeServed(served))}});
}

absl::StatusOr<std::optional<ServedJob>> Catalogue::Served() const {
  EPS_ASSIGN_OR_RETURN(const auto records, store_->Scan(kServed));
  if (records.empty()) return std::optional<ServedJob>();
  EPS_ASSIGN_OR_RETURN(ServedJob served, DecodeServed(records[0].second));
  return std::optional<ServedJob>(std::move(served));
}

absl::Status Catalogue::Promise(JobId job, Term term) {
  EPS_ASSIGN_OR_RETURN(CatalogueJob found, FindJob(job));
  EPS_RETURN_IF_ERROR(CheckPromise(found, term));
  if (found.promised == term) return absl::OkStatus();
  found.promised = term;
  return store_->Write({PutJob(found)});
}

absl::StatusOr<std::vector<CatalogueCut>> Catalogue::Cuts(JobId job) const {
  EPS_RETURN_IF_ERROR(FindJob(job).status());
  EPS_ASSIGN_OR_RETURN(const auto records, store_->Scan(CutsPrefix(job)));
  std::vector<CatalogueCut> cuts;
  for (const auto& record : records) {
    EPS_ASSIGN_OR_RETURN(CatalogueCut cut, DecodeCut(job, record.first, record.second));
    cuts.push_back(std::move(cut));
  }
  return cuts;
}

absl::Status Catalogue::AddCut(JobId job, const CatalogueCut& cut,
                               const std::vector<std::string>& records,
                               const CatalogueLog* log_or_null) {
  EPS_ASSIGN_OR_RETURN(const std::vector<CatalogueCut> cuts, Cuts(job));
  if (!cuts.empty() && !(cuts.back().border.id < cut.border.id)) {
    return absl::FailedPreconditionError(
        absl::StrFormat("job %016x: the cut of %s is not younger than the cut of %s", job.value(),
                        Describe(cut.border.id), Describe(cuts.back().border.id)));
  }
  CatalogueCut numbered = cut;
  numbered.records = cuts.empty() ? 0 : cuts.back().records;
  std::vector<Change> changes;
  for (const std::string& record : records) {
    std::string key = RecordKey(job, numbered.records++);
    std::string sealed = SealRecord(key, record);
    changes.push_back({std::move(key), std::move(sealed)});
  }
  std::string key = CutKey(job, cut.border.id);
  std::string sealed = SealRecord(key, EncodeCut(numbered));
  changes.push_back({std::move(key), std::move(sealed)});
  if (log_or_null != nullptr) changes.push_back(PutLog(job, *log_or_null));
  return store_->Write(changes);
}

absl::StatusOr<std::vector<std::string>> Catalogue::Records(JobId job,
                                                            const CatalogueCut& cut) const {
  EPS_ASSIGN_OR_RETURN(const auto stored, store_->Scan(RecordsPrefix(job)));
  std::vector<std::string> records;
  for (const auto& record : stored) {
    if (records.size() == cut.records) break;
    const std::string expected = RecordKey(job, records.size());
    if (record.first != expected) return DamagedRecord(expected, "it is missing");
    EPS_ASSIGN_OR_RETURN(const absl::string_view text, UnsealRecord(record.first, record.second));
    records.emplace_back(text);
  }
  if (records.size() < cut.records) {
    return DamagedRecord(RecordKey(job, records.size()), "it is missing");
  }
  return records;
}

absl::Status Catalogue::Restore(JobId job, const CutId& base, Term term) {
  EPS_ASSIGN_OR_RETURN(CatalogueJob found, FindJob(job));
  EPS_RETURN_IF_ERROR(CheckPromise(found, term));
  EPS_ASSIGN_OR_RETURN(const std::vector<CatalogueCut> cuts, Cuts(job));
  found.promised = term;
  std::vector<Change> changes = {PutJob(found)};
  bool base_is_there = false;
  uint64_t kept = 0;
  uint64_t records = 0;
  for (const CatalogueCut& cut : cuts) {
    if (cut.border.id == base) {
      base_is_there = true;
      kept = cut.records;
    }
    records = cut.records;
    if (base < cut.border.id) changes.push_back({CutKey(job, cut.border.id), std::nullopt});
  }
  if (!base_is_there) {
    return absl::NotFoundError(
        absl::StrFormat("job %016x has no cut of %s", job.value(), Describe(base)));
  }
  for (; kept < records; ++kept) changes.push_back({RecordKey(job, kept), std::nullopt});
  return store_->Write(changes);
}

absl::Status Catalogue::Forget(JobId job, Term term) {
  EPS_ASSIGN_OR_RETURN(CatalogueJob found, FindJob(job));
  EPS_RETURN_IF_ERROR(CheckPromise(found, term));
  found.promised = term;
  std::vector<Change> changes = {PutJob(found)};
  for (const std::string& prefix : {CutsPrefix(job), RecordsPrefix(job)}) {
    EPS_ASSIGN_OR_RETURN(const auto stored, store_->Scan(prefix));
    for (const auto& record : stored) changes.push_back({record.first, std::nullopt});
  }
  return store_->Write(changes);
}

absl::Status Catalogue::RemoveCutsBelow(JobId job, const CutId& oldest_kept) {
  EPS_ASSIGN_OR_RETURN(const std::vector<CatalogueCut> cuts, Cuts(job));
  std::vector<Change> changes;
  for (const CatalogueCut& cut : cuts) {
    if (cut.border.id < oldest_kept) {
      changes.push_back({CutKey(job, cut.border.id), std::nullopt});
    }
  }
  return changes.empty() ? absl::OkStatus() : store_->Write(changes);
}

absl::StatusOr<std::optional<CatalogueLog>> Catalogue::Log(JobId job) const {
  EPS_ASSIGN_OR_RETURN(const CatalogueJob found, FindJob(job));
  EPS_ASSIGN_OR_RETURN(const auto records, store_->Scan(LogKey(job)));
  if (records.empty()) return std::optional<CatalogueLog>();
  EPS_ASSIGN_OR_RETURN(CatalogueLog log, DecodeLog(records[0].first, records[0].second));
  if (log.log.id.term != found.promised) return std::optional<CatalogueLog>();
  return std::optional<CatalogueLog>(log);
}

absl::Status Catalogue::SetLog(JobId job, const CatalogueLog& log) {
  EPS_ASSIGN_OR_RETURN(const CatalogueJob found, FindJob(job));
  if (log.log.id.term == found.promised) return store_->Write({PutLog(job, log)});
  return absl::FailedPreconditionError(
      absl::StrFormat("job %016x: a log of term %d, and term %d is promised", job.value(),
                      log.log.id.term.value(), found.promised.value()));
}

}  // namespace eps
