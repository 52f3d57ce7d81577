#include "base/files/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/descriptor.h"
#include "base/exit_code.h"
#include "base/numerics/small_floats.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the format is little-endian");

constexpr size_t kLengthBytes = 8;
constexpr absl::string_view kMetadataKey = "__metadata__";

struct DtypeSize {
  absl::string_view name;
  uint64_t bytes;
};
constexpr DtypeSize kDtypes[] = {
    {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1},
    {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},
    {"U32", 4},  {"F32", 4}, {"F64", 8}, {"I64", 8},     {"U64", 8},
};

// Returns 0 for a dtype that is not in the format.
uint64_t BytesOfDtype(absl::string_view dtype) {
  for (const DtypeSize& known : kDtypes) {
    if (known.name == dtype) return known.bytes;
  }
  return 0;
}

// The dtypes that convert from and to float.
bool IsFloatDtype(absl::string_view dtype) {
  return dtype == "F32" || dtype == "BF16" || dtype == "F16";
}

// False if the product overflows.
bool Product(const std::vector<uint64_t>& shape, uint64_t factor, uint64_t* out) {
  *out = factor;
  for (const uint64_t extent : shape) {
    if (__builtin_mul_overflow(*out, extent, out)) return false;
  }
  return true;
}

std::string ShapeText(const std::vector<uint64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::Status Errno(absl::string_view what, const std::string& path) {
  const int error = errno;
  const std::string text = absl::StrCat(what, " ", path, ": ", std::strerror(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(text);
  if (error == EACCES || error == EPERM || error == EROFS) return absl::PermissionDeniedError(text);
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    return absl::ResourceExhaustedError(text);
  }
  return IoError(text);
}

// The header's grammar as a state machine over the parser's events. It holds nothing but what the
// format has, so neither depth nor repetition can make it grow.
class HeaderHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  const std::string& error() const { return error_; }
  std::vector<SafetensorsEntry> entries;  // offset: from the start of the data, yet unchecked
  std::map<std::string, size_t> index_by_name;
  std::map<std::string, std::string> metadata;

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("true or false"); }
  bool number_integer(number_integer_t) override { return Unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return Unexpected("a number that is no integer");
  }
  bool binary(binary_t&) override { return Unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kShape) {
      if (entries.back().shape.size() == kMaxSafetensorsRank) {
        return Fail(absl::StrCat("the shape has more than ", kMaxSafetensorsRank, " dimensions"));
      }
      entries.back().shape.push_back(value);
      return true;
    }
    if (place_ == Place::kOffsets) {
      if (offsets_ == 2) return Fail("data_offsets has more than two numbers");
      (offsets_++ == 0 ? entries.back().offset : end_) = value;
      return true;
    }
    return Unexpected("a number");
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      metadata[key_] = value;
      return true;
    }
    if (place_ == Place::kTensor && key_ == "dtype") {
      entries.back().dtype = value;
      return true;
    }
    return Unexpected("a text");
  }

  bool start_object(size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
      return true;
    }
    if (place_ != Place::kTop) return Unexpected("an object");
    if (key_ == kMetadataKey) {
      place_ = Place::kMetadata;
      return true;
    }
    if (entries.size() == kMaxSafetensorsTensors) {
      return Fail(absl::StrCat("more than ", kMaxSafetensorsTensors, " tensors"));
    }
    SafetensorsEntry entry;
    entry.name = key_;
    entry.dtype.clear();
    index_by_name[key_] = entries.size();
    entries.push_back(std::move(entry));
    seen_ = 0;
    offsets_ = 0;
    place_ = Place::kTensor;
    return true;
  }

  bool key(string_t& key) override {
    key_ = key;
    if (place_ == Place::kTop) {
      const bool again =
          key == kMetadataKey ? std::exchange(had_metadata_, true) : index_by_name.count(key) != 0;
      return !again || Fail(absl::StrCat("the name ", ShowUntrusted(key), " stands twice"));
    }
    if (place_ == Place::kMetadata) {
      if (metadata.size() == kMaxSafetensorsMetadata) {
        return Fail(absl::StrCat("more than ", kMaxSafetensorsMetadata, " entries of metadata"));
      }
      return metadata.count(key) == 0 ||
             Fail(absl::StrCat("metadata ", ShowUntrusted(key), " twice"));
    }
    const int bit = key == "dtype" ? 1 : key == "shape" ? 2 : key == "data_offsets" ? 4 : 0;
    if (bit == 0) return Fail(absl::StrCat("unknown field ", ShowUntrusted(key)));
    if (seen_ & bit) return Fail(absl::StrCat("field ", key, " stands twice"));
    seen_ |= bit;
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTensor) {
      if (seen_ != 7) return Fail("dtype, shape or data_offsets is missing");
      if (offsets_ != 2) return Fail("data_offsets must be two numbers");
      if (end_ < entries.back().offset) return Fail("data_offsets end before they begin");
      entries.back().bytes = end_ - entries.back().offset;
    }
    place_ = place_ == Place::kTop ? Place::kEnd : Place::kTop;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ == Place::kTensor && key_ == "shape") {
      place_ = Place::kShape;
      return true;
    }
    if (place_ == Place::kTensor && key_ == "data_offsets") {
      place_ = Place::kOffsets;
      return true;
    }
    return Unexpected("a list");
  }
  bool end_array() override {
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    return Fail(absl::StrCat("the header is not JSON at its byte ", position));
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kEnd };

  bool Fail(absl::string_view why) {
    const bool in_tensor =
        place_ == Place::kTensor || place_ == Place::kShape || place_ == Place::kOffsets;
    error_ = in_tensor ? absl::StrCat("tensor ", ShowUntrusted(entries.back().name), ": ", why)
                       : std::string(why);
    return false;
  }
  bool Unexpected(absl::string_view found) {
    const std::string where = place_ == Place::kStart ? "the header" : ShowUntrusted(key_);
    return Fail(absl::StrCat(where, ": unexpected ", found));
  }

  Place place_ = Place::kStart;
  std::string key_;
  std::string error_;
  bool had_metadata_ = false;
  int seen_ = 0;     // fields of the current tensor: 1 dtype, 2 shape, 4 data_offsets
  int offsets_ = 0;  // numbers read of its data_offsets
  uint64_t end_ = 0;
};

