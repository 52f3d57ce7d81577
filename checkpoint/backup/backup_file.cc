#include "checkpoint/backup/backup_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/checksum.h"
#include "base/descriptor.h"
#include "base/exit_code.h"
#include "base/files/files.h"
#include "base/files/tar.h"
#include "base/folder.h"
#include "base/job/job_spec.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint_folders.h"

namespace eps {
namespace {

namespace fs = std::filesystem;

constexpr char kStream[] = "-";
constexpr uint64_t kMaxSmallBytes = uint64_t{64} << 20;  // of the manifest, and of the job spec
constexpr size_t kPiece = size_t{1} << 20;

absl::Status Failed(absl::string_view what, const std::string& path) {
  const std::string text = absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(errno));
  return errno == ENOENT ? absl::NotFoundError(text) : IoError(text);
}

// ---- Writing.

// Moves files into an archive.
class Packer {
 public:
  Packer(int fd, const std::string& out, std::string root)
      : root_(std::move(root)), tar_([this, fd, out](absl::string_view content) {
          bytes_ += content.size();
          return WriteTo(fd, out, content);
        }) {}

  // Appends the file `name` of the root. DataLoss if the content no longer fits its checksum.
  absl::Status Move(const std::string& name, const FileSums& expected) {
    const std::string path = absl::StrCat(root_, "/", name);
    const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat info {};
    if (!file.ok() || fstat(file.get(), &info) != 0) return Failed("open", path);
    EPS_RETURN_IF_ERROR(tar_.Add(name, expected.bytes, static_cast<uint64_t>(info.st_mtime)));
    uint64_t bytes = 0;
    uint32_t crc32c = 0;
    std::string piece(kPiece, '\0');
    for (;;) {
      const ssize_t got = read(file.get(), piece.data(), piece.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Failed("read", path);
      if (got == 0) break;
      const absl::string_view content(piece.data(), static_cast<size_t>(got));
      bytes += content.size();
      crc32c = Crc32c(content, crc32c);
      if (bytes > expected.bytes) break;
      EPS_RETURN_IF_ERROR(tar_.Write(content));
    }
    if (bytes != expected.bytes || crc32c != expected.crc32c) {
      return absl::DataLossError(absl::StrCat(path, " has changed since it was written"));
    }
    if (unlink(path.c_str()) != 0) return Failed("remove", path);
    return absl::OkStatus();
  }
  absl::Status Finish() { return tar_.Finish(); }
  uint64_t bytes() const { return bytes_; }

 private:
  const std::string root_;
  uint64_t bytes_ = 0;  // of the archive so far
  TarWriter tar_;
};

absl::StatusOr<uint64_t> Pack(const std::string& checkpoint, int fd, const std::string& out) {
  EPS_ASSIGN_OR_RETURN(const CheckpointManifest manifest, ReadManifest(checkpoint));
  const fs::path path(checkpoint);
  const std::string folder = path.filename().string();
  Packer packer(fd, out, path.parent_path().string());
  EPS_ASSIGN_OR_RETURN(const FileSums sums, SumFile(absl::StrCat(checkpoint, "/", kManifestFile)));
  EPS_RETURN_IF_ERROR(packer.Move(absl::StrCat(folder, "/", kManifestFile), sums));
  for (const auto& [name, expected] : manifest.files) {
    EPS_RETURN_IF_ERROR(packer.Move(absl::StrCat(folder, "/", name), expected));
  }
  EPS_RETURN_IF_ERROR(packer.Finish());
  return packer.bytes();
}

absl::StatusOr<uint64_t> WriteToStream(const JobState& state) {
  if (isatty(STDOUT_FILENO) == 1) {
    return absl::InvalidArgumentError("--out=-: stdout is a terminal; send it to a file or a pipe");
  }
  std::signal(SIGPIPE, SIG_IGN);  // a reader that ends is an error of ours
  EPS_ASSIGN_OR_RETURN(std::string made, MakeTemporaryFolder("backup"));
  const ScratchFolder scratch = {std::move(made)};
  EPS_ASSIGN_OR_RETURN(const std::string checkpoint, SaveCheckpoint(state, scratch.path));
  return Pack(checkpoint, STDOUT_FILENO, "stdout");
}

// ---- Reading.

// Receives the content of a member, piece by piece.
using Take = std::function<absl::Status(absl::string_view)>;

// Reads an archive and checks it against its manifest.
class Unpacker {
 public:
  Unpacker(int fd, std::string from) : from_(std::move(from)), tar_(fd, from_) {}

