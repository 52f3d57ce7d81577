#include "eps_server/jobs/board_store.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "eps_server/jobs/job_rules.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "storage/records/sealed_record.h"

namespace eps {
namespace {

constexpr char kPrefix[] = "board/";
constexpr char kHeadKey[] = "board/head";
constexpr char kJobPrefix[] = "board/job/";

std::string EncodeHead(const BoardHead& head) {
  RecordWriter writer;
  writer.U64(head.board);
  writer.U64(head.revision);
  writer.U32(static_cast<uint32_t>(head.removed.size()));
  for (const uint64_t id : head.removed) writer.U64(id);
  return std::move(writer).Take();
}

absl::StatusOr<BoardHead> DecodeHead(absl::string_view record) {
  EPS_ASSIGN_OR_RETURN(const absl::string_view fields, UnsealRecord(kHeadKey, record));
  RecordReader reader(fields);
  BoardHead head;
  head.board = reader.U64();
  head.revision = reader.U64();
  const uint32_t removed = reader.U32();
  for (uint32_t i = 0; i < removed && i < JobBoard::kMaxRemoved; ++i) {
    head.removed.push_back(reader.U64());
  }
  if (!reader.complete()) return DamagedRecord(kHeadKey, "its fields and its size disagree");
  if (head.board == 0) return DamagedRecord(kHeadKey, "its board is 0");
  return head;
}

// Returns the message with the entries of maps in order: equal jobs have equal bytes.
std::string Serialized(const v1::Job& job) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    job.SerializeToCodedStream(&coded);
  }
  return bytes;
}

std::string EncodeJob(const BoardRecord& record) {
  const std::string job = Serialized(record.job);
  RecordWriter writer;
  writer.U64(record.submitted);
  writer.U64(record.checkpoint_generation);
  writer.U32(record.lease_expired ? 1 : 0);
  writer.U32(static_cast<uint32_t>(record.last_driver.size()));
  writer.Text(record.last_driver);
  writer.U32(static_cast<uint32_t>(job.size()));
  writer.Text(job);
  return std::move(writer).Take();
}

absl::StatusOr<BoardRecord> DecodeJob(absl::string_view key, absl::string_view sealed) {
  EPS_ASSIGN_OR_RETURN(const absl::string_view fields, UnsealRecord(key, sealed));
  RecordReader reader(fields);
  BoardRecord record;
  record.submitted = reader.U64();
  record.checkpoint_generation = reader.U64();
  record.lease_expired = reader.U32() != 0;
  record.last_driver = std::string(reader.Text(reader.U32()));
  const absl::string_view job = reader.Text(reader.U32());
  if (!reader.complete()) return DamagedRecord(key, "its fields and its size disagree");
  if (!record.job.ParseFromArray(job.data(), static_cast<int>(job.size()))) {
    return DamagedRecord(key, "its job is no message of v1.Job");
  }
  if (absl::StrCat(kJobPrefix, record.job.name()) != key) {
    return DamagedRecord(key, absl::StrCat("its job is ", record.job.name()));
  }
  return record;
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobBoard>> BoardStore::Read(uint64_t new_board,
                                                           int64_t now_ms) const {
  if (store_or_null_ == nullptr) return std::make_unique<JobBoard>(new_board);
  EPS_ASSIGN_OR_RETURN(const auto stored, store_or_null_->Scan(kPrefix));
  if (stored.empty()) return std::make_unique<JobBoard>(new_board);
  BoardHead head;
  std::vector<BoardRecord> records;
  for (const auto& record : stored) {
    const absl::string_view key = record.first;
    if (key == kHeadKey) {
      EPS_ASSIGN_OR_RETURN(head, DecodeHead(record.second));
    } else if (key.substr(0, sizeof(kJobPrefix) - 1) == kJobPrefix) {
      EPS_ASSIGN_OR_RETURN(BoardRecord job, DecodeJob(key, record.second));
      records.push_back(std::move(job));
    } else {
      return DamagedRecord(key, "not a key of the board");
    }
  }
  if (head.board == 0) return DamagedRecord(kHeadKey, "it is missing");
  for (const BoardRecord& record : records) {
    if (record.job.revision() <= head.revision) continue;
    return DamagedRecord(kHeadKey,
                         absl::StrCat("revision ", head.revision, ", and job ", record.job.name(),
                                      " has revision ", record.job.revision()));
  }
  return std::make_unique<JobBoard>(head, std::move(records), now_ms);
}

absl::Status BoardStore::Write(const BoardPlan& plan) {
  if (store_or_null_ == nullptr || !plan.durable) return absl::OkStatus();
  std::vector<KeyValueStore::Change> changes;
  changes.push_back({kHeadKey, SealRecord(kHeadKey, EncodeHead(plan.head))});
  KeyValueStore::Change job;
  job.key = absl::StrCat(kJobPrefix, plan.record.job.name());
  if (!plan.removes) job.value = SealRecord(job.key, EncodeJob(plan.record));
  changes.push_back(std::move(job));
  return store_or_null_->Write(changes);
}

}  // namespace eps
