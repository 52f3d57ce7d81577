#include "cli/driver/report/tensorboard.h"

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
#include "base/machine/host_name.h"
#include "base/status_macros.h"
#include "cli/driver/progress.h"
#include "cli/driver/report/tensorboard.pb.h"

namespace eps {
namespace {

namespace fs = std::filesystem;

constexpr char kPrefix[] = "events.out.tfevents.";
constexpr size_t kSecondsDigits = 10;

tensorboard::Event NewEvent(uint64_t step) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  tensorboard::Event event;
  event.set_wall_time(now.count());
  event.set_step(static_cast<int64_t>(step));
  return event;
}

tensorboard::Event VersionEvent() {
  tensorboard::Event event = NewEvent(0);
  event.set_file_version("brain.Event:2");
  return event;
}

tensorboard::Event SessionStartEvent(uint64_t step) {
  tensorboard::Event event = NewEvent(step);
  event.mutable_session_log()->set_status(tensorboard::SessionLog::START);
  return event;
}

tensorboard::Event ScalarsEvent(uint64_t step,
                                const std::vector<std::pair<std::string, double>>& scalars) {
  tensorboard::Event event = NewEvent(step);
  for (const auto& [tag, number] : scalars) {
    tensorboard::Summary::Value* const value = event.mutable_summary()->add_value();
    value->set_tag(tag);
    value->set_simple_value(static_cast<float>(number));
  }
  return event;
}

// ---- TFRecord

// Appends the lowest `bytes` bytes of `bits`, least significant first.
void AddLittleEndian(uint64_t bits, int bytes, std::string* out) {
  for (int i = 0; i < bytes; ++i) out->push_back(static_cast<char>(bits >> (8 * i)));
}

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
  EPS_RETURN_IF_ERROR(log->Write(VersionEvent()));
  EPS_RETURN_IF_ERROR(log->Write(SessionStartEvent(base_step + 1)));
  return log;
}

TensorBoardLog::~TensorBoardLog() {
  if (file_ != nullptr) std::fclose(file_);
}

absl::Status TensorBoardLog::Add(const v1::StepRecord& record, const std::vector<Figure>& figures) {
  if (record.has_evaluation()) {
    std::vector<std::pair<std::string, double>> scalars = {
        {"eval/loss", record.evaluation().loss()}};
    for (const Figure& figure : figures) {
      scalars.emplace_back(absl::StrCat("eval/", NameOf(figure.metric)), figure.value);
    }
    return Write(ScalarsEvent(record.step(), scalars));
  }
  return Write(ScalarsEvent(record.step(), {{"train/loss", record.loss()},
                                            {"train/grad_norm", record.grad_norm()},
                                            {"train/learning_rate", record.lr()},
                                            {"train/tokens_per_second", TokensPerSecond(record)}}));
}

absl::Status TensorBoardLog::Write(const tensorboard::Event& event) {
  const std::string record = Framed(event.SerializeAsString());
  if (std::fwrite(record.data(), 1, record.size(), file_) == record.size() &&
      std::fflush(file_) == 0) {
    return absl::OkStatus();
  }
  return IoError(absl::StrCat("cannot write ", path_, " (metrics.tensorboard): ", strerror(errno)));
}

}  // namespace eps
