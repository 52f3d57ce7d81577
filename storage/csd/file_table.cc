#include "storage/csd/file_table.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "storage/disk/block_bytes.h"
#include "storage/disk/disk.h"
#include "storage/records/sealed_record.h"

namespace eps {
namespace {

constexpr absl::string_view kKey = "file table";  // of the record

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

bool IsIn(const std::string& path, const std::string& folder) {
  return folder.empty() || absl::StartsWith(path, folder + "/");
}

// A copy of a table begins with the size of its record, and then has the record.
absl::string_view RecordIn(absl::Span<const uint8_t> copy) {
  const uint64_t bytes = LoadFrom<uint64_t>(copy.data());
  const char* const begin = reinterpret_cast<const char*>(copy.data()) + sizeof(bytes);
  return absl::string_view(begin, std::min<uint64_t>(bytes, copy.size() - sizeof(bytes)));
}

bool IsZero(absl::Span<const uint8_t> copy) {
  return std::all_of(copy.begin(), copy.end(), [](uint8_t byte) { return byte == 0; });
}

}  // namespace

absl::StatusOr<FileTable> FileTable::ReadCopy(absl::Span<const uint8_t> copy,
                                              uint64_t media_bytes) {
  FileTable table(media_bytes);
  if (IsZero(copy)) return table;
  EPS_ASSIGN_OR_RETURN(const absl::string_view fields, UnsealRecord(kKey, RecordIn(copy)));
  RecordReader reader(fields);
  table.sequence_ = reader.U64();
  table.last_number_ = reader.U64();
  table.untouched_offset_ = reader.U64();
  const uint64_t files = std::min<uint64_t>(reader.U32(), fields.size());
  for (uint64_t i = 0; i < files; ++i) {
    File file;
    file.offset = reader.U64();
    file.bytes = reader.U64();
    file.number = reader.U64();
    const uint32_t name_bytes = reader.U32();
    table.files_[std::string(reader.Text(name_bytes))] = file;
  }
  const uint64_t folders = std::min<uint64_t>(reader.U32(), fields.size());
  for (uint64_t i = 0; i < folders; ++i) {
    const uint32_t name_bytes = reader.U32();
    table.folders_.insert(std::string(reader.Text(name_bytes)));
  }
  if (!reader.complete()) return DamagedRecord(kKey, "its fields do not end with it");
  return table;
}

absl::StatusOr<FileTable> FileTable::Read(absl::Span<const uint8_t> first,
                                          absl::Span<const uint8_t> second, uint64_t media_bytes) {
  absl::StatusOr<FileTable> a = ReadCopy(first, media_bytes);
  absl::StatusOr<FileTable> b = ReadCopy(second, media_bytes);
  for (const auto* const copy : {&a, &b}) {
    if (absl::IsFailedPrecondition(copy->status())) return copy->status();  // of a later release
  }
  if (!a.ok()) return b;
  return b.ok() && b->sequence_ > a->sequence_ ? b : a;
}

absl::StatusOr<std::string> FileTable::Write() {
  ++sequence_;
  RecordWriter writer;
  writer.U64(sequence_);
  writer.U64(last_number_);
  writer.U64(untouched_offset_);
  writer.U32(static_cast<uint32_t>(files_.size()));
  for (const auto& [path, file] : files_) {
    writer.U64(file.offset);
    writer.U64(file.bytes);
    writer.U64(file.number);
    writer.U32(static_cast<uint32_t>(path.size()));
    writer.Text(path);
  }
  writer.U32(static_cast<uint32_t>(folders_.size()));
  for (const std::string& folder : folders_) {
    writer.U32(static_cast<uint32_t>(folder.size()));
    writer.Text(folder);
  }
  const std::string record = SealRecord(kKey, std::move(writer).Take());
  std::string blocks(kFileTableBytes, '\0');
  if (sizeof(uint64_t) + record.size() > blocks.size()) {
    return absl::ResourceExhaustedError(absl::StrCat("the table of files has ", record.size(),
                                                     " bytes; it ends at ",
                                                     kFileTableBytes - sizeof(uint64_t)));
  }
  StoreAt(reinterpret_cast<uint8_t*>(blocks.data()), uint64_t{record.size()});
  std::memcpy(blocks.data() + sizeof(uint64_t), record.data(), record.size());
  return blocks;
}

const FileTable::File* FileTable::Find(const std::string& path) const {
  const auto found = files_.find(path);
  return found == files_.end() ? nullptr : &found->second;
}

std::vector<std::string> FileTable::NamesIn(const std::string& folder) const {
  std::set<std::string> names;
  const auto add = [&](const std::string& path) {
    if (!path.empty() && FolderOf(path) == folder && IsIn(path, folder)) {
      names.insert(folder.empty() ? path : path.substr(folder.size() + 1));
    }
  };
  for (const auto& [path, file] : files_) add(path);
  for (const std::string& path : folders_) add(path);
  return {names.begin(), names.end()};
}

void FileTable::AddFolder(const std::string& path) {
  if (path.empty()) return;
  AddFolder(FolderOf(path));
  folders_.insert(path);
}

absl::StatusOr<FileTable::File> FileTable::AddFile(const std::string& path, uint64_t bytes) {
  if (Find(path) != nullptr || IsFolder(path)) {
    return absl::AlreadyExistsError(absl::StrCat(path, " exists"));
  }
  if (!IsFolder(FolderOf(path))) {
    return absl::NotFoundError(absl::StrCat(FolderOf(path), " does not exist"));
  }
  if (bytes % kDiskBlock != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has ", bytes, " bytes, which are no multiple of ", kDiskBlock));
  }
  std::vector<File> taken;
  for (const auto& [name, file] : files_) taken.push_back(file);
  std::sort(taken.begin(), taken.end(),
            [](const File& a, const File& b) { return a.offset < b.offset; });
  taken.push_back({media_bytes_, 0, 0});
  uint64_t begin = kFirstAreaOffset;
  for (const File& next : taken) {
    if (next.offset >= begin && next.offset - begin >= bytes) {
      const File file = {begin, bytes, ++last_number_};
      files_[path] = file;
      untouched_offset_ = std::max(untouched_offset_, begin + bytes);
      return file;
    }
    begin = next.offset + next.bytes;
  }
  return absl::ResourceExhaustedError(absl::StrCat(path, " needs ", bytes, " bytes in one piece; ",
                                                   FreeBytes(), " are free in all pieces"));
}

absl::Status FileTable::Remove(const std::string& path) {
  if (files_.erase(path) > 0) return absl::OkStatus();
  if (folders_.count(path) == 0) {
    return absl::NotFoundError(absl::StrCat(path, " does not exist"));
  }
  if (!NamesIn(path).empty()) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is not empty"));
  }
  folders_.erase(path);
  return absl::OkStatus();
}

