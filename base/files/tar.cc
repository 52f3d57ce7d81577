#include "base/files/tar.h"

#include <archive.h>
#include <archive_entry.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/exit_code.h"
#include "base/status_macros.h"

namespace eps {
namespace {

constexpr size_t kPiece = size_t{1} << 20;

bool LeavesItsFolder(const std::string& name) {
  const std::vector<std::string> parts = absl::StrSplit(name, '/');
  return absl::StartsWith(name, "/") || std::count(parts.begin(), parts.end(), "..") != 0;
}

// libarchive's text for the last error.
std::string TextOf(archive* tar) {
  const char* const text = archive_error_string(tar);
  return text == nullptr ? "unknown error" : text;
}

}  // namespace

// ---- Writing.

struct TarWriter::State {
  archive* tar = archive_write_new();
  Sink sink;
  absl::Status sunk;  // the first error of the sink
  bool freed = false;

  ~State() { archive_write_free(tar); }

  // Never fails before the end: libarchive 3.6 leaks memory if a header cannot be written. Checked
  // reports the error of the sink, which gets nothing more after it.
  static la_ssize_t OnBytes(archive*, void* self, const void* bytes, size_t size) {
    auto* const state = static_cast<State*>(self);
    if (state->freed) return -1;  // else zeros fill the rest of a file that has not ended
    if (state->sunk.ok()) {
      state->sunk = state->sink(absl::string_view(static_cast<const char*>(bytes), size));
    }
    return static_cast<la_ssize_t>(size);
  }

  absl::Status Checked(la_ssize_t result) const {
    if (!sunk.ok()) return sunk;
    if (result >= 0) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("cannot write an archive: ", TextOf(tar)));
  }
};

TarWriter::TarWriter(Sink sink) : state_(std::make_unique<State>()) {
  EPS_CHECK(state_->tar != nullptr);
  state_->sink = std::move(sink);
  // "Restricted": extended headers only where ustar has no room, for example for 8 GiB.
  EPS_CHECK(archive_write_set_format_pax_restricted(state_->tar) == ARCHIVE_OK);
  // Content goes to the sink without a copy.
  EPS_CHECK(archive_write_set_bytes_per_block(state_->tar, 0) == ARCHIVE_OK);
  EPS_CHECK(archive_write_open(state_->tar, state_.get(), nullptr, &State::OnBytes, nullptr) ==
            ARCHIVE_OK);
}

TarWriter::~TarWriter() { state_->freed = true; }

absl::Status TarWriter::Add(const std::string& name, uint64_t size, uint64_t mtime) {
  archive_entry* const entry = archive_entry_new();
  EPS_CHECK(entry != nullptr);
  archive_entry_set_pathname(entry, name.c_str());
  archive_entry_set_filetype(entry, AE_IFREG);
  archive_entry_set_perm(entry, 0644);
  archive_entry_set_size(entry, static_cast<la_int64_t>(size));
  archive_entry_set_mtime(entry, static_cast<time_t>(mtime), 0);
  const int result = archive_write_header(state_->tar, entry);
  archive_entry_free(entry);
  return state_->Checked(result);
}

absl::Status TarWriter::Write(absl::string_view content) {
  const la_ssize_t written = archive_write_data(state_->tar, content.data(), content.size());
  EPS_RETURN_IF_ERROR(state_->Checked(written));
  EPS_CHECK(static_cast<size_t>(written) == content.size());
  return absl::OkStatus();
}

absl::Status TarWriter::Finish() { return state_->Checked(archive_write_close(state_->tar)); }

// ---- Reading.

struct TarReader::State {
  archive* tar = archive_read_new();
  int fd = -1;
  std::string source;
  bool opened = false;
  std::vector<char> input = std::vector<char>(kPiece);  // the last bytes from the system
  std::vector<char> piece = std::vector<char>(kPiece);  // what Read returned
  absl::Status taken;                                   // the first error of the system

  ~State() { archive_read_free(tar); }

  static la_ssize_t OnRead(archive* tar, void* self, const void** bytes) {
    auto* const state = static_cast<State*>(self);
    *bytes = state->input.data();
    for (;;) {
      const ssize_t got = read(state->fd, state->input.data(), state->input.size());
      if (got >= 0) return got;
      if (errno == EINTR) continue;
      state->taken = IoError(absl::StrCat("cannot read ", state->source, ": ", strerror(errno)));
      archive_set_error(tar, EIO, "the system cannot read");
      return ARCHIVE_FATAL;
    }
  }

  // Reads to the end, so that the writer of a pipe is not interrupted.
  absl::Status ReadToEnd() {
    const void* ignored = nullptr;
    la_ssize_t got = 1;
    while (got > 0) got = OnRead(tar, this, &ignored);
    return taken;
  }
};

TarReader::TarReader(int fd, std::string source) : state_(std::make_unique<State>()) {
  EPS_CHECK(state_->tar != nullptr);
  state_->fd = fd;
  state_->source = std::move(source);
  EPS_CHECK(archive_read_support_format_tar(state_->tar) == ARCHIVE_OK);
}

TarReader::~TarReader() = default;

absl::Status TarReader::Damaged(absl::string_view what) const {
  if (!state_->taken.ok()) return state_->taken;
  return absl::DataLossError(absl::StrCat(state_->source, ": the member at offset ",
                                          archive_read_header_position(state_->tar), ": ", what));
}

absl::StatusOr<std::optional<TarMember>> TarReader::Next() {
  archive_entry* entry = nullptr;
  int result = ARCHIVE_OK;
  if (!std::exchange(state_->opened, true)) {  // this reads the first block
    result = archive_read_open(state_->tar, state_.get(), nullptr, &State::OnRead, nullptr);
  }
  if (result == ARCHIVE_OK) result = archive_read_next_header(state_->tar, &entry);
  if (result == ARCHIVE_EOF) {
    EPS_RETURN_IF_ERROR(state_->ReadToEnd());
    return std::optional<TarMember>();
  }
  if (result != ARCHIVE_OK) {
    return Damaged(absl::StrCat(TextOf(state_->tar), ": no tar, damaged, or cut short"));
  }
  const char* const name = archive_entry_pathname(entry);
  TarMember member;
  member.name = name == nullptr ? "" : name;
  member.size = static_cast<uint64_t>(archive_entry_size(entry));
  if (archive_entry_filetype(entry) != AE_IFREG || archive_entry_hardlink(entry) != nullptr ||
      archive_entry_sparse_count(entry) > 0) {
    return Damaged(absl::StrCat("\"", member.name, "\" is no plain file"));
  }
  if (member.name.empty() || LeavesItsFolder(member.name)) {
    return Damaged(absl::StrCat("\"", member.name, "\": a name that leaves its folder"));
  }
  return std::optional<TarMember>(std::move(member));
}

absl::StatusOr<absl::string_view> TarReader::Read() {
  const la_ssize_t got = archive_read_data(state_->tar, state_->piece.data(), state_->piece.size());
  if (got < 0) {
    return Damaged(absl::StrCat(TextOf(state_->tar), ": its content is damaged or cut short"));
  }
  return absl::string_view(state_->piece.data(), static_cast<size_t>(got));
}

}  // namespace eps
