#include "cli/driver/tensorboard.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/checksum.h"
#include "base/exit_code.h"
#include "base/status_macros.h"
#include "cli/driver/progress.h"

namespace eps {
namespace {

namespace fs = std::filesystem;

constexpr char kPrefix[] = "events.out.tfevents.";
constexpr size_t kSecondsDigits = 10;

// ---- protobuf's wire format: tag = field number << 3 | wire type

void AddVarint(uint64_t value, std::string* out) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

// Appends the lowest `bytes` bytes of `bits`, least significant first.
void AddLittleEndian(uint64_t bits, int bytes, std::string* out) {
  for (int i = 0; i < bytes; ++i) out->push_back(static_cast<char>(bits >> (8 * i)));
}

void AddInteger(int field, uint64_t value, std::string* out) {
  AddVarint(static_cast<uint64_t>(field) << 3 | 0, out);
  AddVarint(value, out);
}

void AddDouble(int field, double value, std::string* out) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  AddVarint(static_cast<uint64_t>(field) << 3 | 1, out);
  AddLittleEndian(bits, 8, out);
}

void AddFloat(int field, float value, std::string* out) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  AddVarint(static_cast<uint64_t>(field) << 3 | 5, out);
  AddLittleEndian(bits, 4, out);
}

// Encodes a string or an encoded message.
void AddBytes(int field, const std::string& value, std::string* out) {
  AddVarint(static_cast<uint64_t>(field) << 3 | 2, out);
  AddVarint(value.size(), out);
  out->append(value);
}

// ---- the messages: tensorflow's event.proto and summary.proto

std::string EventHead(uint64_t step) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  std::string event;
  AddDouble(/*wall_time=*/1, now.count(), &event);
  if (step > 0) AddInteger(/*step=*/2, step, &event);
  return event;
}

std::string VersionEvent() {
  std::string event = EventHead(0);
  AddBytes(/*file_version=*/3, "brain.Event:2", &event);
  return event;
}

std::string SessionStartEvent(uint64_t step) {
  std::string session;
  AddInteger(/*status=*/1, /*START=*/1, &session);
  std::string event = EventHead(step);
  AddBytes(/*session_log=*/7, session, &event);
  return event;
}

std::string ScalarsEvent(uint64_t step,
                         const std::vector<std::pair<const char*, double>>& scalars) {
  std::string summary;
  for (const auto& [tag, number] : scalars) {
    std::string value;
    AddBytes(/*tag=*/1, tag, &value);
    AddFloat(/*simple_value=*/2, static_cast<float>(number), &value);
    AddBytes(/*value=*/1, value, &summary);
  }
  std::string event = EventHead(step);
  AddBytes(/*summary=*/5, summary, &event);
  return event;
}

// ---- TFRecord

uint32_t MaskedCrc(const std::string& bytes) {
  const uint32_t crc = Crc32c(bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

std::string Framed(const std::string& bytes) {
  std::string record;
  AddLittleEndian(bytes.size(), 8, &record);
  AddLittleEndian(MaskedCrc(record), 4, &record);
  record.append(bytes);
  AddLittleEndian(MaskedCrc(bytes), 4, &record);
  return record;
}

// Returns the time for a new file's name: seconds since 1970, but at least one more than the latest
// in the folder. Readers sort files by name, and two runs may start within the same second.
absl::StatusOr<uint64_t> NameSeconds(const std::string& folder) {
  uint64_t seconds = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(
                                               std::chrono::system_clock::now().time_since_epoch())
                                               .count());
  std::error_code error;
  fs::directory_iterator it(folder, error);
  for (const fs::directory_iterator end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    uint64_t taken = 0;
    if (absl::StartsWith(name, kPrefix) &&
        absl::SimpleAtoi(name.substr(sizeof(kPrefix) - 1, kSecondsDigits), &taken) &&
        taken >= seconds) {
      seconds = taken + 1;
    }
  }
  if (error) return IoError(absl::StrCat("cannot list ", folder, ": ", error.message()));
  return seconds;
}

std::string HostName() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') return "localhost";
  return name;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TensorBoardLog>> TensorBoardLog::Open(const std::string& folder,
                                                                     uint64_t base_step) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    const std::string text =
        absl::StrCat("cannot create ", folder, " (metrics.tensorboard): ", error.message());
    return error == std::errc::permission_denied ? absl::PermissionDeniedError(text)
                                                 : IoError(text);
  }
  EPS_ASSIGN_OR_RETURN(const uint64_t seconds, NameSeconds(folder));
  std::unique_ptr<TensorBoardLog> log(new TensorBoardLog());
  log->path_ = absl::StrFormat("%s/%s%010d.%s.%d", folder, kPrefix, seconds, HostName(), getpid());
  log->file_ = std::fopen(log->path_.c_str(), "wxe");
  if (log->file_ == nullptr) {
    return IoError(
        absl::StrCat("cannot open ", log->path_, " (metrics.tensorboard): ", strerror(errno)));
  }
  EPS_RETURN_IF_ERROR(log->WriteRecord(VersionEvent()));
  EPS_RETURN_IF_ERROR(log->WriteRecord(SessionStartEvent(base_step + 1)));
  return log;
}

TensorBoardLog::~TensorBoardLog() {
  if (file_ != nullptr) std::fclose(file_);
}

absl::Status TensorBoardLog::Add(const v1::StepRecord& record) {
  if (record.has_evaluation()) {
    return WriteRecord(ScalarsEvent(record.step(), {{"eval/loss", record.evaluation().loss()}}));
  }
  return WriteRecord(
      ScalarsEvent(record.step(), {{"train/loss", record.loss()},
                                   {"train/grad_norm", record.grad_norm()},
                                   {"train/learning_rate", record.lr()},
                                   {"train/tokens_per_second", TokensPerSecond(record)}}));
}

absl::Status TensorBoardLog::WriteRecord(const std::string& bytes) {
  const std::string record = Framed(bytes);
  if (std::fwrite(record.data(), 1, record.size(), file_) == record.size() &&
      std::fflush(file_) == 0) {
    return absl::OkStatus();
  }
  return IoError(absl::StrCat("cannot write ", path_, " (metrics.tensorboard): ", strerror(errno)));
}

}  // namespace eps
