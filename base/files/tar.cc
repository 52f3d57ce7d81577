#include "base/files/tar.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/exit_code.h"
#include "base/status_macros.h"

namespace eps {
namespace {

constexpr uint64_t kBlock = 512;
constexpr uint64_t kPiece = uint64_t{1} << 20;
constexpr uint64_t kRecord = 20 * kBlock;  // to a multiple of which other writers fill
constexpr uint64_t kLargestPlain = (uint64_t{1} << 33) - 1;  // eleven octal digits
constexpr uint64_t kLargest = uint64_t{1} << 62;
constexpr uint64_t kMaxExtended = 4096;  // of an extended header; ours take 30 bytes
constexpr char kExtendedName[] = "PaxHeader";
constexpr char kFile = '0';
constexpr char kOldFile = '\0';
constexpr char kExtended = 'x';

// A field of a header: place and width.
struct Field {
  size_t at;
  size_t width;
};
constexpr Field kName = {0, 100};
constexpr Field kMode = {100, 8};
constexpr Field kUser = {108, 8};
constexpr Field kGroup = {116, 8};
constexpr Field kSize = {124, 12};
constexpr Field kTime = {136, 12};
constexpr Field kSum = {148, 8};
constexpr size_t kTypeAt = 156;
constexpr Field kMagic = {257, 8};
constexpr Field kDeviceMajor = {329, 8};
constexpr Field kDeviceMinor = {337, 8};
constexpr Field kPrefix = {345, 155};
constexpr char kMagicText[9] = "ustar\00000";  // followed by the version

void PutNumber(const Field& field, uint64_t value, std::string* block) {
  const std::string digits = absl::StrFormat("%0*o", static_cast<int>(field.width) - 1, value);
  EPS_CHECK(digits.size() < field.width);
  block->replace(field.at, digits.size(), digits);
}

uint64_t SumOf(const std::string& block) {
  uint64_t sum = 0;
  for (size_t i = 0; i < kBlock; ++i) {
    const bool own = i >= kSum.at && i < kSum.at + kSum.width;  // counts as spaces
    sum += own ? ' ' : static_cast<uint8_t>(block[i]);
  }
  return sum;
}

std::string HeaderBlock(const std::string& name, uint64_t size, uint64_t mtime, char type) {
  EPS_CHECK_MSG(!name.empty() && name.size() <= kName.width, name);
  std::string block(kBlock, '\0');
  block.replace(kName.at, name.size(), name);
  PutNumber(kMode, 0644, &block);
  PutNumber(kUser, 0, &block);
  PutNumber(kGroup, 0, &block);
  PutNumber(kSize, size, &block);
  PutNumber(kTime, mtime, &block);
  block[kTypeAt] = type;
  block.replace(kMagic.at, kMagic.width, kMagicText, kMagic.width);
  PutNumber(kDeviceMajor, 0, &block);
  PutNumber(kDeviceMinor, 0, &block);
  block.replace(kSum.at, kSum.width, absl::StrFormat("%06o", SumOf(block)) + std::string("\0 ", 2));
  return block;
}

// "<length> size=<size>\n", where the length counts itself.
std::string SizeRecord(uint64_t size) {
  const std::string rest = absl::StrCat(" size=", size, "\n");
  size_t length = rest.size() + 1;
  while (absl::StrCat(length).size() + rest.size() > length) ++length;
  return absl::StrCat(length, rest);
}

absl::string_view TextOf(const std::string& block, const Field& field) {
  const absl::string_view text = absl::string_view(block).substr(field.at, field.width);
  return text.substr(0, text.find('\0'));
}

// Digits, with spaces or zeros around them as other writers leave them. False: something else.
bool GetNumber(const std::string& block, const Field& field, uint64_t* value) {
  absl::string_view text = TextOf(block, field);
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  *value = 0;
  for (const char c : text) {
    if (c < '0' || c > '7') return false;
    *value = *value << 3 | static_cast<uint64_t>(c - '0');
  }
  return !text.empty();
}

bool LeavesItsFolder(const std::string& name) {
  const std::vector<std::string> parts = absl::StrSplit(name, '/');
  return absl::StartsWith(name, "/") || std::count(parts.begin(), parts.end(), "..") != 0;
}

}  // namespace

std::string TarHeader(const std::string& name, uint64_t size, uint64_t mtime) {
  if (size <= kLargestPlain) return HeaderBlock(name, size, mtime, kFile);
  const std::string record = SizeRecord(size);
  return absl::StrCat(HeaderBlock(kExtendedName, record.size(), mtime, kExtended), record,
                      TarPadding(record.size()), HeaderBlock(name, 0, mtime, kFile));
}

std::string TarPadding(uint64_t size) {
  return std::string((kBlock - size % kBlock) % kBlock, '\0');
}

std::string TarEnd() { return std::string(2 * kBlock, '\0'); }

absl::Status TarReader::Damaged(absl::string_view what) const {
  return absl::DataLossError(absl::StrCat(source_, ": at offset ", offset_, ": ", what));
}

absl::StatusOr<uint64_t> TarReader::TakeSome(uint64_t most) {
  buffer_.resize(most);
  uint64_t done = 0;
  while (done < most) {
    const ssize_t got = read(fd_, &buffer_[done], most - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return IoError(absl::StrCat("cannot read ", source_, " at offset ", offset_ + done, ": ",
                                  std::strerror(errno)));
    }
    if (got == 0) break;
    done += static_cast<uint64_t>(got);
  }
  buffer_.resize(done);
  offset_ += done;
  return done;
}

absl::Status TarReader::Take(uint64_t bytes, absl::string_view what) {
  EPS_ASSIGN_OR_RETURN(const uint64_t got, TakeSome(bytes));
  if (got == bytes) return absl::OkStatus();
  return Damaged(absl::StrCat("it ends in the middle of ", what, ": it was cut short"));
}

absl::Status TarReader::ExpectZeros(absl::string_view what) const {
  if (buffer_.find_first_not_of('\0') == std::string::npos) return absl::OkStatus();
  return Damaged(absl::StrCat(what, ": zeros expected, other bytes found before it"));
}

absl::Status TarReader::ReadToEnd() {
  EPS_RETURN_IF_ERROR(Take(kBlock, "its end"));
  EPS_RETURN_IF_ERROR(ExpectZeros("its end"));
  for (;;) {
    EPS_ASSIGN_OR_RETURN(const uint64_t got, TakeSome(kRecord));
    if (got == 0) return absl::OkStatus();
    EPS_RETURN_IF_ERROR(ExpectZeros("behind its end"));
  }
}

absl::StatusOr<uint64_t> TarReader::ReadSize(uint64_t bytes) {
  if (bytes > kMaxExtended) {
    return Damaged(absl::StrCat("an extended header of ", bytes, " bytes; at most ", kMaxExtended,
                                " are expected"));
  }
  EPS_RETURN_IF_ERROR(Take(bytes, "an extended header"));
  const std::string record = buffer_;
  EPS_RETURN_IF_ERROR(Take(TarPadding(bytes).size(), "an extended header"));
  EPS_RETURN_IF_ERROR(ExpectZeros("an extended header"));
  const size_t equals = record.find(" size=");
  uint64_t size = 0;
  if (equals == std::string::npos || !absl::EndsWith(record, "\n") ||
      !absl::SimpleAtoi(record.substr(equals + 6), &size) || size > kLargest ||
      record != SizeRecord(size)) {
    return Damaged("an extended header with something else than a size");
  }
  return size;
}

absl::StatusOr<std::optional<TarMember>> TarReader::Next() {
  EPS_CHECK(left_ == 0);
  if (padding_ > 0) {
    EPS_RETURN_IF_ERROR(Take(std::exchange(padding_, 0), absl::StrCat("the end of ", name_)));
    EPS_RETURN_IF_ERROR(ExpectZeros(name_));
  }
  std::optional<uint64_t> extended;
  for (;;) {
    EPS_RETURN_IF_ERROR(Take(kBlock, "a header"));
    if (!extended.has_value() && ExpectZeros("").ok()) {
      EPS_RETURN_IF_ERROR(ReadToEnd());
      return std::optional<TarMember>();
    }
    uint64_t sum = 0;
    TarMember member;
    if (!GetNumber(buffer_, kSum, &sum) || sum != SumOf(buffer_)) {
      return Damaged("the checksum of the header before it does not fit: no tar, or damaged");
    }
    if (absl::string_view(buffer_).substr(kMagic.at, kMagic.width) !=
        absl::string_view(kMagicText, kMagic.width)) {
      return Damaged("the header before it is not of the pax or ustar format");
    }
    if (!GetNumber(buffer_, kSize, &member.size)) return Damaged("no size in the header before it");
    const absl::string_view prefix = TextOf(buffer_, kPrefix);
    member.name = absl::StrCat(prefix, prefix.empty() ? "" : "/", TextOf(buffer_, kName));
    const char type = buffer_[kTypeAt];
    if (type == kExtended && !extended.has_value()) {
      EPS_ASSIGN_OR_RETURN(extended, ReadSize(member.size));
      continue;
    }
    if (type != kFile && type != kOldFile) {
      return Damaged(absl::StrCat("\"", member.name, "\" is no plain file but of type ",
                                  static_cast<int>(type)));
    }
    if (member.name.empty() || LeavesItsFolder(member.name)) {
      return Damaged(absl::StrCat("\"", member.name, "\": a name that leaves its folder"));
    }
    if (extended.has_value()) member.size = *extended;
    left_ = member.size;
    padding_ = TarPadding(member.size).size();
    name_ = member.name;
    return std::optional<TarMember>(std::move(member));
  }
}

absl::StatusOr<absl::string_view> TarReader::Read() {
  const uint64_t size = std::min(left_, kPiece);
  EPS_RETURN_IF_ERROR(Take(size, name_));
  left_ -= size;
  return absl::string_view(buffer_);
}

}  // namespace eps