// Orders the tensors by their bytes and checks that they tile the data exactly.
absl::Status CheckLayout(uint64_t data_bytes, std::vector<SafetensorsEntry>* entries) {
  std::stable_sort(entries->begin(), entries->end(),
                   [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
                     return std::make_pair(a.offset, a.bytes) < std::make_pair(b.offset, b.bytes);
                   });
  uint64_t end = 0;
  for (const SafetensorsEntry& entry : *entries) {
    const std::string tensor = absl::StrCat("tensor ", ShowUntrusted(entry.name), ": ");
    const uint64_t size = BytesOfDtype(entry.dtype);
    if (size == 0) {
      return absl::DataLossError(
          absl::StrCat(tensor, "unknown dtype ", ShowUntrusted(entry.dtype)));
    }
    uint64_t wanted = 0;
    if (!Product(entry.shape, size, &wanted)) {
      return absl::DataLossError(
          absl::StrCat(tensor, "shape ", ShapeText(entry.shape), " overflows 64 bits"));
    }
    if (wanted != entry.bytes) {
      return absl::DataLossError(absl::StrCat(tensor, entry.dtype, " ", ShapeText(entry.shape),
                                              " is ", wanted, " bytes, data_offsets say ",
                                              entry.bytes));
    }
    if (entry.offset != end) {
      return absl::DataLossError(absl::StrCat(tensor, "starts at byte ", entry.offset,
                                              " of the data, expected ", end,
                                              " (tensors may neither overlap nor leave holes)"));
    }
    if (entry.bytes > data_bytes - end) {
      return absl::DataLossError(absl::StrCat(tensor, "ends at byte ", end + entry.bytes,
                                              " of the data, the file has ", data_bytes));
    }
    end += entry.bytes;
  }
  if (end != data_bytes) {
    return absl::DataLossError(
        absl::StrCat("the tensors cover ", end, " bytes of data, the file has ", data_bytes));
  }
  return absl::OkStatus();
}

std::string HeaderText(const std::vector<SafetensorsEntry>& entries) {
  std::string header = "{\"__metadata__\":{\"format\":\"pt\"}";
  for (const SafetensorsEntry& entry : entries) {
    absl::StrAppend(&header, ",", nlohmann::json(entry.name).dump(), ":{\"dtype\":\"", entry.dtype,
                    "\",\"shape\":[", absl::StrJoin(entry.shape, ","), "],\"data_offsets\":[",
                    entry.offset, ",", entry.offset + entry.bytes, "]}");
  }
  header += "}";
  // Spaces up to a multiple of 8, so that the data is aligned in a mapping.
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return header;
}

