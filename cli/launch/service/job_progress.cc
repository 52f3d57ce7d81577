#include "cli/launch/service/job_progress.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/files/files.h"
#include "checkpoint/checkpoint_folders.h"
#include "cli/launch/child_process.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxErrorBytes = 2000;
constexpr uint64_t kMaxLogPiece = 1 << 20;

uint64_t SizeOf(const std::string& path) {
  std::error_code error;
  const uintmax_t size = fs::file_size(path, error);
  return error ? 0 : size;
}

// Returns at most `most` bytes of a file from `offset` on; empty if it cannot be read.
std::string ReadPiece(const std::string& path, uint64_t offset, uint64_t most) {
  const uint64_t size = SizeOf(path);
  if (size <= offset) return "";
  std::ifstream file(path, std::ios::binary);
  std::string piece(std::min(most, size - offset), '\0');
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(&piece[0], static_cast<std::streamsize>(piece.size()));
  piece.resize(static_cast<size_t>(std::max<std::streamsize>(0, file.gcount())));
  return piece;
}

}  // namespace

JobProgressReader::JobProgressReader(std::string folder, std::string log)
    : folder_(std::move(folder)), log_(std::move(log)), begin_(SizeOf(log_)), read_(begin_) {}

void JobProgressReader::Read() {
  ReadLog();
  ReadMetrics();
  ReadLatest();
}

// The run prints "job: ID at step N" once it has found the job, and "step: N/STEPS ..." lines.
void JobProgressReader::ReadLog() {
  std::string piece = ReadPiece(log_, read_, kMaxLogPiece);
  const size_t whole = piece.rfind('\n');
  if (whole == std::string::npos) return;
  piece.resize(whole + 1);
  read_ += piece.size();
  for (absl::string_view line : absl::StrSplit(piece, '\n')) {
    uint64_t number = 0;
    if (absl::ConsumePrefix(&line, "job: ")) {
      if (absl::SimpleHexAtoi(line.substr(0, line.find(' ')), &number)) job_id_ = number;
    } else if (absl::ConsumePrefix(&line, "step: ")) {
      const std::vector<absl::string_view> parts =
          absl::StrSplit(line.substr(0, line.find(' ')), '/');
      if (parts.size() == 2 && absl::SimpleAtoi(parts[1], &number)) progress_.set_steps(number);
    }
  }
}

void JobProgressReader::ReadMetrics() {
  const std::string lines = LastLines(folder_ + "/metrics.jsonl", 4);
  for (const absl::string_view line : absl::StrSplit(lines, '\n')) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_unsigned()) continue;
    if (!json.contains("loss") || !json["loss"].is_number()) continue;  // an evaluation
    progress_.set_step(json["step"].get<uint64_t>());
    progress_.set_loss(json["loss"].get<double>());
  }
}

void JobProgressReader::ReadLatest() {
  const absl::StatusOr<std::string> latest = ReadTextFile(absl::StrCat(folder_, "/", kLatestFile));
  if (!latest.ok()) return;
  const absl::string_view name = absl::StripAsciiWhitespace(*latest);
  absl::string_view number = name;
  uint64_t step = 0;
  if (!absl::ConsumePrefix(&number, "checkpoint-") || !absl::SimpleAtoi(number, &step)) return;
  progress_.set_checkpoint_step(step);
  progress_.set_checkpoint(absl::StrCat(folder_, "/", name));
}

std::string JobProgressReader::Error() const {
  const uint64_t size = SizeOf(log_);
  const uint64_t from = size > begin_ + kMaxLogPiece ? size - kMaxLogPiece : begin_;
  const std::string text = absl::StrCat("\n", ReadPiece(log_, from, kMaxLogPiece));
  const size_t last = text.rfind("\neps: ");
  if (last == std::string::npos) return "";
  const absl::string_view error =
      absl::StripAsciiWhitespace(absl::string_view(text).substr(last + 6));
  return std::string(error.substr(0, kMaxErrorBytes));
}

}  // namespace eps