  // Reads the first member. DataLoss unless it is a manifest that fits its own checksum.
  absl::Status ReadManifestMember() {
    EPS_ASSIGN_OR_RETURN(const std::optional<TarMember> first, tar_.Next());
    const std::string behind = absl::StrCat("/", kManifestFile);
    if (!first.has_value() || !absl::EndsWith(first->name, behind) ||
        first->size > kMaxSmallBytes) {
      return tar_.Damaged(
          absl::StrCat("not a backup of eps backup, which begins with checkpoint-<step>", behind,
                       "; unpack what another program packed (tar xf) and restore the folder"));
    }
    folder_ = first->name.substr(0, first->name.size() - behind.size());
    const Take append = [this](absl::string_view piece) {
      manifest_text_.append(piece.data(), piece.size());
      return absl::OkStatus();
    };
    EPS_RETURN_IF_ERROR(Drain(append).status());
    const std::string name = Named(first->name);
    EPS_ASSIGN_OR_RETURN(manifest_, ParseManifest(manifest_text_, name));
    if (!manifest_.has_own_sum || folder_ != absl::StrCat("checkpoint-", manifest_.step)) {
      return absl::DataLossError(absl::StrCat(name, ": expected the manifest of checkpoint-",
                                              manifest_.step, " with its own CRC32C"));
    }
    return absl::OkStatus();
  }

  // Reads all other members. Calls `open` for each, which returns where its content goes.
  absl::Status ReadFiles(const std::function<absl::StatusOr<Take>(const std::string&)>& open) {
    std::set<std::string> seen;
    for (;;) {
      EPS_ASSIGN_OR_RETURN(const std::optional<TarMember> member, tar_.Next());
      if (!member.has_value()) break;
      const bool ours = absl::StartsWith(member->name, folder_ + "/");
      const std::string name = ours ? member->name.substr(folder_.size() + 1) : "";
      const auto expected = manifest_.files.find(name);
      if (expected == manifest_.files.end() || !seen.insert(name).second) {
        return absl::DataLossError(absl::StrCat(Named(member->name), ": the manifest lists no ",
                                                ours ? "further " : "", "file of this name"));
      }
      if (member->size != expected->second.bytes) {
        return absl::DataLossError(absl::StrCat(
            Named(name), ": ", member->size, " bytes, the manifest has ", expected->second.bytes));
      }
      EPS_ASSIGN_OR_RETURN(const Take take, open(name));
      EPS_ASSIGN_OR_RETURN(const FileSums found, Drain(take));
      EPS_RETURN_IF_ERROR(CheckSums(Named(name), found, expected->second));
    }
    for (const auto& [name, sums] : manifest_.files) {
      if (seen.count(name) == 0) return absl::DataLossError(Named(name) + " is missing");
    }
    return absl::OkStatus();
  }

  const CheckpointManifest& manifest() const { return manifest_; }
  const std::string& manifest_text() const { return manifest_text_; }
  const std::string& folder() const { return folder_; }
  std::string Named(const std::string& member) const { return absl::StrCat(from_, ": ", member); }

 private:
  // Reads the current member to its end.
  absl::StatusOr<FileSums> Drain(const Take& take) {
    FileSums sums;
    Sha256 sha256;
    for (;;) {
      EPS_ASSIGN_OR_RETURN(const absl::string_view piece, tar_.Read());
      if (piece.empty()) break;
      sums.bytes += piece.size();
      sums.crc32c = Crc32c(piece, sums.crc32c);
      sha256.Update(piece);
      EPS_RETURN_IF_ERROR(take(piece));
    }
    sums.sha256 = ToHex(sha256.Finish());
    return sums;
  }

  const std::string from_;
  TarReader tar_;
  std::string manifest_text_;
  CheckpointManifest manifest_;
  std::string folder_;  // checkpoint-<step>
};

// A job whose content was checked and not kept.
class CheckedState final : public JobState {
 public:
  explicit CheckedState(JobStateHead head) : JobState(std::move(head)) {}
  absl::StatusOr<ChunkState> ReadChunk(ChunkId) const override { return NotKept(); }
  absl::StatusOr<std::vector<CutResidual>> ReadResiduals(
      const std::vector<ChunkId>&) const override {
    return NotKept();
  }

 private:
  static absl::Status NotKept() {
    return absl::FailedPreconditionError("a backup that was only checked has no content");
  }
};

absl::StatusOr<Descriptor> OpenForReading(const std::string& from) {
  Descriptor file(from == kStream ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0)
                                  : open(from.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.ok()) return Failed("open", from);
  return file;
}

std::string NameOf(const std::string& from) { return from == kStream ? "stdin" : from; }

absl::Status CheckRoom(const CheckpointManifest& manifest, const std::string& folder) {
  uint64_t bytes = 0;
  for (const auto& [name, sums] : manifest.files) bytes += sums.bytes;
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  if (error || bytes <= space.available) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(folder, ": ", bytes, " bytes are unpacked there first, and ", space.available,
                   " are free: ", bytes - space.available, " are missing"));
}

}  // namespace