absl::Status WriteAll(int fd, const std::string& path, const void* data, uint64_t bytes,
                      uint64_t offset) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = pwrite(fd, next, bytes, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return Errno("cannot write", path);
    next += done;
    bytes -= static_cast<uint64_t>(done);
    offset += static_cast<uint64_t>(done);
  }
  return absl::OkStatus();
}

}  // namespace

std::string ShowUntrusted(absl::string_view text) {
  constexpr size_t kMost = 200;
  if (text.size() <= kMost) return absl::StrCat("\"", text, "\"");
  return absl::StrCat("\"", text.substr(0, kMost), "…\" (", text.size(), " bytes)");
}

uint64_t SafetensorsEntry::elements() const {
  uint64_t product = 1;
  for (const uint64_t extent : shape) product *= extent;
  return product;
}

absl::StatusOr<std::unique_ptr<SafetensorsReader>> SafetensorsReader::Open(
    const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.ok()) return Errno("cannot open", path);
  std::unique_ptr<SafetensorsReader> reader(new SafetensorsReader());
  reader->path_ = path;
  struct stat info;
  if (fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::DataLossError(absl::StrCat(path, ": not a regular file"));
  }
  const uint64_t size = static_cast<uint64_t>(info.st_size);
  if (size < kLengthBytes) {
    return absl::DataLossError(absl::StrCat(path, ": ", size, " bytes, too short for a header"));
  }
  void* const map = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (map == MAP_FAILED) return Errno("cannot map", path);
  reader->data_ = static_cast<const uint8_t*>(map);
  reader->size_ = size;

  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, map, kLengthBytes);
  if (header_bytes > kMaxSafetensorsHeaderBytes) {
    return absl::DataLossError(absl::StrCat(path, ": a header of ", header_bytes,
                                            " bytes, at most ", kMaxSafetensorsHeaderBytes,
                                            " are allowed"));
  }
  if (header_bytes > size - kLengthBytes) {
    return absl::DataLossError(
        absl::StrCat(path, ": a header of ", header_bytes, " bytes in a file of ", size));
  }
  const char* const header = reinterpret_cast<const char*>(reader->data_) + kLengthBytes;
  HeaderHandler handler;
  if (!nlohmann::json::sax_parse(header, header + header_bytes, &handler)) {
    return absl::DataLossError(absl::StrCat(path, ": ", handler.error()));
  }
  const uint64_t data_start = kLengthBytes + header_bytes;
  const absl::Status layout = CheckLayout(size - data_start, &handler.entries);
  if (!layout.ok()) return absl::DataLossError(absl::StrCat(path, ": ", layout.message()));
  reader->entries_ = std::move(handler.entries);
  for (size_t i = 0; i < reader->entries_.size(); ++i) {
    reader->entries_[i].offset += data_start;
    reader->index_by_name_[reader->entries_[i].name] = i;
  }
  reader->metadata_ = std::move(handler.metadata);
  return reader;
}

SafetensorsReader::~SafetensorsReader() {
  if (data_ != nullptr) munmap(const_cast<uint8_t*>(data_), size_);
}

absl::StatusOr<const SafetensorsEntry*> SafetensorsReader::Find(absl::string_view name) const {
  const auto found = index_by_name_.find(std::string(name));
  if (found == index_by_name_.end()) {
    return absl::NotFoundError(absl::StrCat(path_, ": no tensor ", ShowUntrusted(name)));
  }
  return &entries_[found->second];
}