absl::Status FileTable::Rename(const std::string& from, const std::string& to) {
  if (!IsFolder(FolderOf(to))) {
    return absl::NotFoundError(absl::StrCat(FolderOf(to), " does not exist"));
  }
  const auto file = files_.find(from);
  if (file != files_.end()) {
    const File moved = file->second;
    files_.erase(file);
    files_[to] = moved;
    return absl::OkStatus();
  }
  if (folders_.count(from) == 0) {
    return absl::NotFoundError(absl::StrCat(from, " does not exist"));
  }
  if (IsFolder(to) || Find(to) != nullptr) {
    return absl::AlreadyExistsError(absl::StrCat(to, " exists"));
  }
  const auto moved_to = [&](const std::string& path) { return to + path.substr(from.size()); };
  std::map<std::string, File> files;
  for (const auto& [path, value] : files_) files[IsIn(path, from) ? moved_to(path) : path] = value;
  std::set<std::string> folders;
  for (const std::string& path : folders_) {
    folders.insert(path == from || IsIn(path, from) ? moved_to(path) : path);
  }
  files_ = std::move(files);
  folders_ = std::move(folders);
  return absl::OkStatus();
}

uint64_t FileTable::FreeBytes() const {
  uint64_t free = media_bytes_ < kFirstAreaOffset ? 0 : media_bytes_ - kFirstAreaOffset;
  for (const auto& [path, file] : files_) free -= file.bytes;
  return free;
}

}  // namespace eps