bool NamesBackupFile(const std::string& path) {
  return path == kStream || absl::EndsWith(path, ".tar");
}

absl::StatusOr<uint64_t> WriteBackupFile(const JobState& state, const std::string& out) {
  if (out == kStream) return WriteToStream(state);
  EPS_RETURN_IF_ERROR(CheckIsNew(out));
  const OutPath place = LocateOut(out);
  const ScratchFolder scratch = {place.hidden};
  EPS_RETURN_IF_ERROR(scratch.MakeEmpty());
  EPS_ASSIGN_OR_RETURN(const std::string checkpoint, SaveCheckpoint(state, scratch.path));
  const std::string whole = absl::StrCat(scratch.path, "/backup.tar");
  const Descriptor file(open(whole.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file.ok()) return Failed("create", whole);
  EPS_ASSIGN_OR_RETURN(const uint64_t bytes, Pack(checkpoint, file.get(), out));
  if (fsync(file.get()) != 0) return Failed("sync", whole);
  EPS_RETURN_IF_ERROR(RenamePath(whole, place.path));
  EPS_RETURN_IF_ERROR(SyncPath(place.above));
  return bytes;
}

absl::StatusOr<std::unique_ptr<JobState>> CheckBackupFile(const std::string& from) {
  EPS_ASSIGN_OR_RETURN(const Descriptor file, OpenForReading(from));
  Unpacker unpacker(file.get(), NameOf(from));
  EPS_RETURN_IF_ERROR(unpacker.ReadManifestMember());
  const CheckpointManifest& manifest = unpacker.manifest();
  const auto listed = manifest.files.find(kSpecFile);
  if (listed == manifest.files.end() || listed->second.bytes > kMaxSmallBytes) {
    return absl::DataLossError(unpacker.Named("the manifest lists no ") + kSpecFile);
  }
  std::string text;
  EPS_RETURN_IF_ERROR(unpacker.ReadFiles([&text](const std::string& name) -> Take {
    const bool is_spec = name == kSpecFile;
    return [&text, is_spec](absl::string_view piece) {
      if (is_spec) text.append(piece.data(), piece.size());
      return absl::OkStatus();
    };
  }));
  JobStateHead head;
  absl::StatusOr<JobSpec> spec = JobSpec::Parse(text);
  if (!spec.ok()) {
    return absl::DataLossError(
        absl::StrCat(unpacker.Named(kSpecFile), ": ", spec.status().message()));
  }
  head.spec = *std::move(spec);
  if (ToHex(head.spec.Digest()) != manifest.spec_digest) {
    return absl::DataLossError(unpacker.Named(kSpecFile) + ": its digest is not the manifest's");
  }
  head.border.id = {Step(manifest.step), Term(manifest.term)};
  head.servers = manifest.servers;
  return std::unique_ptr<JobState>(std::make_unique<CheckedState>(std::move(head)));
}

absl::StatusOr<std::string> UnpackBackupFile(const std::string& from, const std::string& folder) {
  EPS_ASSIGN_OR_RETURN(const Descriptor file, OpenForReading(from));
  Unpacker unpacker(file.get(), NameOf(from));
  EPS_RETURN_IF_ERROR(unpacker.ReadManifestMember());
  EPS_RETURN_IF_ERROR(CheckRoom(unpacker.manifest(), folder));
  const std::string checkpoint = absl::StrCat(folder, "/", unpacker.folder());
  EPS_RETURN_IF_ERROR(CreateFolder(checkpoint + "/eps"));
  EPS_RETURN_IF_ERROR(
      WriteSynced(absl::StrCat(checkpoint, "/", kManifestFile), unpacker.manifest_text()));
  EPS_RETURN_IF_ERROR(unpacker.ReadFiles([&checkpoint](
                                             const std::string& name) -> absl::StatusOr<Take> {
    const std::string path = absl::StrCat(checkpoint, "/", name);
    EPS_RETURN_IF_ERROR(CreateFolder(fs::path(path).parent_path().string()));
    const auto out = std::make_shared<Descriptor>(
        open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (!out->ok()) return Failed("create", path);
    return Take([out, path](absl::string_view piece) { return WriteTo(out->get(), path, piece); });
  }));
  return checkpoint;
}

}  // namespace eps