absl::Status SafetensorsReader::Read(const SafetensorsEntry& entry, uint64_t first, size_t count,
                                     float* out) const {
  const uint64_t elements = entry.elements();
  if (first > elements || count > elements - first) {
    return absl::OutOfRangeError(absl::StrCat(path_, ": tensor ", ShowUntrusted(entry.name),
                                              " has ", elements, " elements, asked for ", count,
                                              " from ", first));
  }
  const uint8_t* const from = data_ + entry.offset + first * BytesOfDtype(entry.dtype);
  if (entry.dtype == "F32") {
    if (count > 0) std::memcpy(out, from, count * sizeof(float));
    return absl::OkStatus();
  }
  if (!IsFloatDtype(entry.dtype)) {
    return absl::UnimplementedError(absl::StrCat(path_, ": tensor ", ShowUntrusted(entry.name),
                                                 " is ", entry.dtype,
                                                 "; weights are read from F32, BF16 and F16"));
  }
  const bool bf16 = entry.dtype == "BF16";
  for (size_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, from + 2 * i, sizeof(bits));
    out[i] = bf16 ? FloatFromBf16(bits) : FloatFromF16(bits);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::string& path, std::vector<SafetensorsEntry> entries) {
  std::map<std::string, size_t> names;
  uint64_t data_bytes = 0;
  for (SafetensorsEntry& entry : entries) {
    if (entry.name == kMetadataKey || !names.emplace(entry.name, names.size()).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": tensor name ", ShowUntrusted(entry.name), " is reserved or used twice"));
    }
    if (!IsFloatDtype(entry.dtype)) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor ", ShowUntrusted(entry.name), ": cannot write dtype ",
                       ShowUntrusted(entry.dtype), ", only F32, BF16 and F16"));
    }
    entry.offset = data_bytes;
    if (!Product(entry.shape, BytesOfDtype(entry.dtype), &entry.bytes) ||
        __builtin_add_overflow(data_bytes, entry.bytes, &data_bytes)) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": tensor ", ShowUntrusted(entry.name),
                                                     " ", ShapeText(entry.shape), " overflows"));
    }
  }
  const std::string header = HeaderText(entries);
  if (header.size() > kMaxSafetensorsHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": a header of ", header.size(),
                                                   " bytes is longer than the format allows"));
  }
  std::unique_ptr<SafetensorsWriter> writer(new SafetensorsWriter());
  writer->path_ = path;
  writer->fd_ = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (writer->fd_ < 0) return Errno("cannot create", path);
  const uint64_t length = header.size();
  EPS_RETURN_IF_ERROR(WriteAll(writer->fd_, path, &length, kLengthBytes, 0));
  EPS_RETURN_IF_ERROR(WriteAll(writer->fd_, path, header.data(), header.size(), kLengthBytes));
  const uint64_t data_start = kLengthBytes + header.size();
  for (SafetensorsEntry& entry : entries) entry.offset += data_start;
  writer->file_bytes_ = data_start + data_bytes;
  writer->written_.resize(entries.size());
  writer->entries_ = std::move(entries);
  return writer;
}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_ >= 0) close(fd_);
}

absl::Status SafetensorsWriter::Write(size_t entry, uint64_t first,
                                      absl::Span<const float> values) {
  EPS_CHECK_MSG(entry < entries_.size() && fd_ >= 0, path_ << ": entry " << entry);
  const SafetensorsEntry& to = entries_[entry];
  const uint64_t elements = to.elements();
  if (first > elements || values.size() > elements - first) {
    return absl::OutOfRangeError(absl::StrCat(path_, ": tensor ", ShowUntrusted(to.name), " has ",
                                              elements, " elements, given ", values.size(),
                                              " from ", first));
  }
  if (to.dtype == "F32") {
    written_[entry] += values.size();
    return WriteAll(fd_, path_, values.data(), values.size() * sizeof(float),
                    to.offset + first * sizeof(float));
  }
  const bool bf16 = to.dtype == "BF16";
  const uint32_t infinity = bf16 ? 0x7f80u : 0x7c00u;
  std::vector<uint16_t> narrow(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    narrow[i] = bf16 ? Bf16FromFloat(values[i]) : F16FromFloat(values[i]);
    if ((narrow[i] & 0x7fffu) == infinity && (BitsOfFloat(values[i]) & 0x7fffffffu) < 0x7f800000u) {
      return absl::InvalidArgumentError(absl::StrCat(path_, ": tensor ", ShowUntrusted(to.name),
                                                     ": element ", first + i, " is ", values[i],
                                                     ", which is too large for ", to.dtype));
    }
  }
  written_[entry] += values.size();
  return WriteAll(fd_, path_, narrow.data(), narrow.size() * sizeof(uint16_t),
                  to.offset + first * sizeof(uint16_t));
}

absl::Status SafetensorsWriter::Finish() {
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (written_[i] != entries_[i].elements()) {
      return absl::FailedPreconditionError(
          absl::StrCat(path_, ": tensor ", ShowUntrusted(entries_[i].name), ": ", written_[i],
                       " of ", entries_[i].elements(), " elements were written"));
    }
  }
  if (fsync(fd_) != 0) return Errno("cannot sync", path_);
  if (close(std::exchange(fd_, -1)) != 0) return Errno("cannot close", path_);
  return absl::OkStatus();
}

}  // namespace eps
